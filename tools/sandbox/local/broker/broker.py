"""The broker: passes the host's requests on to children, passes their answers back, and ends children that go too far.

One thread, one loop. Children are forked ahead of time and wait for their first request, hardened already: a *run* uses
one up, a *session* keeps it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from toolgym.tools.sandbox.local.broker.channel import Channel, Child, Fork, Kill, KillReason, receive
from toolgym.tools.sandbox.local.broker.child_pool import ChildPool
from toolgym.tools.sandbox.local.broker.host_link import HostLink
from toolgym.tools.sandbox.local.broker.processes import Processes
from toolgym.tools.sandbox.local.broker.reactor import Deadlines, Reactor
from toolgym.tools.sandbox.local.broker.recovery import RECOVERY, SOFT_KILL, Recovery
from toolgym.tools.sandbox.local.broker.runs import Runs
from toolgym.tools.sandbox.local.broker.session_fork import MAX_REASON, Forks
from toolgym.tools.sandbox.local.broker.watchdog import Watchdog
from toolgym.tools.sandbox.local.kernel import landlock, syscalls
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import EndAnswer, Layers, SessionAnswer, Status

SHOWING = 0.02
"""Seconds that a program of a run has at its deadline to write its stack, until it is killed."""

FINAL_READS = 8
"""Reads from the control socket of a process that has ended: all it can have left there. Others may write on to it."""

MAX_BACKLOG = 8 * 1024 * 1024
"""Bytes that may wait for the host before further files are read."""

PACKED = ("cell", "files", "read", "write", "pack", "unpack")
"""Requests that a session answers with a packed answer; to all others it sends notes."""

MAX_FORK_FAILURES = 3
"""Children in a row that could not be forked: then the broker forks none ahead any more, and a request has failed."""


class Broker:
    """Passes requests on to children, and answers back. It keeps `warm` children that are forked ahead."""

    def __init__(
        self, host: socket.socket, spec: ChildSpec, zygote: socket.socket, zygote_pid: int, warm: int, absent: str
    ) -> None:
        self._spec, self._want_warm, self._absent = spec, warm, absent
        self._fork_failures = 0
        self._watchdog = Watchdog(spec)
        self._reactor = Reactor()
        operations: Mapping[str, Callable[[Any], None]] = {
            "run": self._run,
            "open": self._open,
            **dict.fromkeys((*PACKED, "fork"), self._ask_session),
            "start": self._start,
            "process": self._ask_process,
            "close": self._close,
            "cancel": self._cancel,
            "look": self._find_asleep,
        }
        self._host = HostLink(host, self._reactor, operations, lambda: self._pool.kill_all())
        self._deadlines: Deadlines[Channel] = Deadlines()
        self._pool = ChildPool(
            self._reactor, spec, zygote, zygote_pid, self._watch_channel, self._on_forked, self._on_fork_failed
        )
        self._runs = Runs(self._host, self._pool, self._deadlines, spec)
        self._sessions: dict[str, Channel] = {}
        self._processes = Processes(self._host, self._reactor, spec.output_bytes, self._drop, self._rest)
        self._recovery = Recovery(spec, self._reactor, self._settle, self._watch_interpreter)
        self._forks = Forks(self._host, self._reactor, spec, self._watchdog, self._processes, self._adopt, self._drop)
        self._ended: dict[str, tuple[Status, str]] = {}  # sessions that ended between two requests: how, and why
        self._asked: set[Channel] = set()  # of the sessions' channels: all that have a request, and some that had one

    def serve(self) -> NoReturn:
        gc.collect()
        syscalls.trim_heap()
        gc.freeze()
        gc.disable()
        self._host.send({"ready": True, "pid": os.getpid(), "layers": self._layers()})
        while True:
            self._host.flush()
            self._fork_ahead()
            fetches = bool(self._runs.fetches) and len(self._host.outbox) < MAX_BACKLOG
            patience = self._patience()
            self._host.flush()
            self._reactor.turn(0.0 if fetches else patience)
            if fetches:
                self._runs.fetch_more()

    def _layers(self) -> Layers:
        hardening, cgroups = self._spec.hardening, self._spec.cgroups
        return {
            "landlock": landlock.abi() if hardening.landlock is not None else 0,
            "seccomp": hardening.filter is not None,
            "fresh_proc": hardening.fresh_proc,
            "terminals": hardening.terminals,
            "own_users": hardening.first_uid != 0,
            "watched": self._watchdog.watches,
            "calibrated": self._spec.calibrated,
            "absent": self._absent,
            "cgroup": cgroups.layers if cgroups is not None else None,
        }

    def _fork_ahead(self) -> None:
        while len(self._pool.warm) < self._want_warm and self._fork_failures < MAX_FORK_FAILURES:
            try:
                self._pool.spawn_warm()
            except OSError:
                # Too many descriptors are open: the children there are come before new ones.
                self._fork_failures = MAX_FORK_FAILURES

    def _patience(self) -> float | None:
        """Do what is due. Returns how many seconds the next wait may take; None: for ever."""
        for channel in self._deadlines.due():
            self._on_deadline(channel)
        waits = [until for until in (self._processes.patience(), self._deadlines.patience()) if until is not None]
        if self._watchdog.watches and (self._runs.running or self._sessions):
            if self._watchdog.is_due():
                self._asked = {channel for channel in self._asked if channel.request}
                busy = {channel.child: None for channel in (*self._runs.running.values(), *self._asked)}
                busy.update(dict.fromkeys(self._processes.busy))
                for child, kill in self._watchdog.look(busy, self._sessions):
                    if self._recovery.stop_cells(child, kill):
                        continue
                    for channel in child.channels:
                        channel.blame(kill.reason, kill.detail, final=True)
                    child.kill()
            active = self._runs.running or self._asked or any(self._processes.busy)
            waits.append(self._watchdog.pace(bool(active)))
        return min(waits, default=None)

    def _run(self, request: dict[str, Any]) -> None:
        channel = self._pool.take()
        channel.begin(request)
        self._set_memory(channel.child, request.get("compile_memory_mb") or request["memory_mb"])
        self._runs.running[request["id"]] = channel
        channel.send({**request, "fork": self._spec.can_fork})
        self._deadlines.arm(channel, request["compile_timeout"] if request.get("compile") else request["timeout"])

    def _open(self, request: dict[str, Any]) -> None:
        channel = self._pool.take()
        channel.begin(request)
        self._asked.add(channel)
        self._set_memory(channel.child, request["memory_mb"])
        channel.session = request["session"]
        channel.recovers, channel.pauses = request["recover"] and self._recovery.possible, request["pause"]
        if channel.recovers and self._spec.cgroups is not None:
            self._spec.cgroups.end_together(channel.child.slot, together=False)
        self._sessions[channel.session] = channel
        message = {"op": "session", "fork": self._spec.can_fork, "recover": channel.recovers}
        message["siblings"] = self._spec.hardening.namespaces
        channel.send({**request, **message})
        self._deadlines.arm(channel, request["timeout"])

    def _set_memory(self, child: Child, memory_mb: int) -> None:
        child.memory_mb = memory_mb
        if self._spec.cgroups is not None:
            try:
                self._spec.cgroups.limit(child.slot, memory_mb)
            except OSError:
                child.kill()
                raise

    def _ask_session(self, request: dict[str, Any]) -> None:
        channel = self._session_of(request)
        forks = request["op"] == "fork"
        if channel is not None and forks and channel.copying.fork is not None:
            channel.copying.waiting.append(request)
            return
        if channel is None or not self._is_free(channel, request):
            return
        if forks and self._forks.refuses(channel, request):
            return
        channel.begin(request)
        channel.wake()
        if request["op"] == "cell":
            self._recovery.begin(channel)
        self._asked.add(channel)
        if forks:
            self._processes.retire_launcher(channel)
            channel.copying.fork = Fork(request, channel)
        self._forks.let_start(channel, forks=forks)
        channel.send(request)
        self._deadlines.arm(channel, request["timeout"])

    def _start(self, request: dict[str, Any]) -> None:
        channel = self._session_of(request)
        if channel is None or (not self._processes.can_start(channel) and not self._is_free(channel, request)):
            return
        if channel.request is None:
            self._forks.let_start(channel)
        channel.wake()
        self._processes.start(channel, request)
        if channel.request is request:
            self._asked.add(channel)
            self._deadlines.arm(channel, request["timeout"])

    def _ask_process(self, request: dict[str, Any]) -> None:
        channel = self._session_of(request)
        if channel is not None:
            self._processes.ask(channel, request)

    def _session_of(self, request: dict[str, Any]) -> Channel | None:
        """The channel of a request's session. If there is none, the request is answered."""
        channel = self._sessions.get(request["session"])
        if channel is None:
            status, detail = self._ended.pop(request["session"], ("sandbox_error", "no such session"))
            self._host.answer(request, {"status": status, "alive": False, "message": detail})
        return channel

    def _is_free(self, channel: Channel, request: dict[str, Any]) -> bool:
        """Whether a session has no request. If it has one, the new one is answered."""
        if channel.request is not None:
            self._host.refuse(request, "the session is busy", status="sandbox_error")
        return channel.request is None

    def _close(self, request: dict[str, Any]) -> None:
        channel = self._sessions.get(request["session"])
        if channel is not None:
            self._drop(channel, KillReason.CLOSED)
        self._ended.pop(request["session"], None)
        self._host.answer(request, {"status": "ok"})

    def _cancel(self, request: dict[str, Any]) -> None:
        channel = self._runs.running.get(request["of"])
        if channel is not None:
            channel.kill_child(KillReason.CANCELLED)
            return
        if self._processes.cancel(request["of"]):
            return
        for channel in self._sessions.values():
            for waiting in [fork for fork in channel.copying.waiting if fork["id"] == request["of"]]:
                channel.copying.waiting.remove(waiting)
                self._host.refuse(waiting, "the fork was cancelled", status="killed")
            if channel.request is not None and channel.request.get("id") == request["of"]:
                channel.request["cancelled"] = True
                if channel.request["op"] == "start":
                    return  # it waits for a launcher, which the session's next program needs too
                fork = channel.copying.fork
                if fork is not None:
                    self._forks.cancel(fork)  # the session itself goes on
                    if not fork.parted:
                        self._deadlines.arm(fork.origin, SOFT_KILL)
                else:
                    self._on_deadline(channel)
                return

    def _find_asleep(self, request: dict[str, Any]) -> None:
        channels = (*self._runs.running.values(), *self._asked)
        requests = [(channel.request["id"], channel) for channel in channels if channel.request is not None]
        self._host.answer(request, self._watchdog.asleep([*requests, *self._processes.waited_for()]))

    def _on_forked(self, child: Child) -> None:
        self._fork_failures = 0
        self._reactor.watch(child.pidfd, lambda: self._on_exit(child))

    def _watch_channel(self, channel: Channel) -> None:
        self._reactor.watch(channel.control.fileno(), lambda: self._on_control(channel))
        for stream, fd in channel.pipes.items():
            self._reactor.watch(fd, lambda stream=stream: channel.read_output(stream))  # type: ignore[misc]

    def _on_control(self, channel: Channel) -> bool:
        """Read what a control socket has. Returns whether there may be more."""
        request = None
        try:
            data = receive(channel.control)
            if data is None:
                return False
            if channel.killed is not None and channel.killed.reason is KillReason.PROTOCOL:
                return bool(data)  # read and dropped
            if not data:
                self._pool.read_replies()  # the child may never have been forked
                if channel.control.fileno() < 0:
                    return False
                self._reactor.unwatch(channel.control.fileno())
                if channel.session and channel is channel.child.first and channel.request is not None:
                    channel.signal(signal.SIGKILL)  # its exit follows; one that has exited already keeps its exit code
                elif channel.session:
                    self._drop(channel, None)
                return False
            for message in channel.decoder.feed(data):
                request = channel.request
                if isinstance(message, frames.AnswerChunk):
                    self._on_answer_chunk(channel, message)
                else:
                    self._on_note(channel, message)
                if channel.control.fileno() < 0:
                    break  # the message ended the child
        except Exception:  # noqa: BLE001  no program may end this process, whatever it sends
            # User code wrote these bytes. Its request still has to be answered.
            if request is not None and request["op"] == "run":
                channel.request = request
            channel.stop(KillReason.PROTOCOL)
            return False
        return True

    def _on_answer_chunk(self, channel: Channel, chunk: frames.AnswerChunk) -> None:
        """Forward bytes of an answer unparsed: parsing a long one would block every other session."""
        request = channel.request
        if request is None or request["op"] not in PACKED or not channel.untrusted:
            raise ValueError("an answer to no request")
        self._host.forward(request["id"], chunk.data, more=not chunk.last)
        if chunk.last:
            if channel.interrupted and not self._recovery.end_processes(channel):
                channel.kill_child(KillReason.TIMEOUT)
                return
            channel.drain()
            self._recovery.end(channel)
            status: Status = "timeout" if channel.interrupted else "ok"
            self._settle(channel, {"status": status, "alive": True, "answered": True})

    def _on_note(self, channel: Channel, note: dict[str, Any]) -> None:
        request = channel.request
        if "broken" in note:
            if channel.untrusted:
                raise ValueError("a program that calls its own failure the sandbox's")
            channel.kill_child(KillReason.SANDBOX_FAILURE, str(note["broken"])[:MAX_REASON])
        elif request is None:
            raise ValueError("a note without a request")
        elif request["op"] == "run":
            self._runs.on_note(channel, request, note)
        elif request["op"] == "start":
            self._processes.on_note(channel, request, note)
        elif "shadow" in note and request["op"] == "cell":
            self._recovery.note_shadow(channel, int(note["shadow"]), int(note["mb"]))
        elif "threads" in note and request["op"] == "cell":
            channel.has_threads = True
        elif channel.copying.fork is not None:
            self._pool.await_fork(channel.child)
            self._forks.on_note(channel.copying.fork, channel, note)
        elif "ready" in note and not channel.untrusted:
            channel.untrusted = True
            channel.copying.helped = bool(note.get("helper"))
            self._settle(channel, {"status": "ok", "alive": True})
        else:
            raise ValueError("an unknown note")

    def _adopt(self, channel: Channel) -> None:
        assert channel.request is not None
        self._sessions[channel.session] = channel
        self._asked.add(channel)
        self._watch_channel(channel)
        self._watch_interpreter(channel)
        self._deadlines.arm(channel, channel.request["timeout"])

    def _settle(self, channel: Channel, answer: SessionAnswer | EndAnswer) -> None:
        request = channel.take_request()
        if request is not None:
            self._host.answer(request, {**answer, **channel.outputs()})
            self._rest(channel)

    def _rest(self, channel: Channel) -> None:
        """Pause the threads of a session that has no request and no program beside its interpreter."""
        if channel.has_threads and not self._processes.is_busy(channel):
            channel.pause()

    def _on_deadline(self, channel: Channel) -> None:
        channel.deadline = 0
        if channel.request is None:
            return
        if channel.session and channel.request["op"] == "cell" and channel.killed is None:
            if not channel.interrupted:
                channel.signal(frames.SHOW_STACK)  # C code may never return to see the interrupt
            seconds = self._recovery.interrupt(channel)
            if not seconds and channel.shadow:
                channel.stop(KillReason.TIMEOUT)
                seconds = RECOVERY
            if seconds:
                self._deadlines.arm(channel, seconds)
                return
        if channel.request["op"] == "run" and channel.shows_stack and channel.killed is None:
            channel.blame(KillReason.TIMEOUT)
            channel.signal(frames.SHOW_STACK)
            self._deadlines.arm(channel, SHOWING)
            return
        channel.blame(KillReason.TIMEOUT)
        if channel.session:
            self._drop(channel, KillReason.TIMEOUT)
        else:
            channel.child.kill()

    def _drop(self, channel: Channel, reason: KillReason | None, code: int | None = None) -> None:
        """End one interpreter of a session; the last one takes its namespaces along. `reason` is None if it ended by
        itself, with this exit `code` if that is known. A reason that is noted already comes first."""
        self._sessions.pop(channel.session, None)
        self._asked.discard(channel)
        channel.drain()
        killed = channel.killed or (None if reason is None else Kill(reason))
        if killed is None and self._spec.ran_out_of_memory(channel.child.slot):
            killed = Kill(KillReason.MEMORY_LIMIT)
        status: Status = "killed" if killed is None else killed.reason.status
        detail = "" if killed is None else killed.detail
        fork, channel.copying.fork = channel.copying.fork, None
        if fork is not None:
            channel.request = None
            self._forks.on_loss(fork, channel, status, detail)
        elif reason is not KillReason.CLOSED and (channel.request is None or "cancelled" in channel.request):
            # No request waits for the news: the session's next one gets it.
            self._ended[channel.session] = status, detail or "the session ended between two calls"
        self._settle(channel, {"status": status, "alive": False, "message": detail, "code": code})
        self._processes.end(channel, status, detail)
        for waiting in channel.copying.waiting:
            self._host.answer(waiting, {"status": status, "alive": False, "message": detail})
        channel.signal(signal.SIGKILL)
        channel.free()
        if not channel.child.channels:
            channel.child.kill()

    def _on_exit(self, child: Child) -> None:
        """A child's process has exited; in a pid namespace, others may go on until that is ended."""
        # The event may be stale: since it was reported, its descriptor's number may have gone to another child.
        exited = self._pool.reap(child)
        if exited is None:
            return
        code, usage = exited
        self._reactor.unwatch(child.pidfd)
        first = child.first
        if first is not None and first.session and self._recover(first, code) and not child.dead:
            return
        self._pool.end(child)
        for channel in [channel for channel in child.channels if child.ended or channel is child.first]:
            self._end_channel(channel, code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
        if child.ended:
            self._pool.release(child)
            return
        self._reactor.watch(child.init_fd, lambda: self._on_namespace_end(child))
        if not child.channels:
            child.kill()

    def _watch_interpreter(self, channel: Channel) -> None:
        """Watch an interpreter that took the place of another one, or of which a shadow can take the place."""
        child = channel.child
        if child.first is channel:
            self._reactor.watch(child.pidfd, lambda: self._on_exit(child))
        else:
            self._reactor.watch(channel.copying.handle, lambda: self._on_interpreter_exit(channel))

    def _on_interpreter_exit(self, channel: Channel) -> None:
        """An interpreter has exited that is not this process's child: the copy or the shadow of another one."""
        code = self._recovery.exit_code(channel)
        self._reactor.unwatch(channel.copying.handle)
        if channel.session in self._sessions and not self._recover(channel, code):
            self._drop(channel, None, code)

    def _recover(self, channel: Channel, code: int | None) -> bool:
        """Continue a session whose interpreter has exited, from its shadow. Returns whether that is possible."""
        for _ in range(FINAL_READS):
            if channel.control.fileno() < 0 or not self._on_control(channel):
                break
        return channel.control.fileno() >= 0 and self._recovery.recover(channel, code)

    def _on_fork_failed(self, child: Child, error: str) -> None:
        """Give the request of a child that could not be forked to another one. After several tries, the sandbox failed.
        No part of the request has run yet: the first process of its namespace may have been killed, for example."""
        self._fork_failures += 1
        again = None
        for channel in list(child.channels):
            request = channel.request
            tries = 1 if request is None else request.get("tries", 1)
            if request is not None and channel.killed is None and tries < MAX_FORK_FAILURES:
                again = {**request, "tries": tries + 1}
                channel.take_request()
                self._runs.running.pop(request["id"], None)
                self._sessions.pop(channel.session, None)
                channel.session = ""
            else:
                channel.blame(KillReason.SANDBOX_FAILURE, error)
            self._end_channel(channel, None, 0.0, 0)
        self._pool.release(child)
        if again is not None:
            self._host.handle(again)

    def _on_namespace_end(self, child: Child) -> None:
        if not self._pool.reap_init(child):
            return
        self._reactor.unwatch(child.init_fd)
        for channel in list(child.channels):
            self._end_channel(channel, None, 0.0, 0)
        self._pool.release(child)

    def _end_channel(self, channel: Channel, code: int | None, cpu: float, rss_kb: int) -> None:
        """The process exited: read what it left in its pipes, then answer its request."""
        for _ in range(FINAL_READS):
            if channel.control.fileno() < 0 or not self._on_control(channel):
                break
        channel.drain()
        if channel.session:
            self._drop(channel, None, code)
        else:
            self._runs.finish(channel, code, cpu, rss_kb)
            channel.free()
