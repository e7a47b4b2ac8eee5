"""The programs of sessions: each has pipes of its own, and what it prints is kept until the host asks for it.

A session's launcher starts them (see `child.launcher`). Whatever it says may be a program's words. So a program's
deadline is kept here: if the launcher does not say in time that the program ended, the session is ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.broker.channel import READ_SIZE, READS_PER_TURN, Channel, Child, KillReason, receive
from toolgym.tools.sandbox.local.broker.host_link import HostLink
from toolgym.tools.sandbox.local.broker.process_state import LauncherLink, RunningProgram, Waiter
from toolgym.tools.sandbox.local.broker.reactor import Deadlines, Reactor
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.capture import FLOOD_FACTOR

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import ProcessAnswer, Status

MAX_PROCESSES = 64
"""Programs of one session that the broker knows: those that run, those whose end the host has not asked about, and
those that have left behind others which hold their pipes."""

KILL_GRACE = 2.0
"""Seconds between the kill of a program and that of its session, if the launcher does not tell of its end."""

INTERRUPT_PAUSES = (0.3, 0.25)
"""Seconds after each interrupt of a program at its deadline. After the last pause, all that the program has started is
killed."""

PIPE_PAUSE = 0.3
"""Seconds from the end of a pipe that got too much output to the first interrupt. A shell whose command the closed pipe
has ended reports its state in that time, which an interrupt would disturb."""

LEADER_PAUSE = 0.25
"""Seconds that a program has after that to end by itself, as a shell whose command was killed."""

MAX_CODE = 1 << 31


class Processes:
    """All programs of all sessions, which `drop` ends. `output_bytes` of each stream are kept for the host. `on_end` is
    called with a session when a program of it has ended."""

    def __init__(
        self,
        host: HostLink,
        reactor: Reactor,
        output_bytes: int,
        drop: Callable[[Channel, KillReason | None], None],
        on_end: Callable[[Channel], None],
    ) -> None:
        self._host, self._reactor, self._output_bytes, self._drop_session = host, reactor, output_bytes, drop
        self._on_end = on_end
        self._named: dict[tuple[str, str], RunningProgram] = {}
        self._launchers: dict[Channel, LauncherLink] = {}  # of each session, the one that starts its next program
        self._links: dict[Channel, list[LauncherLink]] = {}
        self._deadlines: Deadlines[RunningProgram | Waiter] = Deadlines()
        self._count = 0

    def start(self, channel: Channel, request: dict[str, Any]) -> None:
        """Start a program. A session without a launcher, or forked since, has to make one first, and must be free."""
        if self._count_of(channel) >= MAX_PROCESSES:
            self._make_room(channel)
        if self._count_of(channel) >= MAX_PROCESSES:
            why = f"{MAX_PROCESSES} programs of this session run or wait to be asked about: no more are started"
            self._host.refuse(request, why, busy=True)
        elif channel in self._launchers:
            self._launch(self._launchers[channel], request)
        else:
            channel.begin(request)
            channel.send({"op": "launch"})

    def _count_of(self, channel: Channel) -> int:
        return sum(len(link.processes) for link in self._links.get(channel, ()))

    def can_start(self, channel: Channel) -> bool:
        return channel in self._launchers

    def launchers(self, channel: Channel) -> int:
        return len(self._links.get(channel, ()))

    def on_note(self, channel: Channel, request: dict[str, Any], note: Mapping[str, Any]) -> None:
        launcher = self._launchers.get(channel)
        if "ends" in note and launcher is None:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with theirs:
                channel.send_descriptors(theirs.fileno())
            link = self._launchers[channel] = LauncherLink(channel, ours, self._reactor, self._lose)
            self._links.setdefault(channel, []).append(link)
            self._reactor.watch(ours.fileno(), lambda: self._on_launcher(link))
            return
        if "done" not in note and "failed" not in note:
            raise ValueError("a note that belongs to no launcher")
        channel.take_request()
        if launcher is not None and "done" in note:
            self._launch(launcher, request)
            return
        if launcher is not None:
            self._lose(launcher)
        self._host.refuse(request, str(note.get("failed", "no launcher came of it"))[:1000])

    def ask(self, channel: Channel, request: dict[str, Any]) -> None:
        process = self._named.get((channel.session, request["process"]))
        if process is None:
            self._host.refuse(request, "no such process")
            return
        self._act(process, request)
        waiter = Waiter(request, process)
        if not request.get("until") or not request.get("wait") or waiter.met:
            self._answer(process, request)
        else:
            process.waiters.append(waiter)
            self._deadlines.arm(waiter, request["wait"])

    def waited_for(self) -> Iterator[tuple[int, Channel]]:
        for process in self._named.values():
            for waiter in process.waiters:
                yield waiter.request["id"], process.launcher.channel

    def cancel(self, number: int) -> bool:
        for process in self._named.values():
            for waiter in process.waiters:
                if waiter.request["id"] == number:
                    self._drop_waiter(waiter)
                    return True
        return False

    @staticmethod
    def _drop_waiter(waiter: Waiter) -> None:
        waiter.process.waiters.remove(waiter)
        waiter.deadline = 0

    def retire_launcher(self, channel: Channel) -> None:
        """Have the session's next program started by a new launcher: programs of a session and of its fork must not
        signal each other, and a launcher passes its limit of processes on to what it starts."""
        link = self._launchers.pop(channel, None)
        if link is not None and not link.processes:
            self._links[channel].remove(link)
            link.close()

    def end(self, channel: Channel, status: Status, detail: str) -> None:
        for link in self._links.pop(channel, []):
            for process in [*link.processes.values()]:
                self._finish(process, None, "killed")
                requests = [waiter.request for waiter in process.waiters]
                for waiter in [*process.waiters]:
                    self._drop_waiter(waiter)
                start = self._take_start_request(process)
                for request in requests if start is None else [*requests, start]:
                    self._answer(process, request, status, detail, alive=False)
                self._free(process)
            link.close()
        self._launchers.pop(channel, None)

    @property
    def busy(self) -> Iterator[Child]:
        for channel in self._links:
            if self.is_busy(channel):
                yield channel.child

    def is_busy(self, channel: Channel) -> bool:
        """Whether a session has a program that runs."""
        links = self._links.get(channel, ())
        return any(not process.ended for link in links for process in link.processes.values())

    def patience(self) -> float | None:
        for due in self._deadlines.due():
            if isinstance(due, Waiter):
                due.process.waiters.remove(due)
                self._answer(due.process, due.request)
            elif due.killed:
                self._drop_session(due.launcher.channel, KillReason.TIMEOUT)
            else:
                self._stop(due, "timeout")
        return self._deadlines.patience()

    def _launch(self, link: LauncherLink, request: Mapping[str, Any]) -> None:
        if "cancelled" in request:
            self._host.answer(request, {"status": "killed", "alive": True})
            return
        self._count += 1
        process = RunningProgram(self._count, request, link, self._output_bytes)
        theirs = []
        try:
            for stream in range(3):
                read, write = os.pipe()
                ours, their = (write, read) if stream == 0 else (read, write)
                process.pipes[stream] = ours
                theirs.append(their)
                os.set_blocking(ours, False)
        except OSError as error:
            for fd in (*theirs, *process.pipes.values()):
                os.close(fd)
            self._host.refuse(request, f"no pipes for another program: {error.strerror}", busy=True)
            return
        link.processes[process.number] = process
        self._named[link.channel.session, process.name] = process
        for stream in (1, 2):
            self._reactor.watch(process.pipes[stream], lambda stream=stream: self._read(process, stream))  # type: ignore[misc]
        message = {name: request[name] for name in ("argv", "cwd", "env", "pty")}
        link.send({"op": "start", "number": process.number, **message}, theirs)
        self._feed(process, request)
        self._deadlines.arm(process, request["deadline"] or request["timeout"])

    def _act(self, process: RunningProgram, request: Mapping[str, Any]) -> None:
        self._feed(process, request)
        if request.get("size"):
            rows, cols = request["size"]
            process.launcher.send({"op": "size", "number": process.number, "rows": rows, "cols": cols})
        if request.get("signal") and not process.ended:
            process.launcher.send({"op": "signal", "number": process.number, "signal": request["signal"]})

    def _feed(self, process: RunningProgram, request: Mapping[str, Any]) -> None:
        data, ends = request.get("data", b""), bool(request.get("eof"))
        if process.closes_input or 0 not in process.pipes or not (data or ends):
            return
        process.outbox += data
        process.closes_input = ends
        self._write(process)
        if process.outbox:
            with contextlib.suppress(FileExistsError):
                self._reactor.watch(process.pipes[0], lambda: self._write(process), select.EPOLLOUT)

    def _write(self, process: RunningProgram) -> None:
        fd = process.pipes.get(0, -1)
        while process.outbox and fd >= 0:
            try:
                written = os.write(fd, process.outbox)
            except BlockingIOError:
                return
            except OSError:  # it has closed its standard input
                process.outbox.clear()
                process.closes_input = True
                break
            del process.outbox[:written]
        if fd >= 0:
            self._reactor.unwatch(fd)
            if process.closes_input:
                self._close_pipe(process, 0)
        self._tell(process)

    def _read(self, process: RunningProgram, stream: int) -> bool:
        """Read what a pipe has, as much as is one program's turn. Returns whether there may be more."""
        for _ in range(READS_PER_TURN):
            fd = process.pipes.get(stream, -1)
            if fd < 0:
                return False
            try:
                data = os.read(fd, READ_SIZE)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self._close_pipe(process, stream)
                return False
            if process.ended:  # this is of what the program left behind, and dropped
                process.spilled += len(data)
                if process.spilled > FLOOD_FACTOR * self._output_bytes:
                    self._close_pipe(process, stream)
                    return False
                continue
            capture = process.output[stream]  # a new one after each answer of `_tell`
            capture.add(data)
            if capture.flooded:
                self._close_pipe(process, stream)
                if not process.why:  # most programs end by themselves when their pipe is closed
                    process.why = "output_limit"
                    self._deadlines.arm(process, PIPE_PAUSE)
                return False
            self._tell(process)
        return True

    def _stop(self, process: RunningProgram, why: Status) -> None:
        """Take the next step to stop a program: interrupt it and all that it has started, twice; kill what it has
        started; kill the program. So a shell can end by itself, and say in which state."""
        if process.ended or process.killed:
            return
        process.why = process.why or why
        if process.start_request is not None or process.stops > len(INTERRUPT_PAUSES):
            self._kill(process)
            return
        interrupts = process.stops < len(INTERRUPT_PAUSES)
        process.launcher.send({"op": "interrupt" if interrupts else "prune", "number": process.number})
        self._deadlines.arm(process, INTERRUPT_PAUSES[process.stops] if interrupts else LEADER_PAUSE)
        process.stops += 1

    def _kill(self, process: RunningProgram) -> None:
        """Kill a program, and end its session if the launcher does not say soon that it has ended."""
        process.killed = True
        process.launcher.send({"op": "signal", "number": process.number, "signal": int(signal.SIGKILL)})
        self._deadlines.arm(process, KILL_GRACE)

    def _finish(self, process: RunningProgram, code: int | None, why: Status | None = None) -> None:
        if process.ended:
            return
        for stream in (1, 2):
            while self._read(process, stream) and not process.output[stream].flooded:
                pass
        process.ended, process.code, process.deadline = True, code, 0
        process.why = process.why or why
        process.duration = time.monotonic() - process.began
        process.outbox.clear()
        self._close_pipe(process, 0)
        self._on_end(process.launcher.channel)

    def _tell(self, process: RunningProgram) -> None:
        for waiter in [waiter for waiter in process.waiters if waiter.met]:
            self._drop_waiter(waiter)
            self._answer(process, waiter.request)
        self._free_if_done(process)

    def _answer(
        self,
        process: RunningProgram,
        request: Mapping[str, Any],
        status: Status = "ok",
        detail: str = "",
        *,
        alive: bool = True,
    ) -> None:
        output = process.output if request.get("read") else {}
        parts = [capture.content() for capture in output.values()]
        answer: ProcessAnswer = {
            "status": status,
            "alive": alive,
            "message": detail,
            "running": not process.ended,
            "code": process.code,
            "why": process.why,
            "unwritten": len(process.outbox),
            "duration": process.duration or time.monotonic() - process.began,
            "sizes": [len(part) for part in parts],
            "truncated": [capture.truncated for capture in output.values()],
        }
        if output:
            process.output = process.fresh_output()
        if any(parts):
            self._host.forward(request["id"], b"".join(parts), more=False)
        self._host.answer(request, answer)
        if request.get("forget") and (process.ended or not request.get("until")):
            process.forgotten = True
            self._named.pop((process.launcher.channel.session, process.name), None)
            self._free_if_done(process)

    @staticmethod
    def _take_start_request(process: RunningProgram) -> Mapping[str, Any] | None:
        """The request that the program's start is the answer to; None: it was answered already."""
        request, process.start_request = process.start_request, None
        return request

    def _make_room(self, channel: Channel) -> None:
        for link in self._links[channel]:
            for process in [*link.processes.values()]:
                if process.ended and process.forgotten:
                    self._free(process)

    def _free_if_done(self, process: RunningProgram) -> None:
        """Free an ended program that the host has forgotten, once nothing that it left behind holds its pipes. Until
        then they are read and dropped: a server that writes its log there is not to fail over it."""
        if process.ended and process.forgotten and not process.waiters and not process.pipes.keys() & {1, 2}:
            self._free(process)

    def _free(self, process: RunningProgram) -> None:
        for stream in range(3):
            self._close_pipe(process, stream)
        process.deadline = 0
        process.launcher.processes.pop(process.number, None)
        key = process.launcher.channel.session, process.name
        if self._named.get(key) is process:
            del self._named[key]

    def _close_pipe(self, process: RunningProgram, stream: int) -> None:
        fd = process.pipes.pop(stream, -1)
        if fd >= 0:
            self._reactor.unwatch(fd)
            os.close(fd)
            self._free_if_done(process)

    def _on_launcher(self, link: LauncherLink) -> None:
        try:
            data = receive(link.control)
            if data is None:
                return
            if not data:
                self._lose(link)
                return
            for note in link.decoder.feed(data):
                if isinstance(note, frames.AnswerChunk):
                    raise ValueError("an answer to no request")
                self._on_launcher_note(link, note)
                if link.control.fileno() < 0:
                    return
        except Exception:  # noqa: BLE001  no program may end this process, whatever it sends
            self._lose(link)

    def _on_launcher_note(self, link: LauncherLink, note: Mapping[str, Any]) -> None:
        if "started" in note:
            process = link.processes[int(note["started"])]
            request = self._take_start_request(process)
            if request is None:
                raise ValueError("a program that was started twice")
            if not request["deadline"] and not process.killed:
                process.deadline = 0
            self._host.answer(request, {"status": "ok", "alive": True, "pid": frames.plausible(int(note["pid"]))})
        elif "failed" in note:
            process = link.processes[int(note["failed"])]
            request = self._take_start_request(process)
            if request is None:
                raise ValueError("a program that had started already")
            code, of_folder = frames.plausible(int(note["errno"])), bool(note.get("folder"))
            self._host.answer(request, {"status": "error", "alive": True, "errno": code, "folder": of_folder})
            process.ended = process.forgotten = True
            self._free(process)
        else:
            process = link.processes[int(note["exited"])]
            code = int(note["code"])
            if abs(code) >= MAX_CODE or process.ended or process.start_request is not None:
                raise ValueError("no program ends like that")
            self._finish(process, code)
            self._tell(process)

    def _lose(self, link: LauncherLink) -> None:
        """The launcher has ended, or what comes from it makes no sense: its programs count as killed."""
        channel = link.channel
        if self._launchers.get(channel) is link:
            del self._launchers[channel]
        if link in self._links.get(channel, ()):
            self._links[channel].remove(link)
        link.close()
        for process in [*link.processes.values()]:
            self._finish(process, None, "killed")
            request = self._take_start_request(process)
            if request is not None:
                self._host.refuse(request, "the process that starts the session's programs ended")
                process.forgotten = True
            for stream in (1, 2):
                self._close_pipe(process, stream)
            self._tell(process)
        if link.processes:
            self._links.setdefault(channel, []).append(link)  # until the host has asked about them
