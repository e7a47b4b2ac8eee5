"""Settings of the sandbox server with OpenSandbox's API."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.serving.config import flag


class OpenSandboxServerConfig(E2bServerConfig):
    """Settings of the sandbox server, of E2B's API, and of OpenSandbox's.

    Attributes:
        opensandbox: `served`: OpenSandbox's API is there too, for its SDKs (docs/opensandbox.md); it needs
            `workers: 1`. Or `none`.
        opensandbox_keys: file with the API keys that OpenSandbox's clients may show, one a line; each sees its own
            sandboxes alone. None: the server's token is the only one; without a token every key is let in.
        opensandbox_sandboxes: OpenSandbox sandboxes, paused ones included, that exist at once; more are
            refused (429).
        opensandbox_images: folder with the images that clients may name (docs/task_images.md). None: there are none.
    """

    apis = ("e2b", "opensandbox")

    opensandbox: Literal["served", "none"] = flag("none")
    opensandbox_keys: Path | None = flag(None)
    opensandbox_sandboxes: int = flag(1024, ge=1)
    opensandbox_images: pydantic.DirectoryPath | None = flag(None)
