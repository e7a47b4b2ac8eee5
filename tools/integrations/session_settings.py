"""`SessionSettings`: the settings of a session for another project's trial or sample."""

from __future__ import annotations

import os

import pydantic

from toolgym.tools.sandbox.base import Limits, Sandbox
from toolgym.tools.sandbox.open import TOKEN_VARIABLE
from toolgym.tools.sandbox.remote import RemoteSandbox
from toolgym.tools.sandbox.shared import SharedSandbox


class SessionSettings(pydantic.BaseModel, frozen=True, extra="forbid"):
    """Settings that the integrations have in common.

    Attributes:
        url: one or several servers (`toolgym serve sandbox`), whose own limit of processes holds; None: this machine.
        token: what the servers ask for. It is better given by the environment variable `TOOLGYM_SANDBOX_TOKEN`, the
            default: frameworks write settings into their logs.
        memory_mb: memory of one session's programs together, in MiB.
        processes: processes and threads of one session at once.
        disk_mb: all files of one session together, in MiB. A local sandbox keeps them in memory.
        inodes: files and folders of one session.
    """

    url: str | tuple[str, ...] | None = None
    token: str | None = None
    memory_mb: int = pydantic.Field(default=2048, gt=0)
    processes: int = pydantic.Field(default=256, gt=0)
    disk_mb: int = pydantic.Field(default=1024, gt=0)
    inodes: int = pydantic.Field(default=100_000, gt=0)

    def open(self, *, require: str | None, output_bytes: int, may_use_host: bool) -> Sandbox:
        if self.url is not None:
            return RemoteSandbox(self.url, token=self.token or os.environ.get(TOKEN_VARIABLE))
        limits = Limits(memory_mb=self.memory_mb, processes=self.processes, open_files=1024, output_bytes=output_bytes)
        return SharedSandbox(require=require, limits=limits, preload=(), allow_host_network=may_use_host)
