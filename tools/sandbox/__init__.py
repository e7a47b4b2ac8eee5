"""Sandboxes: where tools run code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.tools.http.retries import Retries as Retries
    from toolgym.tools.sandbox.base import CellError as CellError
    from toolgym.tools.sandbox.base import CellResult as CellResult
    from toolgym.tools.sandbox.base import ExecutionResult as ExecutionResult
    from toolgym.tools.sandbox.base import ExecutionStatus as ExecutionStatus
    from toolgym.tools.sandbox.base import Limits as Limits
    from toolgym.tools.sandbox.base import Sandbox as Sandbox
    from toolgym.tools.sandbox.base import Session as Session
    from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox as LocalSandbox
    from toolgym.tools.sandbox.options import RunOptions as RunOptions
    from toolgym.tools.sandbox.options import RunRequest as RunRequest
    from toolgym.tools.sandbox.options import SessionOptions as SessionOptions
    from toolgym.tools.sandbox.options import SessionRequest as SessionRequest
    from toolgym.tools.sandbox.process import ProcessSandbox as ProcessSandbox
    from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox as RemoteSandbox
    from toolgym.tools.sandbox.shared import SharedSandbox as SharedSandbox
else:
    __getattr__, __dir__ = lazy_names(__name__)
