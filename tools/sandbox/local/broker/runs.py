"""Runs in the broker: the notes of their children, and their answers with the files that they fetch."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.channel import Channel, KillReason
from toolgym.tools.sandbox.local.broker.child_pool import ChildPool
from toolgym.tools.sandbox.local.broker.host_link import HostLink
from toolgym.tools.sandbox.local.broker.reactor import Deadlines
from toolgym.tools.sandbox.local.kernel import syscalls
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import RunAnswer, Status

MAX_TOTAL = 256 * 1024 * 1024

READ_SIZE = 4 * 1024 * 1024

MAX_REASONS = 100


class Runs:
    """Takes the notes of children that run a program, and answers the host. `running` has channels by request id."""

    def __init__(self, host: HostLink, pool: ChildPool, deadlines: Deadlines[Channel], spec: ChildSpec) -> None:
        self._host, self._pool, self._deadlines, self._spec = host, pool, deadlines, spec
        self.fetches: list[tuple[dict[str, Any], RunAnswer, Fetch]] = []
        self.running: dict[int, Channel] = {}

    def on_note(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        kind = next(iter(note), "")
        if kind == "begins" and not channel.untrusted:
            channel.untrusted = True
        elif kind == "folder":
            self._on_folder(channel, note)
        elif kind == "compiled":
            self._on_compiled(channel, request, note)
        elif kind == "done":
            self._on_done(channel, note)
        else:
            raise ValueError("an unknown note, or a second beginning")

    def _on_folder(self, channel: Channel, note: dict[str, Any]) -> None:
        """Open the child's folder before any user code runs there. The child waits for that."""
        if channel.untrusted or channel.folder >= 0:
            raise ValueError("a second folder, or one that user code names")
        path, place = channel.child.folder, None
        if self._spec.hardening.namespaces:
            self._pool.await_fork(channel.child)
            path, place = f"{usage.number(self._spec.proc, channel.child.pidfd)}/root/tmp", self._spec.proc
        try:
            channel.folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        except (FileNotFoundError, ProcessLookupError):
            channel.child.kill()  # it was killed from outside: its end is the answer
            return
        except OSError as error:
            channel.kill_child(KillReason.SANDBOX_FAILURE, f"the program's folder cannot be opened: {error}")
            return
        channel.home = str(note["folder"])
        channel.send({"go": True})

    def _on_compiled(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        if not request.get("compile") or channel.compiled is not None:
            raise ValueError("a compiler's end where no compiler runs")
        channel.drain()
        channel.compiled = {"status": frames.plausible(int(note["compiled"])), **channel.outputs()}
        channel.begin(request)
        channel.child.memory_mb = request["memory_mb"]
        if self._spec.cgroups is not None:
            with contextlib.suppress(OSError):  # what the compiler left may take more: then its limit stays
                self._spec.cgroups.limit(channel.child.slot, request["memory_mb"])
        channel.send({"go": True})  # only now: the program's output must not mix with the compiler's
        self._deadlines.arm(channel, request["timeout"])

    def _on_done(self, channel: Channel, note: dict[str, Any]) -> None:
        channel.drain()
        if note.get("why") in frames.REPORTED_LIMITS:
            channel.blame(KillReason(note["why"]))
        code = frames.plausible(int(note["done"]))
        cpu, rss_kb = frames.plausible(float(note["cpu"])), frames.plausible(int(note["rss_kb"]))
        self.finish(channel, code, cpu, rss_kb)
        channel.child.kill()

    def finish(self, channel: Channel, code: int | None, cpu: float, rss_kb: int) -> None:
        """Answer a run, once: with its exit code (None: unknown), seconds of processor time, and KiB resident."""
        request = channel.take_request()
        if request is None:
            return
        self.running.pop(request["id"], None)
        killed, compiled = channel.killed, channel.compiled
        if killed is not None and killed.reason is KillReason.CANCELLED:
            return
        if killed is not None:
            status = killed.reason.status
        else:
            status = _status_of(code, cpu, request.get("cpu_seconds"))
            if status in ("killed", "error") and self._spec.ran_out_of_memory(channel.child.slot):
                status = "memory_limit"
        if compiled is not None and compiled["status"] != 0:
            status = "compile_error"
        answer: RunAnswer = {
            "status": status,
            "code": code,
            "message": killed.detail if killed is not None else "",
            "cpu": cpu,
            "rss": max(0, rss_kb * 1024 - self._spec.shared_pages * usage.PAGE),
            "compiled": compiled,
            "files": [],
            "left_out": [],
            **channel.outputs(),
        }
        if request.get("fetch"):
            self.fetches.append((request, answer, Fetch(channel.folder, channel.home, request["fetch"])))
        else:
            self._host.answer(request, answer)

    def fetch_more(self) -> None:
        """Read one more chunk of the files that answers wait for: other requests are served in between."""
        request, answer, fetch = self.fetches[0]
        data = fetch.read()
        if data:
            self._host.forward(request["id"], data)
            return
        self.fetches.pop(0)
        answer["files"], answer["left_out"] = fetch.read_files, fetch.left_out
        self._host.answer(request, answer)


def _status_of(code: int | None, cpu: float, cpu_seconds: float | None) -> Status:
    # The kernel counts whole ticks for the limit, and less for the usage, where another machine took part of a tick.
    least = {-signal.SIGXCPU: 0.5, -signal.SIGKILL: 1.0}.get(code or 0)
    if cpu_seconds is not None and least is not None and cpu >= least * cpu_seconds:
        return "cpu_limit"
    if code == -signal.SIGXFSZ:
        return "file_limit"
    if code is None or code < 0:
        return "killed"
    return "ok" if code == 0 else "error"


class Fetch:
    """Files of a child's folder that are being read. A program may have filled it with traps.

    Those that are absent, too large, not plain files or behind a link are left out; of those that exist, `left_out`
    says why. All are opened at once, so that later changes of the folder do not matter, and read in steps. `folder` is
    a handle (-1: there is none), `home` the program's working folder relative to it, and names are relative to that, or
    absolute below /tmp, which then is the folder.
    """

    def __init__(self, folder: int, home: str, names: Sequence[str]) -> None:
        self.read_files: list[tuple[str, int]] = []
        self.left_out: list[str] = []
        self._open: list[tuple[str, int, int]] = []
        self._room = MAX_TOTAL
        for name in dict.fromkeys(names) if folder >= 0 else ():
            try:
                inside = name.removeprefix("/tmp/")
                fd = syscalls.open_beneath(folder, inside if inside != name else os.path.join(home, name))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                linked = error.errno in (errno.ELOOP, errno.EXDEV)
                self._leave_out(name, "is a link, or behind one" if linked else os.strerror(error.errno or 0))
                continue
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                self._leave_out(name, "is not a plain file", fd)
            elif about.st_size > self._room:
                self._leave_out(name, f"has {about.st_size} bytes, and all files together may have {MAX_TOTAL}", fd)
            else:
                self._room -= about.st_size
                self._open.append((name, fd, about.st_size))
        self._open.reverse()
        self._size = 0

    def _leave_out(self, name: str, why: str, fd: int = -1) -> None:
        if fd >= 0:
            os.close(fd)
        if len(self.left_out) < MAX_REASONS:
            self.left_out.append(f"{name[:200]!r} {why}")

    def read(self) -> bytes:
        """The next bytes of the files; empty: there are no more, and all files are closed."""
        while self._open:
            name, fd, size = self._open[-1]
            data = os.read(fd, min(READ_SIZE, size - self._size)) if size > self._size else b""
            self._size += len(data)
            if data:
                return data
            os.close(fd)
            self._open.pop()
            self.read_files.append((name, self._size))
            self._size = 0
        return b""
