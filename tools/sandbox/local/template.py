"""The template process: loads the libraries once, and forks a confined child for every execution and session.

One thread, one epoll loop. It talks to the host over a socket (`wire` frames), and to each child over a control
socket and two pipes. Children are forked ahead of time and wait for their first request, confined already; a *run*
uses one up, a *session* keeps it.

Requests from the host, each with an `id`; the answer carries the same:

    run      code, argv?, compile?, source?, files?, env?, stdin?, fetch?, timeout, compile_timeout?, memory_mb
    open     session, files?, env?, memory_mb          becomes a session
    cell     session, code, timeout
    exec     session, argv, stdin?, timeout
    read     session, name, most / write: session, name, data
    fork     session, into
    close    session
    cancel   of                                         the id of a request to give up
"""

from __future__ import annotations

import base64
import contextlib
import gc
import heapq
import importlib
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import folders, jail, kernel, program, repl, seccomp, wire
from toolgym.tools.sandbox.local.capture import Capture
from toolgym.tools.sandbox.local.confine import CONTROL_FD, Confinement
from toolgym.tools.sandbox.local.landlock import Ruleset, abi

STDLIB = (
    "argparse", "array", "asyncio", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "logging", "math", "operator", "pathlib", "pickle", "pprint", "queue", "random", "re", "shutil", "statistics",
    "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time", "traceback", "typing", "unittest",
    "uuid",
)  # fmt: skip
"""What nearly every program imports; loaded before the fork, it is shared."""

SOFT_KILL = 0.5
"""Seconds between the interrupt of a cell at its deadline and the kill."""

WATCH_EVERY = 0.05
"""Seconds between two looks at the memory of what runs."""

MAX_FETCH = 32 * 1024 * 1024
"""Bytes of one file that is fetched."""

PAGE = resource.getpagesize()


def main(config: Mapping[str, Any]) -> NoReturn:
    """Be a template process. `config` is what `toolgym.tools.sandbox.local.supervisor` sends."""
    host = socket.socket(fileno=config["socket"])
    os.set_inheritable(host.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_descriptor_limit()
    jailed = jail.Jailed(0, os.path.isdir("/proc/self"), -1, -1)
    namespaces = config["level"] == "namespaces"
    if namespaces:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
        jailed = jail.enter(config["read_only"], network=config["network"] == "host")
        if jailed.pid:
            host.close()
            _wait_for(jailed.pid)
    _clean_environment(config)
    for name in (*STDLIB, *config["preload"]):
        try:
            importlib.import_module(name)
        except ImportError as error:
            _refuse(host, f"cannot preload {name!r}: {error}")
    if config["warm_code"]:
        exec(compile(config["warm_code"], "<warm>", "exec"), {"__name__": "__warm__"})
    if jailed.fresh_proc and len(os.listdir("/proc/self/task")) != 1:
        _refuse(host, "a preloaded module started a thread; a process with threads cannot be forked safely")
    Template(host, config, jailed).serve()


def _refuse(host: socket.socket, why: str) -> NoReturn:
    host.sendall(wire.encode({"refused": why}))
    os._exit(3)


def _wait_for(pid: int) -> NoReturn:
    """Outside of the jail: end when it ends."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    while True:
        with contextlib.suppress(InterruptedError):
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _clean_environment(config: Mapping[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(
        PATH=config["path"],
        HOME="/tmp",
        TMPDIR="/tmp",
        USER="user",
        LOGNAME="user",
        LANG="C.UTF-8",
        MPLBACKEND="Agg",
        MPLCONFIGDIR="/tmp",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        PYTHONDONTWRITEBYTECODE="1",
    )


_FROZEN = {"namespaces": (), "uid": (*seccomp.TIMES, *seccomp.ATTRIBUTES), "landlock": seccomp.METADATA}
"""Per level, calls on files that do nothing, for Landlock does not cover them."""


class Lane:
    """One line of conversation with an interpreter: a control socket, two pipes, and at most one request."""

    def __init__(self, child: Child, control: int, out: int, err: int, handle: int, cap: int) -> None:
        self.child = child
        self.control = socket.socket(fileno=control)
        self.control.setblocking(False)
        self.pipes = {1: out, 2: err}
        for fd in self.pipes.values():
            os.set_blocking(fd, False)
        self.handle = handle
        self.decoder = wire.Decoder(wire.MAX_FROM_CHILD)
        self.cap = cap
        self.output = {1: Capture(cap), 2: Capture(cap)}
        self.request: dict[str, Any] | None = None
        self.started = 0.0
        self.deadline = 0
        self.interrupted = False
        self.killed = ""
        self.folder = -1
        self.compiled: dict[str, Any] | None = None
        self.session = ""
        self.copy_of: Lane | None = None
        self.copied: dict[str, Any] | None = None
        self.received: list[int] = []
        self.outbox = bytearray()

    def begin(self, request: dict[str, Any]) -> None:
        self.request = request
        self.started = time.monotonic()
        self.interrupted = False
        self.output = {1: Capture(self.cap), 2: Capture(self.cap)}


class Child:
    """A forked process and all that lives in its namespaces."""

    def __init__(self, slot: int, pid: int, pidfd: int, folder: str) -> None:
        self.slot, self.pid, self.pidfd, self.folder = slot, pid, pidfd, folder
        self.lanes: list[Lane] = []
        self.status: int | None = None
        self.usage: Any = None
        self.memory_mb = 0

    def kill(self) -> None:
        if self.status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Template:
    """The loop."""

    def __init__(self, host: socket.socket, config: Mapping[str, Any], jailed: jail.Jailed) -> None:
        self._host = host
        self._host_in = wire.Decoder()
        self._host_out = bytearray()
        self._config = config
        self._limits = config["limits"]
        self._namespaces = config["level"] == "namespaces"
        self._can_fork = config["level"] != "landlock"
        self._has_proc = jailed.fresh_proc
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._timers: list[tuple[float, int, Lane]] = []
        self._sequence = 0
        self._warm: list[Child] = []
        self._children: dict[int, Child] = {}
        self._sessions: dict[str, Lane] = {}
        self._running: dict[int, Lane] = {}
        self._slots: list[int] = []
        self._next_slot = 0
        self._next_watch = 0.0
        self._devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        network = config["network"]
        ruleset = None
        if abi():
            readable = ["/"] if self._namespaces else config["read_only"]
            devices = [f"/dev/{name}" for name in jail.DEVICES]
            ruleset = Ruleset(readable, devices)
        child_filter = None
        if seccomp.supported():
            child_filter = seccomp.child_filter(
                fork=self._can_fork,
                network=network != "off",
                sockets=self._namespaces or network != "off",
                frozen=_FROZEN[config["level"]],
                own_only=not self._namespaces,
            )
        statm = _memory_pages() if self._has_proc else [0] * 7
        self._rss_pages = statm[1]
        self._confinement = Confinement(
            namespaces=self._namespaces,
            own_network=network == "loopback",
            fresh_proc=self._namespaces and jailed.fresh_proc,
            landlock=ruleset,
            filter=child_filter,
            network=network != "off",
            first_uid=config["first_uid"],
            disk_mb=self._limits["disk_mb"],
            inodes=self._limits["inodes"],
            file_mb=self._limits["file_mb"],
            processes=self._limits["processes"],
            open_files=self._limits["open_files"],
            data_pages=statm[5],
            proc=jailed.host_proc,
            below_tmp=tuple(path for path in jail.outermost(config["read_only"]) if path.startswith("/tmp/")),
        )
        self._pid_namespace = jailed.pid_namespace
        if seccomp.supported():
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            needs = seccomp.TEMPLATE_NEEDS if self._namespaces else ()
            seccomp.install(seccomp.template_filter(needs=needs))

    def serve(self) -> NoReturn:
        """Serve until the host's socket closes."""
        # Programs shall find none of this; and here, before the fork, forgetting it costs them nothing.
        for name in [key for key in sys.modules if key.partition(".")[0] == "toolgym"]:
            del sys.modules[name]
        gc.collect()
        kernel.trim_heap()
        gc.freeze()
        gc.disable()
        self._host.setblocking(False)
        self._watch(self._host.fileno(), self._on_host)
        layers = {
            "landlock": abi() if self._confinement.landlock is not None else 0,
            "seccomp": self._confinement.filter is not None,
            "fresh_proc": self._confinement.fresh_proc,
        }
        self._tell({"ready": True, "pid": os.getpid(), "layers": layers})
        while True:
            # Forking ahead takes time that whoever waits for an answer would feel, so it is done when nobody does.
            idle = not self._running and len(self._warm) < self._config["warm"]
            events = self._wait(0.0 if idle else None)
            for fd, event in events:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler(event)
            if idle and not events:
                self._warm.append(self._fork())

    def _wait(self, most: float | None) -> list[tuple[int, int]]:
        """Events, after at most this many seconds; None waits for the next one, or the next deadline."""
        now = time.monotonic()
        patience = -1.0 if most is None else most
        while self._timers:
            when, tag, lane = self._timers[0]
            if lane.deadline != tag:
                heapq.heappop(self._timers)
            elif when <= now:
                heapq.heappop(self._timers)
                self._on_deadline(lane)
            else:
                patience = when - now if patience < 0 else min(patience, when - now)
                break
        if self._has_proc and (self._running or self._sessions):
            if now >= self._next_watch:
                self._look_at_memory()
                self._next_watch = time.monotonic() + WATCH_EVERY
            if self._running or any(lane.request for lane in self._sessions.values()):
                patience = WATCH_EVERY if patience < 0 else min(patience, WATCH_EVERY)
            else:
                patience = 1.0 if patience < 0 else min(patience, 1.0)
        try:
            return self._poll.poll(patience)
        except InterruptedError:
            return []

    # ------------------------------------------------------------------ descriptors

    def _watch(self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)

    # ------------------------------------------------------------------ host

    def _on_host(self, event: int) -> None:
        if event & select.EPOLLOUT:
            self._flush_host()
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = self._host.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)  # children die with their parent
        for request in self._host_in.feed(data):
            try:
                getattr(self, f"_do_{request['op']}")(request)
            except Exception as error:  # noqa: BLE001  one bad request must not harm another
                self._answer(request, {"status": "sandbox_error", "message": f"{type(error).__name__}: {error}"})

    def _tell(self, message: dict[str, Any]) -> None:
        self._host_out += wire.encode(message)
        self._flush_host()

    def _answer(self, request: Mapping[str, Any], message: dict[str, Any]) -> None:
        self._tell({"id": request.get("id"), **message})

    def _flush_host(self) -> None:
        waiting = len(self._host_out)
        while self._host_out:
            try:
                sent = self._host.send(self._host_out)
            except BlockingIOError:
                break
            except OSError:
                os._exit(0)
            del self._host_out[:sent]
        if self._host_out:
            self._poll.modify(self._host.fileno(), select.EPOLLIN | select.EPOLLOUT)
        elif waiting:
            self._poll.modify(self._host.fileno(), select.EPOLLIN)

    # ------------------------------------------------------------------ requests

    def _do_run(self, request: dict[str, Any]) -> None:
        lane = self._take()
        lane.begin(request)
        lane.child.memory_mb = request["memory_mb"]
        self._running[request["id"]] = lane
        self._send(lane, {**request, "fork": self._can_fork})
        self._arm(lane, request["compile_timeout"] if request.get("compile") else request["timeout"])

    def _do_open(self, request: dict[str, Any]) -> None:
        lane = self._take()
        lane.begin(request)
        lane.child.memory_mb = request["memory_mb"]
        lane.session = request["session"]
        self._sessions[lane.session] = lane
        self._send(lane, {**request, "op": "session", "fork": self._can_fork})
        self._arm(lane, request["timeout"])

    def _session_request(self, request: dict[str, Any]) -> None:
        lane = self._sessions.get(request["session"])
        if lane is None or lane.request is not None:
            why = "no such session" if lane is None else "the session is busy"
            self._answer(request, {"status": "sandbox_error", "alive": lane is not None, "message": why})
            return
        lane.begin(request)
        self._send(lane, request)
        self._arm(lane, request["timeout"])

    _do_cell = _do_exec = _do_read = _do_write = _session_request

    def _do_fork(self, request: dict[str, Any]) -> None:
        if not (self._namespaces and self._has_proc):
            why = "sessions fork only at the level 'namespaces' with a /proc of their own"
            self._answer(request, {"status": "sandbox_error", "alive": True, "message": why})
            return
        self._session_request(request)

    def _do_close(self, request: dict[str, Any]) -> None:
        lane = self._sessions.get(request["session"])
        if lane is not None:
            self._drop(lane, "closed")
        self._answer(request, {"status": "ok"})

    def _do_cancel(self, request: dict[str, Any]) -> None:
        lane = self._running.get(request["of"])
        if lane is not None:
            lane.killed = "cancelled"
            lane.child.kill()
            return
        for lane in self._sessions.values():
            if lane.request is not None and lane.request.get("id") == request["of"]:
                self._on_deadline(lane)
                return

    def _do_stat(self, request: dict[str, Any]) -> None:
        self._answer(
            request,
            {"children": len(self._children), "sessions": len(self._sessions), "rss_bytes": self._rss_pages * PAGE},
        )

    # ------------------------------------------------------------------ children

    def _take(self) -> Lane:
        """A confined child that waits for its first request."""
        while self._warm:
            child = self._warm.pop(0)
            if child.status is None:
                return child.lanes[0]
        return self._fork().lanes[0]

    def _fork(self) -> Child:
        slot = self._slots.pop() if self._slots else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        folder = "/tmp"
        if not self._namespaces:
            folder = f"{self._config['work']}/{slot}"
            os.mkdir(folder, 0o700)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        ours, theirs = socket.socketpair()
        if self._pid_namespace >= 0:
            kernel.unshare(kernel.CLONE_NEWPID)
        pid = kernel.fork()
        if pid == 0:
            self._be_child(slot, folder, theirs.detach(), out_write, err_write)
        if self._pid_namespace >= 0:
            kernel.setns(self._pid_namespace, kernel.CLONE_NEWPID)
        os.close(out_write)
        os.close(err_write)
        theirs.close()
        child = Child(slot, pid, os.pidfd_open(pid), folder)
        lane = Lane(child, ours.detach(), out_read, err_read, -1, self._limits["output_bytes"])
        child.lanes.append(lane)
        self._children[pid] = child
        self._watch(child.pidfd, lambda _: self._on_death(child))
        self._watch_lane(lane)
        return child

    def _watch_lane(self, lane: Lane) -> None:
        self._watch(lane.control.fileno(), lambda event: self._on_control(lane, event))
        for stream, fd in lane.pipes.items():
            self._watch(fd, lambda _, stream=stream: self._read_output(lane, stream))  # type: ignore[misc]

    def _be_child(self, slot: int, folder: str, control: int, out: int, err: int) -> NoReturn:
        try:
            os.dup2(self._devnull, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            folder = self._confinement.apply(slot, folder, control)
            if not self._namespaces:
                os.environ.update(HOME=folder, TMPDIR=folder, MPLCONFIGDIR=folder)
            request = wire.receive(CONTROL_FD)
            if request is None:
                os._exit(0)
            self._confinement.limit_memory(request["memory_mb"])
            if request["op"] == "run":
                program.run(request)
            repl.serve(request)
        except BaseException as error:  # noqa: BLE001  nothing may leave this process but by its exit
            with contextlib.suppress(BaseException):
                wire.send_all(CONTROL_FD, wire.encode({"broken": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(252)

    def _send(self, lane: Lane, request: Mapping[str, Any]) -> None:
        lane.outbox += wire.encode(request)
        self._flush_lane(lane)

    def _flush_lane(self, lane: Lane) -> None:
        if lane.control.fileno() < 0:
            return
        while lane.outbox:
            try:
                sent = lane.control.send(lane.outbox)
            except BlockingIOError:
                break
            except OSError:
                lane.outbox.clear()
                return
            del lane.outbox[:sent]
        events = select.EPOLLIN | (select.EPOLLOUT if lane.outbox else 0)
        with contextlib.suppress(OSError):
            self._poll.modify(lane.control.fileno(), events)

    # ------------------------------------------------------------------ what children say

    def _on_control(self, lane: Lane, event: int) -> bool:
        """Read what there is. Returns whether there may be more."""
        if event & select.EPOLLOUT:
            self._flush_lane(lane)
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return False
        try:
            data, fds, _, _ = socket.recv_fds(lane.control, 1 << 20, 8)
        except BlockingIOError:
            return False
        except OSError:
            data, fds = b"", []
        lane.received += fds
        if not data:
            self._unwatch(lane.control.fileno())
            if lane.session:
                self._drop(lane, "died")
            return False
        try:
            for message in lane.decoder.feed(data):
                self._on_message(lane, message)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            # Whoever wrote that is the program, pretending to be us.
            lane.killed = "protocol"
            lane.child.kill()
            return False
        return True

    def _on_message(self, lane: Lane, message: dict[str, Any]) -> None:
        request = lane.request
        if "broken" in message:
            lane.killed = "broken: " + str(message["broken"])
            lane.child.kill()
        elif "folder" in message:
            lane.folder = lane.received.pop(0)
        elif request is None:
            raise ValueError("a message that nobody asked for")
        elif request["op"] == "run":
            if "compiled" in message:
                self._drain(lane)
                lane.compiled = {"status": int(message["compiled"]), **self._outputs(lane)}
                lane.begin(request)
                self._send(lane, {"go": True})  # only now: what it prints must not mix with the compiler's
                self._arm(lane, request["timeout"])
            elif "done" in message:
                self._drain(lane)
                if message.get("why") in ("memory_limit", "file_limit", "disk_limit"):
                    lane.killed = lane.killed or message["why"]
                self._finish_run(lane, int(message["done"]), float(message["cpu"]), int(message["rss_kb"]))
                lane.child.kill()
            else:
                raise ValueError("an unknown message")
        elif "ready" in message:
            if lane.received:
                lane.handle = lane.received.pop(0)
            if lane.copy_of is not None:
                origin, lane.copy_of = lane.copy_of, None
                lane.request = None
                lane.deadline = 0
                self._finish_fork(origin, request)
            else:
                self._settle(lane, {"status": "ok", "alive": True})
        elif "forked" in message:
            control, out, err, handle = lane.received[:4]
            del lane.received[:4]
            copy = Lane(lane.child, control, out, err, handle, self._limits["output_bytes"])
            copy.session = request["into"]
            lane.child.lanes.append(copy)
            self._sessions[copy.session] = copy
            copy.begin(request)
            copy.copy_of = lane
            self._watch_lane(copy)
            self._arm(copy, request["timeout"])
        elif request["op"] == "fork":
            self._drain(lane)
            lane.request = None
            lane.deadline = 0
            if message.get("done"):
                self._finish_fork(lane, request)
            else:
                self._answer(request, {"status": "error", "alive": True, "message": str(message.get("failed"))})
        else:
            self._drain(lane)
            self._settle(lane, {"status": "timeout" if lane.interrupted else "ok", "alive": True, "answer": message})

    def _finish_fork(self, origin: Lane, request: dict[str, Any]) -> None:
        """Answer a fork once both sides have reported."""
        if origin.copied is request:
            origin.copied = None
            self._answer(request, {"status": "ok", "alive": True})
        else:
            origin.copied = request

    # ------------------------------------------------------------------ output

    def _read_output(self, lane: Lane, stream: int) -> None:
        fd = lane.pipes.get(stream, -1)
        if fd < 0:
            return
        while True:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_pipe(lane, stream)
                return
            lane.output[stream].add(data)
            if lane.output[stream].flooded and not lane.killed:
                lane.killed = "output_limit"
                lane.child.kill()
                return
            if len(data) < 65536:
                return

    def _drain(self, lane: Lane) -> None:
        for stream in (1, 2):
            before = -1
            while before != lane.output[stream].total and not lane.output[stream].flooded:
                before = lane.output[stream].total
                self._read_output(lane, stream)

    def _close_pipe(self, lane: Lane, stream: int) -> None:
        fd = lane.pipes.pop(stream, -1)
        if fd >= 0:
            self._unwatch(fd)
            os.close(fd)

    def _outputs(self, lane: Lane) -> dict[str, Any]:
        out, err = lane.output[1], lane.output[2]
        return {
            "stdout": out.text(),
            "stderr": err.text(),
            "stdout_truncated": out.truncated,
            "stderr_truncated": err.truncated,
            "duration": time.monotonic() - lane.started,
        }

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
        message = ""
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
            "rss": max(0, rss_kb * 1024 - self._rss_pages * PAGE),
            "compiled": lane.compiled,
            "files": self._fetch(lane, request.get("fetch") or ()),
            **self._outputs(lane),
        }
        if status != "cancelled":
            self._answer(request, answer)

    def _settle(self, lane: Lane, answer: dict[str, Any]) -> None:
        """Answer a session's request, once."""
        request = lane.request
        if request is None:
            return
        lane.request = None
        lane.deadline = 0
        self._answer(request, {**answer, **self._outputs(lane)})

    def _on_deadline(self, lane: Lane) -> None:
        lane.deadline = 0
        if lane.request is None:
            return
        if lane.session and lane.request["op"] in ("cell", "exec") and not lane.interrupted:
            lane.interrupted = True
            self._signal(lane, signal.SIGINT)
            self._arm(lane, SOFT_KILL)
            return
        lane.killed = lane.killed or "timeout"
        if lane.session:
            self._drop(lane, "timeout")
        else:
            lane.child.kill()

    def _signal(self, lane: Lane, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(lane.handle if lane.handle >= 0 else lane.child.pidfd, number)

    def _drop(self, lane: Lane, why: str) -> None:
        """End one interpreter of a session; the last one takes its namespaces along."""
        self._sessions.pop(lane.session, None)
        self._drain(lane)
        reason = lane.killed or why
        message = ""
        if reason.startswith("broken"):
            reason, message = "sandbox_error", reason
        if reason not in ("timeout", "memory_limit", "output_limit", "sandbox_error"):
            reason = "killed"
        self._settle(lane, {"status": reason, "alive": False, "message": message})
        self._signal(lane, signal.SIGKILL)
        self._free_lane(lane)
        if lane in lane.child.lanes:
            lane.child.lanes.remove(lane)
        if not lane.child.lanes:
            lane.child.kill()

    def _free_lane(self, lane: Lane) -> None:
        lane.deadline = 0
        for stream in (1, 2):
            self._close_pipe(lane, stream)
        if lane.control.fileno() >= 0:
            self._unwatch(lane.control.fileno())
            lane.control.close()
        for fd in (lane.handle, lane.folder, *lane.received):
            if fd >= 0:
                os.close(fd)
        lane.handle = lane.folder = -1
        lane.received = []

    def _on_death(self, child: Child) -> None:
        """The first process of a child is gone, and with it, in a pid namespace, every other one."""
        # An event may be stale: its descriptor's number may have gone to another child since it was reported.
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid == 0:
            return
        child.status = status
        self._unwatch(child.pidfd)
        if self._pid_namespace < 0:
            self._sweep()
        code = os.waitstatus_to_exitcode(status)
        for lane in list(child.lanes):
            while lane.control.fileno() >= 0 and self._on_control(lane, select.EPOLLIN):
                pass  # its last words
            self._drain(lane)
            if lane.session:
                self._drop(lane, "died")
            else:
                self._finish_run(lane, code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
                self._free_lane(lane)
        child.lanes.clear()
        if child in self._warm:
            self._warm.remove(child)
        if not self._namespaces:
            folders.remove(child.folder)
        os.close(child.pidfd)
        del self._children[child.pid]
        self._slots.append(child.slot)

    def _sweep(self) -> None:
        """Without a pid namespace: what a dead child left behind was re-parented to us, the subreaper."""
        own = set(self._children)
        for _ in range(100):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                orphans = [int(word) for word in file.read().split() if int(word) not in own]
            if not orphans:
                return
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)

    # ------------------------------------------------------------------ time and memory

    def _arm(self, lane: Lane, seconds: float) -> None:
        self._sequence += 1
        lane.deadline = self._sequence
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._sequence, lane))

    def _look_at_memory(self) -> None:
        """Kill what uses more memory than it may, all processes of a child taken together."""
        lanes = [*self._running.values(), *(lane for lane in self._sessions.values() if lane.request)]
        for child in {lane.child.pid: lane.child for lane in lanes}.values():
            used = sum(max(0, _resident_pages(pid) - self._rss_pages) for pid in _tree(child.pid)) * PAGE
            if used > child.memory_mb << 20:
                for lane in child.lanes:
                    lane.killed = lane.killed or "memory_limit"
                child.kill()

    def _fetch(self, lane: Lane, names: Sequence[str]) -> dict[str, str]:
        """Read files through the handle that the child gave before any foreign code ran."""
        found: dict[str, str] = {}
        if lane.folder < 0:
            return found
        for name in names:
            relative = name.removeprefix("/tmp/")
            try:
                fd = kernel.open_beneath(lane.folder, relative)
            except OSError:
                continue
            try:
                about = os.fstat(fd)
                if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_FETCH:
                    found[name] = base64.b64encode(_read_whole(fd, about.st_size)).decode()
            finally:
                os.close(fd)
        return found


def _memory_pages() -> list[int]:
    with open("/proc/self/statm") as file:
        return [int(word) for word in file.read().split()]


def _status_of(code: int | None, cpu: float, cpu_seconds: float | None) -> str:
    if cpu_seconds is not None and code is not None and code < 0 and cpu >= cpu_seconds:
        return "cpu_limit"
    if code == -signal.SIGXCPU:
        return "cpu_limit"
    if code == -signal.SIGXFSZ:
        return "file_limit"
    if code is None or code < 0:
        return "killed"
    return "ok" if code == 0 else "error"


def _read_whole(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(fd, size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def _resident_pages(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
