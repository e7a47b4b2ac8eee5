"""`LocalSandbox`: fast and isolated execution on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxClosedError,
    SandboxUnavailableError,
    SandboxUnsupportedError,
)
from toolgym.tools.keywords import named_keywords
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits, Sandbox
from toolgym.tools.sandbox.facts import ProcessRule, SandboxFacts, probe_python
from toolgym.tools.sandbox.local.host import languages
from toolgym.tools.sandbox.local.host.cpu_slots import COMPUTING_EACH, CpuSlots, most_executions
from toolgym.tools.sandbox.local.host.isolation import Isolation, Level, choose
from toolgym.tools.sandbox.local.host.packages import check
from toolgym.tools.sandbox.local.host.resources import available_processors, check_room, reported_processors
from toolgym.tools.sandbox.local.host.session import START_SESSION, LocalSession, OpenSessions, SessionUser, printed
from toolgym.tools.sandbox.local.host.stack_dumps import with_stack
from toolgym.tools.sandbox.local.host.template_pool import (
    MOST_TEMPLATES,
    Preload,
    TemplatePool,
    absolute,
    enterable,
    world,
)
from toolgym.tools.sandbox.local.host.template_process import GRACE, TemplateLostError, runtime_paths
from toolgym.tools.sandbox.local.host.toolchains import Toolchains
from toolgym.tools.sandbox.local.images.archive import ImageInfo
from toolgym.tools.sandbox.local.images.cache import Images
from toolgym.tools.sandbox.local.kernel import jail
from toolgym.tools.sandbox.local.protocol import messages
from toolgym.tools.sandbox.local.protocol.capture import FLOOD_FACTOR
from toolgym.tools.sandbox.names import OptionError, check_folders, fetchable, not_fetched, unused_stem
from toolgym.tools.sandbox.options import Network, RunRequest, SessionRequest

PRELOAD = ("numpy", "sympy", "pandas", "scipy", "matplotlib.pyplot")
"""Modules of the full template that are installed."""

PYTHON_SOURCE = "{main}.py"

TRIES = 5
"""Most times that a run is sent if its template process is lost under it: three are too few once in 30,000 executions
if seven processes a second are killed at random."""

TOGETHER = 2
"""Tries beside other programs, which may have caused the loss. The others are in a template process without another
program: a run that is lost there too ended it itself."""

MOST_POOLS, MOST_IMAGES = 8, 64
"""Sets of template processes for sessions with other limits, networks or folders; and with images, whose templates
load no libraries. An idle one makes room for more."""


class _Kind(NamedTuple):
    """Arguments of `TemplatePool` that sessions of the same template processes share."""

    limits: Limits
    network: Network
    folders: tuple[str, ...]
    image: str = ""


_PROCESSES: Mapping[Level, ProcessRule] = {Level.NAMESPACES: "all", Level.UID: "no pools", Level.LANDLOCK: "none"}

_NO_LOOPBACK = "network='loopback' needs the level 'namespaces', and this is {!r}"


class LocalSandbox(Sandbox):
    """Runs code in confined children of template processes.

    A *template process* has the interpreter and the scientific libraries loaded, and forks a child for each call, which
    takes milliseconds. Code that names no library gets a bare template, other code a full one; a wrong guess only costs
    the import. Templates that die are replaced, and their requests are sent again.

    `async with` starts and closes it. It belongs to the event loop that uses it first; for several see `SharedSandbox`.

    Args:
        require: weakest isolation level that is acceptable, see `Level`. Default: the strongest of the machine.
        level: exactly this level.
        limits: limits of one execution or session.
        network: `off`, `loopback` (a network of its own), or `host`.
        allow_host_network: whether a session may ask for the network `host` if the sandbox has another.
        preload: modules of the full template, or a `Preload` that also says what happens if they cannot be loaded.
            Without one, those are left out with a line in the log.
        python: interpreter to run programs with, as a path or a name in PATH. Default: this one.
        packages: a folder with packages for programs, readable for all; see `docs/sandboxfusion.md`.
        max_running: executions and cells at once, those that sleep included; `"unlimited"` for a caller with a limit.
            Default: 32 per processor, and no more than fit into half of the memory (of the machine, or of this
            process's control groups), with an eighth of `limits.memory_mb` each.
        max_computing: executions that may compute at once. Default: four per processor.
        templates: most template processes of each kind; another starts when all have `CROWDED` requests each, or
            `SESSIONS_EACH` times as many sessions. Default: one per two processors, at most `MOST_TEMPLATES`.
        warm: children that each template keeps ready.

    Raises SandboxUnavailableError if the machine cannot give the level, and ConfigError.
    """

    @named_keywords
    def __init__(
        self,
        *,
        require: str | None = None,
        level: str | None = None,
        limits: Limits | None = None,
        network: Network = "off",
        allow_host_network: bool = False,
        preload: Sequence[str] | Preload = PRELOAD,
        python: str | None = None,
        packages: str | None = None,
        max_running: int | Literal["unlimited"] | None = None,
        max_computing: int | None = None,
        templates: int | None = None,
        warm: int = 2,
    ) -> None:
        if network not in ("off", "loopback", "host"):
            raise ConfigError(f"network must be 'off', 'loopback' or 'host', got {network!r}")
        self.limits = limits or Limits()
        self.level = choose(require, level)
        if not self._has_network(network):
            raise SandboxUnavailableError(_NO_LOOPBACK.format(self.level.value))
        self._network: Network = network
        self._may_use_host = allow_host_network or network == "host"
        self._python = absolute(python) if python else sys.executable
        self._packages = None if packages is None else check(packages)
        if self.level is Level.UID:
            self.level = enterable(self._python, level, require)
        cores = available_processors()
        self._make_pool = functools.partial(
            TemplatePool,
            level=self.level,
            python=self._python,
            preload=preload if isinstance(preload, Preload) else Preload(preload),
            packages=self._packages,
            count=templates or max(1, min(MOST_TEMPLATES, cores // 2)),
            warm=max(0, warm),
        )
        self._templates = self._make_pool(network=network, limits=self.limits, folders=())
        self._others: dict[_Kind, TemplatePool] = {}
        self._images = Images()
        self._apart = self._make_pool(network=network, limits=self.limits, folders=(), count=1, warm=0)
        self._apart_lock = asyncio.Lock()
        computing = COMPUTING_EACH * cores if max_computing is None else max_computing
        if max_running is None:
            max_running = max(computing, most_executions(self.limits, cores))
        most = None if max_running == "unlimited" else max_running
        self.cpu_slots = CpuSlots(most, computing, self._look, self._loop)
        self._sessions = OpenSessions(self.cpu_slots, self.level)
        self.toolchains = Toolchains(self.execute)

    @property
    def isolation(self) -> Isolation:
        """The isolation in force. Raises SandboxUnavailableError before a template has started; see `start`."""
        isolation = self._templates.isolation
        if isolation is None:
            raise SandboxUnavailableError(
                "the isolation is known once the sandbox has started; call `await sandbox.start()` first"
            )
        return isolation

    @property
    def facts(self) -> SandboxFacts:
        return SandboxFacts(self._network, self.limits, *probe_python(self._python), _PROCESSES[self.level])

    @property
    def python(self) -> str:
        """Path of the interpreter that runs programs."""
        return self._python

    @property
    def packages(self) -> str | None:
        """The folder with packages for programs, if there is one."""
        return self._packages

    @property
    def template_ids(self) -> list[int]:
        """Process ids of the template processes that run."""
        return [pid for pool in self._pools for pid in pool.process_ids]

    @property
    def open_sessions(self) -> int:
        """Number of open sessions, checkpoints included."""
        return len(self._sessions)

    async def start(self, *, full: bool = False) -> None:
        """Start a bare template, and with `full` one with the preloaded modules. Raises SandboxUnavailableError."""
        await self._templates.start(full=full)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # `async with` closes only what was entered
            await self.close()
            raise
        return self

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run a program. Raises SandboxUnavailableError if it failed because its language does not work here."""
        language = languages.find(request.language, self._python)
        check_room(self.limits, request.files, code=request.code, stdin=request.stdin)
        names, refused = fetchable(request.fetch_files, absolute=True)
        memory = request.memory_mb if request.memory_mb is not None else self.limits.memory_mb
        message: messages.RunMessage = {
            "op": "run",
            "code": request.code,
            "source": f"{unused_stem([PYTHON_SOURCE], request.files)}.py",
            "timeout": request.timeout,
            "memory_mb": memory,
            "cpu_seconds": self.limits.cpu_seconds,
            "output_bytes": max(request.output_bytes or 0, self.limits.output_bytes),
            "stdin": request.stdin,
            "files": _bytes(request.files),
            "fetch": names,
            "env": dict(request.env),
        }
        patience = request.timeout + GRACE
        if language is not None:
            if not language.possible(self.level):
                raise ConfigError(
                    f"language {request.language!r} cannot run at the level {self.level.value!r}, which allows "
                    + ("no more than one process" if self.level is Level.LANDLOCK else "no look into /proc")
                )
            reported = reported_processors(self.limits)
            program = language.request(request.code, memory, self.level, reported, request.files, self._packages)
            compile_timeout = request.compile_timeout or request.timeout
            environment = {**program["env"], **request.env}
            message = {**message, **program, "env": environment, "compile_timeout": compile_timeout}
            patience += compile_timeout
            if language.name == "pytest":
                message["argv"] = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", program["source"]]
        answer: Mapping[str, Any] | None = None
        async with self.cpu_slots.permit() as slot:
            for tried in range(TRIES):
                apart = tried >= TOGETHER
                pool = self._apart if apart else self._templates
                async with self._apart_lock if apart else contextlib.nullcontext():
                    template = await pool.for_code(request.code if language is None else "")
                    try:
                        answer = await template.request(message, patience=patience, slot=slot)
                    except TemplateLostError:
                        continue
                break
        if answer is None:
            alone = TRIES - TOGETHER
            why = f"it ended its template process {TRIES} times, {alone} of them with no other program beside it"
            return ExecutionResult(ExecutionStatus.KILLED, message=why)
        limits = replace(self.limits, memory_mb=memory, output_bytes=message["output_bytes"])
        result = _execution_result(answer, refused, limits)
        if language is None:
            return with_stack(result, message["source"], request.code)
        await self.toolchains.blame(request, result)
        return result

    async def open_session(self, request: SessionRequest, user: SessionUser | None = None) -> LocalSession:
        """Open a session. With `hint`, code that names no preloaded module gets a bare template, sooner."""
        asked = {name: getattr(request, name) for name in ("file_mb", "disk_mb", "inodes")}
        limits = replace(self.limits, **{name: value for name, value in asked.items() if value is not None})
        check_room(limits, request.files)
        name = uuid.uuid4().hex
        message: messages.OpenMessage = {
            "op": "open",
            "session": name,
            "files": _bytes(request.files),
            "env": dict(request.env),
            "memory_mb": request.memory_mb if request.memory_mb is not None else self.limits.memory_mb,
            "timeout": START_SESSION,
            "recover": bool(request.recover),
            "pause": request.idle != "run",
        }
        kind = _Kind(limits, request.network or self._network, check_folders(request.folders))
        if request.image is not None:
            image = await self._image(request.image)
            about = {"env": dict(image.env), "workdir": image.workdir, "folders": [*kind.folders]}
            message["image"] = about
            kind = kind._replace(folders=(), image=image.root)
        await self._check_kind(kind)
        why = ""
        for _ in range(TRIES):
            pool = await self._pool(kind)
            template = await pool.for_code(request.hint or "" if kind.image else request.hint)
            try:
                answer = await template.request(message, patience=START_SESSION + GRACE)
            except TemplateLostError:
                why = "the template process was lost"
                continue
            except asyncio.CancelledError:
                template.send(messages.CloseMessage(op="close", session=name))  # it may have been open already
                raise
            if answer["status"] == "ok":
                limits = replace(limits, memory_mb=message["memory_mb"])
                return LocalSession(self._sessions, template, name, limits, user)
            why = answer.get("message") or answer["status"]
        raise SandboxUnavailableError(f"a session cannot be opened: {why}")

    async def _image(self, reference: str) -> ImageInfo:
        if self.level is not Level.NAMESPACES:
            raise SandboxUnsupportedError(
                f"an image as a session's root needs the level 'namespaces', and this is {self.level.value!r}"
            )
        return await in_thread(self._images.open, reference)

    async def close(self) -> None:
        self._sessions.clear()
        await self.cpu_slots.close()
        # Half closed, it would leave processes unreaped and folders behind.
        await shielded(asyncio.gather(*(pool.close() for pool in self._pools)))
        self._images.close()

    @property
    def _pools(self) -> list[TemplatePool]:
        return [self._templates, self._apart, *self._others.values()]

    async def _look(self) -> float:
        return sum(await asyncio.gather(*(pool.look() for pool in self._pools)))

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return next((pool.loop for pool in self._pools if pool.loop is not None), None)

    async def _check_kind(self, kind: _Kind) -> None:
        """Raise SandboxUnsupportedError or OptionError if sessions of a kind cannot be here."""
        if kind.network == "host" and not self._may_use_host:
            raise SandboxUnsupportedError(
                "the network 'host' is not allowed to sessions here: make the sandbox with allow_host_network=True"
            )
        if not self._has_network(kind.network):
            raise SandboxUnsupportedError(_NO_LOOPBACK.format(self.level.value))
        if kind.folders and self.level is not Level.NAMESPACES:
            raise SandboxUnsupportedError(
                f"folders of a session with absolute names, such as {kind.folders[0]!r}, need the level 'namespaces', "
                f"and this is {self.level.value!r}: elsewhere its world is the machine's own"
            )
        runtime = await in_thread(runtime_paths, self._python) if kind.folders else ()
        for folder in kind.folders:
            part = jail.part_of_world(folder, world(runtime, self._packages))
            if part is not None:
                raise OptionError(
                    f"the folder {folder!r} cannot be made for a session: {part!r} is part of its world already; take "
                    "another name",
                    "folders",
                )

    async def _pool(self, kind: _Kind) -> TemplatePool:
        """Return the templates of a kind of sessions. Raises SandboxBusyError if there are too many other kinds."""
        if kind == _Kind(self.limits, self._network, ()):
            return self._templates
        pool = self._others.get(kind)
        if pool is None:
            if len(self._others) >= (MOST_IMAGES if kind.image else MOST_POOLS):
                await self._drop_idle_pool()
            if self._templates.closed:
                raise SandboxClosedError("the sandbox is closed")
            pool = self._others.setdefault(kind, self._make_pool(**kind._asdict()))
        return pool

    async def _drop_idle_pool(self) -> None:
        for key, pool in self._others.items():
            if pool.idle:
                del self._others[key]
                await shielded(pool.close())
                return
        raise SandboxBusyError(
            f"{len(self._others)} kinds of sessions, with limits, networks, folders or images of their own, are open"
        )

    def _has_network(self, network: Network) -> bool:
        return network != "loopback" or self.level is Level.NAMESPACES


def _bytes(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: bytes(data) for name, data in files.items()}


def _execution_result(answer: Mapping[str, Any], refused: Sequence[str], limits: Limits) -> ExecutionResult:
    """Return the result in an answer. `refused` are the reasons against names of files that were not asked for, and
    `limits` those in force."""
    status = ExecutionStatus(answer["status"])
    ended_itself = status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED)
    compiled = answer.get("compiled")
    compilation = None
    if compiled is not None:
        end = ExecutionStatus.OK if compiled["status"] == 0 else ExecutionStatus.ERROR
        compilation = ExecutionResult(end, return_code=compiled["status"], **printed(compiled))
    if status is ExecutionStatus.COMPILE_ERROR and compilation is not None:
        return replace(compilation, status=status, compile=compilation)
    left_out = [*refused, *answer.get("left_out", ())]
    files, data, at = {}, answer.get("raw", b""), 0
    for name, size in answer.get("files") or ():
        files[name] = data[at : at + size]
        at += size
    return ExecutionResult(
        status=status,
        **printed(answer),
        return_code=answer.get("code") if ended_itself else None,
        message="; ".join(text for text in (str(answer.get("message", "")), not_fetched(left_out)) if text),
        limit=limits.exceeded(status, flood_factor=FLOOD_FACTOR),
        cpu_seconds=answer.get("cpu"),
        memory_bytes=answer.get("rss"),
        files=files,
        compile=compilation,
    )
