"""The E2B sandboxes of a server: sessions with programs, files and code contexts, each of one client and for a time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import logging
import re
import secrets
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from aiohttp import web

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, gone, same
from toolgym.tools.sandbox.e2b.contexts import CodeContext, ProgramContext, SessionContext, language_of
from toolgym.tools.sandbox.e2b.file_agent import HOME, FileAgent
from toolgym.tools.sandbox.e2b.programs import E2bProgram
from toolgym.tools.sandbox.server.app import UNDO
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.session_table import SessionTable, TableSession

CLOSE_DEADLINE = 10.0
SWEEP = 0.2
"""Seconds between two looks for sandboxes whose time is over."""

MOST_CONTEXTS = 32

ENDED_KEPT = 32
"""Programs that have ended and can still be asked for their end."""

POINTS_KEPT = 720
"""Measurements of one sandbox that are kept."""

_SNAPSHOT = re.compile(r"snap[0-9a-f]{24}(:default)?\Z")
_log = logging.getLogger("toolgym.tools.sandbox.e2b")


class SandboxState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"


class OwnedSession(TableSession):
    """A session of the owner of an API key, which is never idle; `about` says how it was asked for."""

    idle_timeout = float("inf")

    def __init__(self, kind: str, owner: str, session: Session, about: Mapping[str, Any]) -> None:
        super().__init__(f"{kind}{secrets.token_hex(12)}", patience=FILE_DEADLINE, max_waiting=64)
        self.owner, self.session, self.about = owner, session, dict(about)

    @property
    def over(self) -> bool:
        return not self.session.alive

    async def close(self) -> None:
        await self.session.close()


class Snapshot(OwnedSession):
    """A fork that stands still, from which sandboxes are made; it outlives the one that it was made from."""

    def __init__(self, origin: E2bSandbox, session: Session, names: list[str]) -> None:
        super().__init__("snap", origin.owner, session, origin.about)
        self.origin, self.names = origin.name, names


class E2bSandbox(OwnedSession):
    """A sandbox of the owner of an API key, until `ends` (seconds since 1970). `token` lets a client use it."""

    def __init__(self, owner: str, session: Session, about: Mapping[str, Any], seconds: float) -> None:
        super().__init__("i", owner, session, about)
        self.token = f"{self.name}-{secrets.token_hex(20)}" if about["secure"] else None
        self.state = SandboxState.RUNNING
        self.started = time.time()
        self.seconds, self.ends = seconds, self.started + seconds
        self.files = FileAgent(session)
        self.programs: dict[int, E2bProgram] = {}
        self.contexts: dict[str, CodeContext] = {}
        self.measured = (0, self.started)
        """Milliseconds that its programs had computed, and when that was."""
        self.points: deque[dict[str, Any]] = deque(maxlen=POINTS_KEPT)
        self.interrupted = asyncio.Event()
        """Set when it is paused or ends: cells under way are cut, and other streams when it has `ended`."""
        self.ended = asyncio.Event()

    @property
    def over(self) -> bool:
        return super().over or (self._is_due and not self.about["autoPause"])

    async def pause_if_due(self) -> None:
        if self._is_due and self.about["autoPause"]:
            await self.pause()

    @property
    def _is_due(self) -> bool:
        return self.state is SandboxState.RUNNING and time.time() >= self.ends

    @property
    def env(self) -> Mapping[str, str]:
        """Variables of each of its programs."""
        known = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": self.name, "E2B_TEMPLATE_ID": str(self.about["templateID"])}
        return {"HOME": HOME, "USER": "user", "LOGNAME": "user", **known, **self.about["envVars"]}

    def prolong(self, seconds: float, *, shorten: bool = False) -> None:
        ends = time.time() + seconds
        self.ends = ends if shorten else max(ends, self.ends)

    def check_running(self) -> None:
        """Raise E2bRefusedError (502) unless it runs."""
        if self.closed or self.state is not SandboxState.RUNNING or not self.session.alive:
            raise gone(self.name)

    def add(self, program: E2bProgram) -> None:
        """Keep a program by its id; those that ended first are forgotten."""
        self.programs[program.pid] = program
        ended = [pid for pid, each in self.programs.items() if each.end is not None]
        for pid in ended[: max(0, len(ended) - ENDED_KEPT)]:
            del self.programs[pid]

    @property
    def running(self) -> list[E2bProgram]:
        return [program for program in self.programs.values() if program.end is None]

    def context(self, name: str) -> CodeContext:
        context = self.contexts.get(name)
        if context is None:
            raise E2bRefusedError("not_found", f"Context {name[:100]} not found")
        return context

    def default_context(self, name: str) -> CodeContext:
        """Return the default context of a language, which is made when it is needed."""
        language = language_of(name)
        known = (each for each in self.contexts.values() if each.is_default and each.language == language)
        context = next(known, None)
        if context is None:
            kind = SessionContext if language == "python" else ProgramContext
            context = kind(self.session, self.files, language, HOME, self.env, is_default=True)
            self.contexts[context.name] = context
        return context

    async def add_context(self, name: str, cwd: str, gate: Gate) -> CodeContext:
        """Start a further context of a language."""
        language = language_of(name)
        if len(self.contexts) >= MOST_CONTEXTS:
            raise E2bRefusedError("resource_exhausted", f"a sandbox has at most {MOST_CONTEXTS} contexts")
        context = ProgramContext(self.session, self.files, language, cwd, self.env)
        async with gate.slot():
            await context.restart()
        self.contexts[context.name] = context
        return context

    async def remove_context(self, name: str) -> None:
        context = self.context(name)
        del self.contexts[name]
        await context.close()

    async def pause(self) -> None:
        """Stop its programs and refuse calls; memory and files stay as they are."""
        self.state = SandboxState.PAUSED
        self._interrupt()
        await self._signal_all(signal.SIGSTOP)

    async def resume(self) -> None:
        """Let its programs go on, for as long as it was to live at first."""
        await self._signal_all(signal.SIGCONT)
        self.state = SandboxState.RUNNING
        self.prolong(self.seconds, shorten=True)

    async def close(self) -> None:
        self.ended.set()
        self._interrupt()
        programs, self.programs = self.programs, {}
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                await asyncio.gather(*(program.close() for program in programs.values()))
                for context in [*self.contexts.values()]:
                    await context.close()
                await super().close()
        except TimeoutError:
            raise SandboxError(f"it did not close within {CLOSE_DEADLINE:g} s") from None

    def _interrupt(self) -> None:
        self.interrupted.set()
        self.interrupted = asyncio.Event()

    async def _signal_all(self, number: int) -> None:
        for program in self.running:
            with contextlib.suppress(SandboxError, E2bRefusedError):
                await program.signal(number)


Kept = TypeVar("Kept", bound=OwnedSession)
Box = TypeVar("Box", bound=E2bSandbox)


class Sandboxes(Generic[Box]):
    """All sandboxes (of the class `kind`) and snapshots of a server, which take places of one table."""

    def __init__(self, kind: type[Box], sandbox: Sandbox, gate: Gate, limit: int, max_seconds: float) -> None:
        self.gate, self.max_seconds = gate, max_seconds
        self._kind, self._sandbox = kind, sandbox
        self._table = SessionTable[OwnedSession](limit, 4 * SWEEP)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, about: Mapping[str, Any]) -> None:
        """Make a sandbox once, so that the first client does not wait for the libraries, and begin to end old ones."""
        await (await self._open(about)).close()
        self._table.start()
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._table.close()

    def __len__(self) -> int:
        return len(self._table)

    # ------------------------------------------------------------------ looking them up

    def of(self, owner: str) -> list[Box]:
        """Return the sandboxes of an owner, the newest first."""
        boxes = [item for item in self._table if isinstance(item, self._kind) and same(item.owner, owner)]
        return sorted(boxes, key=lambda box: -box.started)

    def snapshots_of(self, owner: str) -> list[Snapshot]:
        return [item for item in self._table if isinstance(item, Snapshot) and same(item.owner, owner)]

    def get(self, owner: str, name: str) -> Box:
        """Return a sandbox of that owner. Raises E2bRefusedError; another's is as good as none."""
        box = self.find(name)
        if box is None or not same(box.owner, owner):
            message = f"sandbox \"{name[:100]}\" doesn't exist or you don't have access to it"
            raise E2bRefusedError("not_found", message)
        return box

    def find(self, name: str) -> Box | None:
        """Return the sandbox of a name, of any client."""
        item = self._table.find(name) if name in self._table else None
        return item if isinstance(item, self._kind) else None

    def signed(self, fits: Callable[[str], bool]) -> Box | None:
        """Return the sandbox whose token makes a signature fit."""
        boxes = (item for item in self._table if isinstance(item, self._kind) and item.token is not None)
        return next((box for box in boxes if fits(box.token or "")), None)

    # ------------------------------------------------------------------ making and ending them

    def lifetime(self, seconds: Any) -> float:
        """Return the seconds that a client wants a sandbox to live. Raises E2bRefusedError."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1e9:
            raise E2bRefusedError("invalid_argument", f"timeout should be seconds, 0 or more, got {seconds!r}")
        if seconds > self.max_seconds:
            most = f"timeout is at most {self.max_seconds:g} s here (setting max_timeout), got {seconds:g}"
            raise E2bRefusedError("invalid_argument", most)
        return float(seconds)

    async def create(self, owner: str, about: Mapping[str, Any], seconds: float) -> Box:
        """Make a sandbox, from a snapshot if the template is one."""
        template = str(about["templateID"])
        snapshot = self._snapshot(owner, template)
        if snapshot is None and _SNAPSHOT.match(template):
            raise E2bRefusedError("not_found", f"there is no snapshot {template[:100]!r}, or it is not yours")
        async with self._opening():
            session = await (self._open(about) if snapshot is None else snapshot.session.fork())
        return self._add(self._kind(owner, session, about, seconds))

    async def fork(self, origin: Box, count: int, seconds: float) -> list[Box]:
        """Make sandboxes in the same state: the files, and the default context's variables."""
        async with self._opening(count):
            sessions = await origin.session.fork(n=count)
        return [self._add(self._kind(origin.owner, session, origin.about, seconds)) for session in sessions]

    async def snapshot(self, origin: Box, names: list[str]) -> Snapshot:
        async with self._opening():
            session = await origin.session.fork()
        return self._add(Snapshot(origin, session, names))

    async def delete_snapshot(self, owner: str, name: str) -> None:
        snapshot = self._snapshot(owner, name)
        if snapshot is None:
            raise E2bRefusedError("not_found", f"there is no snapshot {name[:100]!r}, or it is not yours")
        await self._table.discard(snapshot.name)

    async def kill(self, *items: OwnedSession) -> None:
        for item in items:
            await self._table.discard(item.name)

    def made(self, response: web.Response, *items: OwnedSession) -> web.Response:
        """Make the answer with new items end them, if its client disconnects before it gets it."""
        response[UNDO] = partial(self.kill, *items)
        return response

    async def _open(self, about: Mapping[str, Any]) -> Session:
        options: dict[str, Any] = {name: about.get(name) for name in ("network", "image", "memory_mb")}
        folders = (HOME, *about.get("folders", ()))
        return await self._sandbox.session(folders=folders, env={"HOME": HOME}, **options)

    def _add(self, kept: Kept) -> Kept:
        self._table.add(kept)
        return kept

    def _snapshot(self, owner: str, name: str) -> Snapshot | None:
        wanted = {name, f"{name}:default"}
        kept = (kept for kept in self.snapshots_of(owner) if wanted & {kept.name, f"{kept.name}:default", *kept.names})
        return next(kept, None)

    @contextlib.asynccontextmanager
    async def _opening(self, count: int = 1) -> AsyncIterator[None]:
        """Hold a slot, and places for so many sessions, which are added right after the block."""
        with self._table.room(count):
            async with self.gate.slot(), asyncio.timeout(FILE_DEADLINE):
                yield

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            boxes = [item for item in self._table if isinstance(item, E2bSandbox)]
            ends = await asyncio.gather(*(box.pause_if_due() for box in boxes), return_exceptions=True)
            for box, failure in zip(boxes, ends, strict=True):
                if isinstance(failure, Exception):  # the others are looked at all the same
                    _log.error("sandbox %s could not be paused", box.name[:8], exc_info=failure)


def stamp(seconds: float) -> str:
    """Return a time as E2B writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
