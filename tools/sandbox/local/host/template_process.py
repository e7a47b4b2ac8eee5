"""`TemplateProcess`: the host's handle on one template process. It starts the process, sends requests, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import json
import logging
import resource
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from toolgym.tools.concurrency.rate_limit import running_loop
from toolgym.tools.errors import SandboxUnavailableError
from toolgym.tools.sandbox.local.host.cpu_slots import CpuSlot
from toolgym.tools.sandbox.local.kernel import syscalls, users
from toolgym.tools.sandbox.local.kernel.cgroup import ControlGroup
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.messages import CancelMessage, HostMessage, LookMessage

START_TIMEOUT = 120.0
"""Seconds that a template may take to load its libraries."""

PATIENCE = 3.0
"""Seconds that a template may take to end by itself before it is killed."""

END_TIMEOUT = 5.0

GRACE = 10.0

MIN_DESCRIPTORS = 100
"""Open files that a template process must be allowed, for itself and its first children."""

FOLDER = str(Path(__file__).parents[1])
JUST_THIS_FOLDER = """
import sys, types
for name in ("toolgym", "toolgym.tools", "toolgym.tools.sandbox", "toolgym.tools.sandbox.local"):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1]] if name.endswith("local") else []
    sys.modules[name] = module
"""
"""Makes the modules of `FOLDER`, the first argument, known to a Python that may have no toolgym."""

_BOOT = f"""import sys
sys.path.remove("")
{JUST_THIS_FOLDER}
import json
from toolgym.tools.sandbox.local.broker import startup
startup.main(json.loads(sys.argv[2]))
"""


_log = logging.getLogger("toolgym.tools.sandbox")


class TemplateLostError(Exception):
    """The template process is gone, or does not answer; the request may be sent to another one."""


class TemplateProcess:
    """Owns one template process, for the event loop that starts it; `config` is that of `startup.main`.

    `request` and `send` write on any loop and in any thread; the process's own loop reads and hands over the answers.
    `sessions` counts the open sessions that live in it.
    """

    def __init__(
        self, python: str, config: Mapping[str, Any], make_group: Callable[[], ControlGroup] | None = None
    ) -> None:
        self._python, self._config, self._make_group = python, dict(config), make_group
        self._group: ControlGroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._line: _Line | None = None
        self._first: asyncio.Future[dict[str, Any]] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._slots: dict[int, CpuSlot] = {}
        self._pieces: dict[int, list[bytes]] = {}
        self._outbox: Outbox | None = None
        self._mailboxes: dict[asyncio.AbstractEventLoop, list[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self.layers: dict[str, Any] = {}
        self.pid = 0
        self.answered = 0
        self.sessions = 0
        self._closing = False

    @property
    def alive(self) -> bool:
        return self._first is None and self._line is not None and not self._line.lost.done()

    @property
    def busy(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises SandboxUnavailableError."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the template raises its own to that
        if 0 <= allowed < MIN_DESCRIPTORS:
            raise SandboxUnavailableError(
                f"the sandbox's template process needs at least {MIN_DESCRIPTORS} open files, and {allowed} are "
                "allowed here; raise the hard limit (`ulimit -Hn 4096` before starting, LimitNOFILE=4096 for systemd, "
                "`--ulimit nofile=4096` for docker)"
            )
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxUnavailableError(f"the sandbox's template process cannot start: {error}") from error
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            passed, group = [theirs.fileno()], None
            if self._make_group is not None:
                self._group = self._make_group()
                group = self._group.open()
                passed += self._group.descriptors
            config = json.dumps({**self._config, "socket": theirs.fileno(), "cgroup": group})
            # Not asyncio's own: its watcher and its transport race to reap a process that is killed.
            self._words = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
            self._process = subprocess.Popen(  # noqa: ASYNC220  takes about a millisecond
                [self._python, "-s", "-c", _BOOT, FOLDER, config],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                pass_fds=passed,
                env={"LANG": "C.UTF-8", **syscalls.library_path()},
                cwd="/",
                start_new_session=True,
            )
            theirs.close()
            if self._group is not None:
                self._group.close()
            self.pid = self._process.pid
            loop = asyncio.get_running_loop()
            self._first = loop.create_future()
            self._outbox = Outbox(ours.dup(), loop)
            _, self._line = await loop.create_connection(lambda: _Line(self), sock=ours)
            async with asyncio.timeout(START_TIMEOUT):
                first = await self._first
            if "refused" in first:
                raise SandboxUnavailableError(f"the sandbox's template process cannot start: {first['refused']}")
            self.layers = first["layers"]
            self._first = None
        except BaseException as error:
            theirs.close()
            if self._first is not None:
                self._first.cancel()
            if self._line is None:
                ours.close()
                if self._outbox is not None:
                    self._outbox.close()
            await asyncio.shield(self.close())
            if isinstance(error, OSError | TimeoutError):
                raise SandboxUnavailableError(f"the sandbox's template process cannot start: {error}") from error
            raise

    def _last_words(self) -> str:
        if self._words is None or self._words.closed:
            return ""
        self._words.seek(0)
        return self._words.read().decode("utf-8", "replace").strip()[-2000:]

    async def request(
        self, message: HostMessage, *, patience: float, settle: float = 0.0, slot: CpuSlot | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its answer. Cancelling gives the request up in the template too.

        Bytes that came ahead of the answer are under `raw`. After `patience` seconds the template counts as stuck and
        is killed; a cancelled call waits `settle` seconds until the template has given up. Raises TemplateLostError.
        """
        if not self.alive or self._outbox is None:
            raise TemplateLostError
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting[number] = future
        overdue = loop.call_later(patience, self._on_overdue, future)
        if slot is not None:
            self._slots[number] = slot
        try:
            message["id"] = number
            self._outbox.write_soon(b"".join(frames.encode_request(number, message)))
            if not self.alive:  # it was lost: nothing fails this future any more
                raise TemplateLostError
            return await future
        except asyncio.CancelledError:
            if self.alive and future.cancelled():
                cancel: CancelMessage = {"op": "cancel", "of": number}
                self._outbox.write(frames.encode(cancel))
                if settle:
                    future = self._waiting[number] = loop.create_future()
                    await asyncio.wait({future}, timeout=settle)
            raise
        finally:
            overdue.cancel()
            self._waiting.pop(number, None)
            self._slots.pop(number, None)
            self._pieces.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not log it for a caller that has gone

    def _on_overdue(self, future: asyncio.Future[dict[str, Any]]) -> None:
        if not future.done():
            self.kill()
            _fail(future)

    async def look(self) -> float:
        """Tell the slot of each execution whether it sleeps. Returns the seconds of a processor that it took."""
        if not self._slots:
            return 0.0
        answer = await self.request(LookMessage(op="look"), patience=GRACE)
        asleep = frozenset(answer["asleep"])
        for number, slot in [*self._slots.items()]:  # sessions of other loops may come and go
            slot.note(asleep=number in asleep)
        return float(answer["seconds"])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        self._closing = True
        if self._line is not None:
            self._line.transport.abort()  # then the process ends its children and itself
            await asyncio.wait({self._line.lost}, timeout=END_TIMEOUT)
        if self._process is not None:
            # No threads here: at the end of the interpreter none can be started.
            patience = time.monotonic() + (PATIENCE if self._line is not None else 0.0)
            deadline = patience + END_TIMEOUT
            while self._process.poll() is None and time.monotonic() < deadline:
                if time.monotonic() >= patience:
                    self.kill()
                await asyncio.sleep(0.005)
        if self._process is not None and self._config["level"] == "uid":
            # Its children's processes run as other users; a template that was killed could not end them.
            users.end_orphans(self._config["first_uid"], END_TIMEOUT)
        if self._group is not None:
            for wait in self._group.removal():
                await asyncio.sleep(wait)
        if self._words is not None and not self._words.closed:
            words = self._last_words()
            self._words.close()
            if words:
                _log.warning("a template process said: %s", words)
        self._fail_waiting()

    def send(self, message: HostMessage) -> None:
        """Send a request without waiting for its answer."""
        if self.alive and self._outbox is not None:
            message["id"] = next(self._numbers)
            self._outbox.write(frames.encode(message))

    def on_message(self, message: dict[str, Any] | frames.DataChunk) -> None:
        if isinstance(message, frames.DataChunk):
            if message.number in self._waiting:
                self._pieces.setdefault(message.number, []).append(message.data)
            return
        if self._first is not None:
            if not self._first.done():
                self._first.set_result(message)
            return
        future = self._waiting.get(message.get("id", 0))
        if future is None:
            return
        pieces = self._pieces.pop(message["id"], None)
        if pieces is not None:
            message["raw"] = b"".join(pieces)
        self.answered += 1
        loop = future.get_loop()
        if self._outbox is not None and loop is self._outbox.loop:
            self._deliver([message])
        else:
            self._mailboxes.setdefault(loop, []).append(message)

    def on_read(self) -> None:
        """Hand over the answers for other loops, each of which is woken once."""
        mailboxes, self._mailboxes = self._mailboxes, {}
        for loop, messages in mailboxes.items():
            with contextlib.suppress(RuntimeError):  # it is closed, and nothing waits on it any more
                loop.call_soon_threadsafe(self._deliver, messages)

    def _deliver(self, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            future = self._waiting.get(message["id"])
            if future is not None and not future.done():
                future.set_result(message)

    def on_loss(self) -> None:
        if self._outbox is not None:
            self._outbox.close()
        if self._first is not None and not self._first.done():
            why = self._last_words() or "it said nothing"
            if f"[Errno {errno.EAGAIN}]" in why:
                why = syscalls.NO_PROCESS
            self._first.set_exception(
                SandboxUnavailableError(f"the sandbox's template process ended while starting: {why}")
            )
        if not self._closing:
            self.kill()
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        for future in [*self._waiting.values()]:
            loop = future.get_loop()
            if self._outbox is not None and loop is self._outbox.loop:
                _fail(future)
                continue
            with contextlib.suppress(RuntimeError):  # it is closed, and nothing waits on it any more
                loop.call_soon_threadsafe(_fail, future)


def _fail(future: asyncio.Future[dict[str, Any]]) -> None:
    if not future.done():
        future.set_exception(TemplateLostError())


class Outbox:
    """Sends bytes, in order, as soon as the socket takes them. The socket becomes this object's to close.

    All that an event loop writes in one turn can go out together: a system call each would let another thread have the
    interpreter's lock, and wake up the reader.
    """

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        end.setblocking(False)
        self.loop = loop
        self._socket, self._waiting = end, bytearray()
        self._turns: dict[asyncio.AbstractEventLoop, list[bytes]] = {}  # what each loop has written in its turn
        self._lock = threading.Lock()
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send bytes. Those for a socket that is closed are dropped: its reader tells of the loss."""
        loop = running_loop() if self._turns else None
        if loop is not None and loop in self._turns:  # behind what the loop has written before
            self._turns[loop].append(data)
        else:
            self._write(data)

    def write_soon(self, data: bytes) -> None:
        """Write at the end of the running loop's turn, for a caller that lets the loop go on."""
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is not None:
            turn.append(data)
        else:
            self._turns[loop] = [data]
            loop.call_soon(self._end_turn, loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._write(b"".join(self._turns.pop(loop)))

    def _write(self, data: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            idle = not self._waiting
            self._waiting += data
            if idle:  # else the loop waits for room already
                self._send()
                if self._waiting:
                    with contextlib.suppress(RuntimeError):  # the loop is closed, and the reader with it
                        self.loop.call_soon_threadsafe(self._await_room)

    def close(self) -> None:
        """Close the socket, on the loop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stop_waiting()
                self._socket.close()

    def _await_room(self) -> None:
        with self._lock:
            if not self._closed:
                self.loop.add_writer(self._socket, self._on_room)

    def _on_room(self) -> None:
        with self._lock:
            self._send()
            if not self._waiting:
                self._stop_waiting()

    def _stop_waiting(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_writer(self._socket)

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except BlockingIOError:
            return
        except OSError:  # the other end is gone
            sent = len(self._waiting)
        del self._waiting[:sent]


class _Line(asyncio.Protocol):
    """Reads messages from a template, and delivers them in the turn of the event loop in which they come."""

    transport: asyncio.Transport

    def __init__(self, reader: TemplateProcess) -> None:
        self._reader = reader
        self._decoder = frames.FrameDecoder()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without deriving from it

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._reader.on_message(message)
        except (ValueError, RecursionError):
            self.transport.abort()
        self._reader.on_read()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._reader.on_loss()


@functools.cache
def runtime_paths(python: str) -> tuple[str, ...]:
    """Return the folders that an interpreter needs, without its import path. Raises SandboxUnavailableError."""
    code = (
        "import sys, json, os; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, "
        "os.path.dirname(os.path.realpath(sys.executable))]))"
    )
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailableError(f"the sandbox's interpreter {python!r} cannot be run: {error}") from error
    paths = json.loads(done.stdout)
    real = [str(Path(path).resolve()) for path in paths]
    return tuple(sorted({*paths, *real} - {"/", "/usr", "/usr/local"}))
