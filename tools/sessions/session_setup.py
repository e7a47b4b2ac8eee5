"""`SessionSetup`: the files, the command and the options with which a task's sandbox session begins.

A task gives them in `tools_kwargs[name]["create_kwargs"]` of a tool that works in a session:

```python
create_kwargs = {"files": {"words.txt": "pear\\napple\\n"}, "setup": "chmod 600 words.txt", "network": "off"}
```
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError, SandboxError, shorten
from toolgym.tools.sandbox.base import ExecutionStatus, Session
from toolgym.tools.sandbox.options import Idle, Network, SessionRequest

CREATE_KWARGS_OF_VERL = ("ground_truth",)
"""What verl's data sets give to every tool, for a scorer; a sandbox session does not need it."""


class SessionSetup(pydantic.BaseModel):
    """The beginning of a tool's session, given by a task. The session is opened when the episode begins.

    A session that ended and is opened again is prepared again. Tools that share a session each prepare it, in their
    order; options of the session itself, from `env` on, are those of the first tool that has any.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    files: dict[str, bytes] = pydantic.Field(default_factory=dict)
    """Files by name, relative to the tool's folder or absolute. A task gives the content as text, as bytes or as
    `{"base64": "..."}`; a name with None is not written (a Parquet file has the names of all rows)."""
    setup: str | None = None
    """A shell command that runs in the tool's folder after the files are written. If it fails, so does the reset."""
    setup_timeout: float = pydantic.Field(default=60.0, gt=0)
    """Wall seconds for `setup`."""
    env: dict[str, str] | None = None
    """Environment variables of all programs of the session."""
    network: Network | None = None
    """`off`, `loopback` (servers of the session reach each other), or `host` if the sandbox's owner allows it."""
    memory_mb: int | None = pydantic.Field(default=None, ge=1)
    """Memory of all programs of the session together, in MiB."""
    file_mb: int | None = pydantic.Field(default=None, ge=1)
    """Size of one file, in MiB."""
    disk_mb: int | None = pydantic.Field(default=None, ge=1)
    """Everything written to its folders together, in MiB."""
    inodes: int | None = pydantic.Field(default=None, ge=1)
    """Files and folders at once."""
    folders: tuple[str, ...] | None = None
    """Further folders that programs may write to, by absolute names, such as `/app`."""
    image: str | None = None
    """An image as the root of the session, see `docs/task_images.md`."""
    recover: bool | None = None
    """Whether a cell that ends or hangs the interpreter leaves the variables as they were before the cell. Default: yes
    """
    idle: Idle | None = None
    """`pause` stops the interpreter's threads between calls, `run` does not. Default: `pause`"""

    @classmethod
    def of(cls, create_kwargs: Mapping[str, Any], tool: str) -> SessionSetup:
        """Read a task's `create_kwargs`; `tool` is the tool's name in errors.

        Raises:
            ConfigError: a name is not known, or a value cannot be used.
        """
        known = {name: value for name, value in create_kwargs.items() if name not in CREATE_KWARGS_OF_VERL}
        setup = read_options(cls, known, f"create_kwargs of {tool}")
        SessionRequest.of(setup.options)
        return setup

    @property
    def options(self) -> dict[str, Any]:
        """The options of the session itself, as `Sandbox.session` takes them."""
        return self.model_dump(include=_OPTIONS, exclude_none=True)

    @pydantic.field_validator("files", mode="before")
    @classmethod
    def _read_files(cls, files: Any) -> dict[str, bytes]:
        if not isinstance(files, Mapping):
            raise ValueError("files must map names to contents")
        return {name: _read_content(name, content) for name, content in files.items() if content is not None}

    def __bool__(self) -> bool:
        return bool(self.model_fields_set)


_OPTIONS = {"env", "network", "memory_mb", "file_mb", "disk_mb", "inodes", "folders", "image", "recover", "idle"}

SETUP_KWARGS = (*SessionSetup.model_fields, *CREATE_KWARGS_OF_VERL)
"""The names of `create_kwargs` of tools that work in a session."""


@dataclass(frozen=True)
class FolderSetup:
    """The folder that a tool works in, which is made, and the task's setup. Equal folder_setups are made once."""

    folder: str | None = None
    setup: SessionSetup = field(default_factory=SessionSetup)

    async def apply(self, session: Session) -> None:
        """Prepare a session.

        Raises:
            ConfigError: the setup command failed, or the name of a file cannot be used.
            SandboxError: the sandbox failed.
        """
        if self.folder is not None:
            await session.mkdir(self.folder, parents=True, exist_ok=True)
        folder = self.folder or "."
        for name, data in self.setup.files.items():
            await session.write_file(posixpath.join(folder, name), data)
        if self.setup.setup is not None:
            await self._run_setup(session, self.setup.setup, folder)

    async def _run_setup(self, session: Session, command: str, folder: str) -> None:
        run = await session.exec(command, cwd=folder, timeout=self.setup.setup_timeout)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(f"the setup command of the task could not run: {run.message}")
        if run.status is not ExecutionStatus.OK:
            output = shorten(f"{run.stdout}{run.stderr}".strip() or "no output", 500)
            raise ConfigError(
                f"the setup command of the task, {shorten(command, 100)!r}, ended with {run.status.value} "
                f"(exit code {run.return_code}): {output}"
            )


def _read_content(name: Any, content: Any) -> bytes:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a file must be a text that is not empty, not {name!r}")
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytes):
        return content
    if isinstance(content, Mapping) and content.keys() == {"base64"} and isinstance(content["base64"], str):
        return base64.b64decode(content["base64"], validate=True)
    raise ValueError(f"the file {name!r} must be text, bytes or {{'base64': '...'}}, not {shorten(repr(content), 60)}")
