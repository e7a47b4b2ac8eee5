"""The sandbox server's settings, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Literal

import pydantic
from pydantic import Field, PositiveInt

from toolgym.tools.errors import nearest
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local.host.cpu_slots import COMPUTING_EACH, most_executions
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.local.host.packages import check
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.sandbox.local.host.sandbox import PRELOAD, LocalSandbox
from toolgym.tools.sandbox.local.host.template_pool import OnPreloadError, Preload, absolute
from toolgym.tools.sandbox.options import Network
from toolgym.tools.serving.config import ServerSpec, ServingConfig, StrictSettings, flag


class LimitsConfig(StrictSettings):
    """`toolgym.tools.sandbox.base.Limits`, as a file gives them."""

    memory_mb: PositiveInt = 1024
    cpu_seconds: Annotated[pydantic.FiniteFloat, Field(gt=0)] | None = None
    processes: PositiveInt = 64
    cores: Annotated[pydantic.FiniteFloat, Field(gt=0)] | None = None
    file_mb: PositiveInt = 64
    disk_mb: PositiveInt = 128
    inodes: PositiveInt = 4096
    open_files: PositiveInt = 256
    output_bytes: PositiveInt = 1024 * 1024


LimitsConfig.__doc__ = Limits.__doc__  # the meanings of its settings are written there


class ServerConfig(ServingConfig):
    """Settings of the sandbox server: those of every server (`ServingConfig`), and its own.

    Attributes:
        workers: processes that share the port. Default: one per four processors.
        max_concurrency: programs and cells at once, those that sleep included, all workers together. Default: 32 per
            processor, and no more than fit into half of the memory with 128 MiB each.
        max_computing: most of them that may compute, all workers together. One that sleeps or waits lends its place.
            Default: 4 per processor.
        max_sessions: sessions that are open at once, all workers together; more are refused (429). Each worker has its
            share of them, and a fork lives where its parent does.
        session_idle_timeout: seconds without a call after which a session is closed.
        files_limit_mb: MiB of fetched files in one answer; the message names those that do not fit.
        max_timeout: most seconds that a request may ask for.
        max_memory_mb: most MiB that a request may ask for.
        max_disk_mb: most MiB of files, and of one file, that a session may ask for.
        max_inodes: most files and folders that a session may ask for.
        isolation: weakest acceptable isolation: `namespaces`, `uid` or `landlock`; None: the strongest that there is.
        network: network of programs: `off`, `loopback` (their own) or `host`.
        max_network: the widest network that a session may ask for, `loopback` or `host`.
        limits: limits of one execution or session.
        preload: modules that the full template process has loaded.
        on_preload_error: `fail`, `warn` or `ignore`, if one of them cannot be loaded; see `LocalSandbox`.
        python: interpreter that runs Python programs; None: the server's.
        packages: a folder with packages for programs, a subfolder for each language; None: there is none.
        languages: offered languages; None: all that are installed.
        playground: `served`: there is a page to try it on, at /playground; or `none`.
    """

    spec = ServerSpec(
        command="sandbox",
        name="sandbox server",
        worker="toolgym.tools.sandbox.server.worker",
    )

    workers: int = flag(default_factory=lambda: max(1, available_processors() // 4), ge=1, le=256)
    max_concurrency: int = flag(default_factory=lambda: most_executions(Limits(), available_processors()), ge=1)
    max_computing: int = flag(default_factory=lambda: COMPUTING_EACH * available_processors(), ge=1)
    max_queue: int = flag(4096, ge=0)
    max_sessions: int = flag(1024, ge=0)
    session_idle_timeout: pydantic.FiniteFloat = flag(1800.0, gt=0)
    files_limit_mb: pydantic.FiniteFloat = Field(64.0, gt=0)
    max_timeout: pydantic.FiniteFloat = Field(3600.0, gt=0)
    max_memory_mb: int = Field(4096, gt=0)
    max_disk_mb: int = Field(2048, gt=0)
    max_inodes: int = Field(200_000, gt=0)
    isolation: Level | None = flag(None)
    network: Network = flag("off")
    max_network: Literal["loopback", "host"] = "loopback"
    limits: LimitsConfig = LimitsConfig()
    preload: tuple[str, ...] = PRELOAD
    on_preload_error: OnPreloadError = "warn"
    python: str | None = None
    packages: str | None = None
    languages: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    playground: Literal["served", "none"] = flag("served")

    @pydantic.field_validator("python")
    @classmethod
    def _existing_interpreter(cls, python: str | None) -> str | None:
        if python is not None and shutil.which(python) is None:
            raise ValueError("there is no such program; give the path of a Python interpreter")
        return python

    @pydantic.field_validator("packages")
    @classmethod
    def _existing_folder(cls, folder: str | None) -> str | None:
        return None if folder is None else check(folder)

    @pydantic.field_validator("languages")
    @classmethod
    def _known_languages(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = ["python", *LANGUAGES]
        for name in names or ():
            if name not in known:
                raise ValueError(f"unknown language {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}.")
        return names

    def sandbox(self) -> LocalSandbox:
        """Make the sandbox of one worker. The server's `Gate` bounds its executions."""
        return LocalSandbox(
            require=self.isolation,
            limits=Limits(**self.limits.model_dump()),
            network=self.network,
            allow_host_network=self.max_network == "host",
            preload=Preload(self.preload, self.on_preload_error),
            python=self.python,
            packages=self.packages,
            max_running="unlimited",
            max_computing=self.share(self.max_computing),
            templates=max(1, available_processors() // 2 // self.workers),
        )

    def offered_languages(self, level: Level) -> frozenset[str]:
        """Return the languages of this server that are installed, and possible at that isolation level."""
        python = absolute(self.python) if self.python else sys.executable
        able = {name for name, language in LANGUAGES.items() if language.possible(level) and not language.lacks(python)}
        able.add("python")
        return frozenset(able if self.languages is None else able & set(self.languages))
