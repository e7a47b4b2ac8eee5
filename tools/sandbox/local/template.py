"""The template process: loads the libraries once, and has a confined child for every execution and session.

One thread, one loop. It talks to the host over a socket (`wire` frames), and to each child over a control socket and
two pipes. Children are forked ahead of time and wait for their first request, confined already; a *run* uses one up, a
*session* keeps it.

Requests from the host, each with an `id`; the answer carries the same:

    run      code, argv?, compile?, source?, files?, env?, stdin?, fetch?, timeout, memory_mb, compile_timeout?,
             compile_memory_mb?
    open     session, files?, env?, memory_mb          becomes a session
    cell     session, code, timeout
    exec     session, argv, stdin?, timeout
    read     session, name, at, most / write: session, name, at, data
    fork     session, into
    close    session
    cancel   of                                         the id of a request to give up
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import kernel, landlock, memory, wire
from toolgym.tools.sandbox.local.fetching import Fetch
from toolgym.tools.sandbox.local.forking import MOST_SAID, Fork, Forks
from toolgym.tools.sandbox.local.host import Host
from toolgym.tools.sandbox.local.lane import Child, Lane
from toolgym.tools.sandbox.local.nursery import Nursery
from toolgym.tools.sandbox.local.reactor import Deadlines, Reactor
from toolgym.tools.sandbox.local.stem import Birth
from toolgym.tools.sandbox.local.watchdog import Eyes, Watchdog

SOFT_KILL = 0.5
"""Seconds between the interrupt of a cell at its deadline and the kill."""

YOUNG = 0.25
"""Seconds after which a cell has surely begun to listen to interrupts."""

LAST_WORDS = 8
"""How often a process that has ended is still read from: what it can have left, and no more, for others may go on
writing in its name."""

MAX_BACKLOG = 8 * 1024 * 1024
"""Bytes that may wait for the host before further files are read."""

ANSWERED = ("cell", "exec", "read", "write")
"""What sessions answer; of all else they only send notes."""

LIMITS_TOLD = ("memory_limit", "file_limit", "disk_limit")
"""Limits that a program may say it ran into; it could not gain anything by lying."""

MOST_STILLBORN = 3
"""Children in a row that could not be forked: then none is forked ahead any more, and a request has failed."""


class Template:
    """Brings requests to children, and answers back.

    Args:
        host: the socket to the host.
        birth: how children are made.
        line: to the stem, which has the libraries loaded, and from which they are forked.
        stem: its process id.
        warm: how many children wait, forked ahead.
        can_fork: whether programs may start processes.
        eyes: how children are watched.
        pinned: how many pages are copied at each fork; see `pinning`.
    """

    def __init__(
        self,
        host: socket.socket,
        birth: Birth,
        line: socket.socket,
        stem: int,
        *,
        warm: int,
        can_fork: bool,
        eyes: Eyes,
        pinned: int,
    ) -> None:
        self._birth, self._want_warm, self._can_fork, self._eyes = birth, warm, can_fork, eyes
        self._pinned = pinned
        self._stillborn = 0
        self._watchdog = Watchdog(eyes)
        self._reactor = Reactor()
        self._host = Host(host, self._reactor, self._on_request, lambda: self._nursery.end())
        self._deadlines: Deadlines[Lane] = Deadlines()
        self._nursery = Nursery(self._reactor, birth, line, stem, self._on_birth, self._on_stillbirth)
        self._sessions: dict[str, Lane] = {}
        self._running: dict[int, Lane] = {}
        self._forks = Forks(self._host, self._reactor, birth.confinement, eyes.proc, self._adopt, self._drop)
        self._ended: dict[str, tuple[str, str]] = {}  # sessions that ended between two requests: how, and why
        self._fetches: list[tuple[dict[str, Any], dict[str, Any], Fetch]] = []
        self._asked: set[Lane] = set()  # of the sessions' lanes: all that have a request, and some that had one

    def serve(self) -> NoReturn:
        """Serve until the host's socket closes."""
        gc.collect()
        kernel.trim_heap()
        gc.freeze()
        gc.disable()
        confinement = self._birth.confinement
        layers = {
            "landlock": landlock.abi() if confinement.landlock is not None else 0,
            "seccomp": confinement.filter is not None,
            "fresh_proc": confinement.fresh_proc,
            "watched": self._watchdog.watches,
            "pinned": self._pinned,
            "cgroup": self._birth.leaves.layers if self._birth.leaves is not None else None,
        }
        self._host.tell({"ready": True, "pid": os.getpid(), "layers": layers})
        while True:
            self._warm_up()
            fetches = bool(self._fetches) and self._host.backlog < MAX_BACKLOG
            patience = self._patience()
            self._reactor.turn(0.0 if fetches else patience)
            if fetches:
                self._fetch_on()

    def _warm_up(self) -> None:
        """Have children forked ahead."""
        while self._nursery.warm < self._want_warm and self._stillborn < MOST_STILLBORN:
            try:
                self._watch_lane(self._nursery.warm_one())
            except OSError:
                self._stillborn = MOST_STILLBORN  # too many descriptors already: who lives comes first

    def _patience(self) -> float | None:
        """Do what is due, and say how many seconds the next wait may take."""
        for lane in self._deadlines.due():
            self._on_deadline(lane)
        until = self._deadlines.patience()
        waits = [] if until is None else [until]
        if self._watchdog.watches and (self._running or self._sessions):
            if self._watchdog.is_due():
                self._asked = {lane for lane in self._asked if lane.request}
                busy = {lane.child: None for lane in (*self._running.values(), *self._asked)}
                for child, status, why in self._watchdog.look(busy, self._sessions):
                    self._stop(child, status, why)
            waits.append(self._watchdog.pace(bool(self._running or self._asked)))
        return min(waits, default=None)

    def _stop(self, child: Child, status: str, why: str) -> None:
        """Kill a child for what it used."""
        for lane in child.lanes:
            if not lane.killed:
                lane.killed, lane.why = status, why
        child.kill()

    # ------------------------------------------------------------------ requests

    def _on_request(self, request: dict[str, Any]) -> None:
        getattr(self, f"_do_{request['op']}")(request)

    def _do_run(self, request: dict[str, Any]) -> None:
        lane = self._take()
        lane.begin(request)
        self._give_memory(lane.child, request.get("compile_memory_mb") or request["memory_mb"])
        self._running[request["id"]] = lane
        lane.send({**request, "fork": self._can_fork})
        self._deadlines.arm(lane, request["compile_timeout"] if request.get("compile") else request["timeout"])

    def _do_open(self, request: dict[str, Any]) -> None:
        lane = self._take()
        lane.begin(request)
        self._asked.add(lane)
        self._give_memory(lane.child, request["memory_mb"])
        lane.session = request["session"]
        self._sessions[lane.session] = lane
        lane.send({**request, "op": "session", "fork": self._can_fork})
        self._deadlines.arm(lane, request["timeout"])

    def _give_memory(self, child: Child, memory_mb: int) -> None:
        child.memory_mb = memory_mb
        if self._birth.leaves is not None:
            try:
                self._birth.leaves.limit(child.slot, memory_mb)
            except OSError:
                child.kill()
                raise

    def _session_request(self, request: dict[str, Any]) -> None:
        lane = self._sessions.get(request["session"])
        if lane is None:
            status, why = self._ended.pop(request["session"], ("sandbox_error", "no such session"))
            self._host.answer(request, {"status": status, "alive": False, "message": why})
            return
        if lane.request is not None:
            self._host.answer(request, {"status": "sandbox_error", "alive": True, "message": "the session is busy"})
            return
        lane.begin(request)
        self._asked.add(lane)
        if request["op"] == "fork":
            lane.fork = Fork(request, lane)
        lane.send(request)
        self._deadlines.arm(lane, request["timeout"])

    _do_cell = _do_exec = _do_read = _do_write = _session_request

    def _do_fork(self, request: dict[str, Any]) -> None:
        if not self._birth.confinement.namespaces:
            why = "sessions fork only at the level 'namespaces'; elsewhere both would have the same user and folder"
            self._host.answer(request, {"status": "sandbox_error", "alive": True, "message": why})
            return
        self._session_request(request)

    def _do_close(self, request: dict[str, Any]) -> None:
        lane = self._sessions.get(request["session"])
        if lane is not None:
            self._drop(lane, "closed")
        self._ended.pop(request["session"], None)
        self._host.answer(request, {"status": "ok"})

    def _do_cancel(self, request: dict[str, Any]) -> None:
        lane = self._running.get(request["of"])
        if lane is not None:
            lane.killed = "cancelled"
            lane.child.kill()
            return
        for lane in self._sessions.values():
            if lane.request is not None and lane.request.get("id") == request["of"]:
                lane.request["cancelled"] = True
                fork = lane.fork
                if fork is not None:
                    self._forks.give_up(fork)  # the session itself goes on
                    if not fork.parted:
                        self._deadlines.arm(fork.origin, SOFT_KILL)
                else:
                    self._on_deadline(lane)
                return

    # ------------------------------------------------------------------ children

    def _take(self) -> Lane:
        """A confined child that waits for its first request."""
        lane, new = self._nursery.take()
        if new:
            self._watch_lane(lane)
        return lane

    def _on_birth(self, child: Child) -> None:
        self._stillborn = 0
        self._reactor.watch(child.pidfd, lambda _: self._on_death(child))

    def _watch_lane(self, lane: Lane) -> None:
        self._reactor.watch(lane.control.fileno(), lambda event: self._on_control(lane, event))
        for stream, fd in lane.pipes.items():
            self._reactor.watch(fd, lambda _, stream=stream: lane.read_output(stream))  # type: ignore[misc]

    def _on_control(self, lane: Lane, event: int) -> bool:
        """Read what there is. Returns whether there may be more."""
        if event & select.EPOLLOUT:
            lane.flush()
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return False
        request = None
        try:
            data = lane.receive()
            if data is None:
                return False
            if lane.killed == "protocol":
                return bool(data)  # nobody listens any more
            if not data:
                self._nursery.hear()  # perhaps there never was anybody
                if lane.control.fileno() < 0:
                    return False
                self._reactor.unwatch(lane.control.fileno())
                if lane.session:
                    self._drop(lane, "died")
                return False
            for message in lane.decoder.feed(data):
                request = lane.request
                if isinstance(message, wire.Part):
                    self._on_part(lane, message)
                else:
                    self._on_message(lane, message)
                if lane.control.fileno() < 0:
                    break  # that was the end of it
        except Exception:  # noqa: BLE001  no program may end this process, whatever it says
            # Whoever wrote that is the program, pretending to be us. Its request still has to be answered.
            if request is not None and request["op"] == "run":
                lane.request = request
            lane.killed = "protocol"
            lane.child.kill()
            return False
        return True

    def _on_part(self, lane: Lane, part: wire.Part) -> None:
        """Pass an answer on, unread: it may be long, and nobody shall wait for it here."""
        request = lane.request
        if request is None or request["op"] not in ANSWERED or not lane.foreign:
            raise ValueError("an answer that nobody asked for")
        self._host.pass_on(request["id"], part.data, more=not part.last)
        if part.last:
            lane.drain()
            status = "timeout" if lane.interrupted else "ok"
            self._settle(lane, {"status": status, "alive": True, "answered": True})

    def _on_message(self, lane: Lane, message: dict[str, Any]) -> None:
        request = lane.request
        if "broken" in message:
            if lane.foreign:
                raise ValueError("a program that calls its own failure the sandbox's")
            lane.killed = "broken: " + str(message["broken"])[:MOST_SAID]
            lane.child.kill()
        elif request is None:
            raise ValueError("a message that nobody asked for")
        elif request["op"] == "run":
            self._on_run_message(lane, request, message)
        elif lane.fork is not None:
            self._nursery.await_birth(lane.child)
            self._forks.hear(lane.fork, lane, message)
        elif "ready" in message and not lane.foreign:
            lane.foreign = True
            self._settle(lane, {"status": "ok", "alive": True})
        else:
            raise ValueError("an unknown message")

    def _adopt(self, lane: Lane) -> None:
        """Take over the lane of a fork's copy."""
        assert lane.request is not None
        self._sessions[lane.session] = lane
        self._asked.add(lane)
        self._watch_lane(lane)
        self._deadlines.arm(lane, lane.request["timeout"])

    def _on_run_message(self, lane: Lane, request: dict[str, Any], message: dict[str, Any]) -> None:
        if "begins" in message and not lane.foreign:
            lane.foreign = True
        elif "folder" in message and not lane.foreign and lane.folder < 0:
            self._open_folder(lane, str(message["folder"]))
        elif "compiled" in message and request.get("compile") and lane.compiled is None:
            lane.drain()
            lane.compiled = {"status": wire.plausible(int(message["compiled"])), **lane.outputs()}
            lane.begin(request)
            lane.child.memory_mb = request["memory_mb"]
            if self._birth.leaves is not None:
                with contextlib.suppress(OSError):  # what the compiler left takes more: then its limit stays
                    self._birth.leaves.limit(lane.child.slot, request["memory_mb"])
            lane.send({"go": True})  # only now: what it prints must not mix with the compiler's
            self._deadlines.arm(lane, request["timeout"])
        elif "done" in message:
            lane.drain()
            if message.get("why") in LIMITS_TOLD:
                lane.killed = lane.killed or message["why"]
            code = wire.plausible(int(message["done"]))
            self._finish_run(lane, code, wire.plausible(float(message["cpu"])), wire.plausible(int(message["rss_kb"])))
            lane.child.kill()
        else:
            raise ValueError("an unknown message")

    def _open_folder(self, lane: Lane, home: str) -> None:
        """Take hold of a child's folder before any foreign code runs there. The child waits for that."""
        path, place = lane.child.folder, None
        if self._birth.confinement.namespaces:
            self._nursery.await_birth(lane.child)
            path, place = f"{memory.number(self._eyes.proc, lane.child.pidfd)}/root/tmp", self._eyes.proc
        try:
            lane.folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        except (FileNotFoundError, ProcessLookupError):
            lane.child.kill()  # somebody has killed it already: its end is the answer
            return
        except OSError as error:
            lane.killed = f"broken: the program's folder cannot be opened: {error}"
            lane.child.kill()
            return
        lane.home = home
        lane.send({"go": True})

    # ------------------------------------------------------------------ endings

    def _finish_run(self, lane: Lane, code: int | None, cpu: float, rss_kb: int) -> None:
        """Answer a run, once."""
        request = lane.request
        if request is None:
            return
        lane.request = None
        lane.deadline = 0
        self._running.pop(request["id"], None)
        status = lane.killed
        if not status:
            status = _status_of(code, cpu, request.get("cpu_seconds"))
            if status in ("killed", "error") and self._ran_out_of_memory(lane.child):
                status = "memory_limit"
        message = lane.why
        if status.startswith("broken"):
            status, message = "sandbox_error", status
        elif status == "protocol":
            status = "killed"
        if lane.compiled is not None and lane.compiled["status"] != 0:
            status = "compile_error"
        answer = {
            "status": status,
            "code": code,
            "message": message,
            "cpu": cpu,
            "rss": max(0, rss_kb * 1024 - self._eyes.shared_pages * memory.PAGE),
            "compiled": lane.compiled,
            **lane.outputs(),
        }
        if status == "cancelled":
            return
        if request.get("fetch"):
            self._fetches.append((request, answer, Fetch(lane.folder, lane.home, request["fetch"])))
        else:
            self._host.answer(request, answer)

    def _fetch_on(self) -> None:
        """Read some more of the files that answers wait for; others shall not wait for all of them."""
        request, answer, fetch = self._fetches[0]
        data = fetch.read()
        if data:
            self._host.pass_on(request["id"], data)
            return
        self._fetches.pop(0)
        self._host.answer(request, {**answer, "files": fetch.found})

    def _ran_out_of_memory(self, child: Child) -> bool:
        """Whether the kernel has killed something of it for its memory."""
        return self._birth.leaves is not None and self._birth.leaves.overrun(child.slot)

    def _settle(self, lane: Lane, answer: Mapping[str, Any]) -> None:
        """Answer a session's request, once."""
        request = lane.request
        if request is None:
            return
        lane.request = None
        lane.deadline = 0
        self._host.answer(request, {**answer, **lane.outputs()})

    def _on_deadline(self, lane: Lane) -> None:
        lane.deadline = 0
        if lane.request is None:
            return
        if lane.session and lane.request["op"] in ("cell", "exec") and not lane.warned:
            # One that has hardly begun may ignore interrupts still: it gets another.
            young = time.monotonic() - lane.started < YOUNG
            lane.interrupted, lane.warned = True, not young
            lane.signal(signal.SIGINT)
            self._deadlines.arm(lane, YOUNG / 5 if young else SOFT_KILL)
            return
        lane.killed = lane.killed or "timeout"
        if lane.session:
            self._drop(lane, "timeout")
        else:
            lane.child.kill()

    def _drop(self, lane: Lane, why: str) -> None:
        """End one interpreter of a session; the last one takes its namespaces along."""
        self._sessions.pop(lane.session, None)
        self._asked.discard(lane)
        lane.drain()
        reason, message = lane.killed or why, lane.why
        if reason == "died" and self._ran_out_of_memory(lane.child):
            reason = "memory_limit"
        if reason.startswith("broken"):
            reason, message = "sandbox_error", reason
        if reason not in ("timeout", "memory_limit", "disk_limit", "output_limit", "sandbox_error"):
            reason = "killed"
        fork, lane.fork = lane.fork, None
        if fork is not None:
            lane.request = None
            self._forks.lost(fork, lane, reason, message)
        elif why != "closed" and (lane.request is None or "cancelled" in lane.request):
            # Nobody hears of it now: the next call will.
            self._ended[lane.session] = reason, message or "the session ended between two calls"
        self._settle(lane, {"status": reason, "alive": False, "message": message})
        lane.signal(signal.SIGKILL)
        lane.free()
        if lane in lane.child.lanes:
            lane.child.lanes.remove(lane)
        if not lane.child.lanes:
            lane.child.kill()

    def _on_death(self, child: Child) -> None:
        """A child's process is gone; in a pid namespace, others may go on until that is ended."""
        # An event may be stale: its descriptor's number may have gone to another child since it was reported.
        end = self._nursery.bury(child)
        if end is None:
            return
        code, usage = end
        self._reactor.unwatch(child.pidfd)
        for lane in [one for one in child.lanes if child.ended or one is child.first]:
            self._lay_down(lane, code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
        if child.ended:
            self._nursery.forget(child)
            return
        self._reactor.watch(child.init_fd, lambda _: self._on_end(child))
        if not child.lanes:
            child.kill()

    def _on_stillbirth(self, child: Child, why: str) -> None:
        """A child could not be forked. Another one does what it was to do; where that fails too, the sandbox does.

        The first process of its namespace may have been killed, by a machine short of memory for example. Nothing of
        the request has run yet.
        """
        self._stillborn += 1
        again = None
        for lane in list(child.lanes):
            request = lane.request
            tries = 1 if request is None else request.get("tries", 1)
            if request is not None and not lane.killed and tries < MOST_STILLBORN:
                again = {**request, "tries": tries + 1}
                lane.request = None
                lane.deadline = 0
                self._running.pop(request["id"], None)
                self._sessions.pop(lane.session, None)
                lane.session = ""
            else:
                lane.killed = lane.killed or f"broken: {why}"
            self._lay_down(lane, None, 0.0, 0)
        self._nursery.forget(child)
        if again is not None:
            self._host.carry_out(again)

    def _on_end(self, child: Child) -> None:
        """The last process of a child's pid namespace is gone."""
        if not self._nursery.bury_rest(child):
            return
        self._reactor.unwatch(child.init_fd)
        for lane in list(child.lanes):
            self._lay_down(lane, None, 0.0, 0)
        self._nursery.forget(child)

    def _lay_down(self, lane: Lane, code: int | None, cpu: float, rss_kb: int) -> None:
        """The process at the other end is gone: hear its last words, and answer."""
        for _ in range(LAST_WORDS):
            if lane.control.fileno() < 0 or not self._on_control(lane, select.EPOLLIN):
                break
        lane.drain()
        if lane.session:
            self._drop(lane, "died")
        else:
            self._finish_run(lane, code, cpu, rss_kb)
            lane.free()
        if lane in lane.child.lanes:
            lane.child.lanes.remove(lane)


def _status_of(code: int | None, cpu: float, cpu_seconds: float | None) -> str:
    # The kernel counts whole ticks for the limit, and less for the usage, where another machine took part of a tick.
    least = {-signal.SIGXCPU: 0.5, -signal.SIGKILL: 1.0}.get(code or 0)
    if cpu_seconds is not None and least is not None and cpu >= least * cpu_seconds:
        return "cpu_limit"
    if code == -signal.SIGXFSZ:
        return "file_limit"
    if code is None or code < 0:
        return "killed"
    return "ok" if code == 0 else "error"
