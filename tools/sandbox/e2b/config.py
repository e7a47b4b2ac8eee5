"""Settings of the sandbox server with E2B's API."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

import pydantic

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving.config import flag

OUTPUT_KEPT = 64 * 1024 * 1024
"""Bytes of a program's output that wait to be read; the middle of more is dropped, with a note."""


class E2bServerConfig(ServerConfig):
    """Settings of the sandbox server, and of E2B's API on it.

    Attributes:
        e2b: `served`: E2B's API is there too, for its SDKs (docs/e2b.md); it needs `workers: 1`. Or `none`.
        e2b_keys: file with the API keys that E2B's clients may show, one a line; each sees its own sandboxes alone.
            None: the server's token is the only one; without a token every key is let in.
        e2b_sandboxes: E2B sandboxes, paused ones and snapshots included, that exist at once; more are refused (429).
    """

    apis: ClassVar[tuple[str, ...]] = ("e2b",)

    e2b: Literal["served", "none"] = flag("none")
    e2b_keys: Path | None = flag(None)
    e2b_sandboxes: int = flag(1024, ge=1)

    @pydantic.model_validator(mode="after")
    def _one_worker(self) -> Self:
        for name in self.apis:
            if getattr(self, name) == "served" and self.workers != 1:
                raise ValueError(f"{name}: served needs workers: 1, got {self.workers}: a sandbox lives in one process")
        return self

    def e2b_sandbox(self) -> LocalSandbox:
        """Make the sandbox whose sessions are E2B's: of a program's output, more is kept until it is read."""
        kept = max(self.limits.output_bytes, OUTPUT_KEPT)
        limits = self.limits.model_copy(update={"output_bytes": kept})
        return self.model_copy(update={"limits": limits}).sandbox()

    def api_keys(self, setting: str = "e2b_keys") -> list[str] | None:
        """Return the keys that are let in; None for all. Raises ConfigError for a file without keys."""
        file: Path | None = getattr(self, setting)
        if file is None:
            return None if self.secret is None else [self.secret]
        try:
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise ConfigError(f"{setting}: cannot read {str(file)!r}: {error}") from None
        keys = [line.strip() for line in text.splitlines() if line.strip()]
        if not keys:
            raise ConfigError(f"{setting}: {str(file)!r} has no key; write one a line")
        return keys
