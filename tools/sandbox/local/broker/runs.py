"""Runs in the broker: the notes of their children, and their answers with the files that they fetch."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from toolgym.tools.sandbox.local.broker import memory
from toolgym.tools.sandbox.local.broker.channel import Channel, Kill, KillReason
from toolgym.tools.sandbox.local.broker.child_pool import ChildPool
from toolgym.tools.sandbox.local.broker.fetching import Fetch
from toolgym.tools.sandbox.local.broker.host_link import HostLink
from toolgym.tools.sandbox.local.broker.reactor import Deadlines
from toolgym.tools.sandbox.local.broker.watchdog import MonitorConfig
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.child_messages import Go
    from toolgym.tools.sandbox.local.protocol.messages import RunAnswer, Status

REPORTED_LIMITS = {
    "memory_limit": KillReason.MEMORY_LIMIT,
    "file_limit": KillReason.FILE_LIMIT,
    "disk_limit": KillReason.DISK_LIMIT,
}
"""Limits that a program may report to have met; a lie would gain it nothing."""


class Runs:
    """Takes the notes of children that run a program, and answers the host.

    Args:
        host: gets the answers.
        pool: of the children.
        deadlines: of their channels.
        spec: how children are made.
        monitor: how they are watched.

    Attributes:
        running: the channels of all runs, by the id of the request.
    """

    def __init__(
        self,
        host: HostLink,
        pool: ChildPool,
        deadlines: Deadlines[Channel],
        spec: ChildSpec,
        monitor: MonitorConfig,
    ) -> None:
        self._host, self._pool, self._deadlines, self._spec, self._monitor = host, pool, deadlines, spec, monitor
        self._fetches: list[tuple[dict[str, Any], RunAnswer, Fetch]] = []
        self.running: dict[int, Channel] = {}

    # ------------------------------------------------------------------ notes

    def on_note(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        """Take a note of a child that runs a program.

        Raises:
            ValueError: it makes no sense at this point.
        """
        handle = self._NOTES.get(next(iter(note), ""))
        if handle is None:
            raise ValueError("an unknown note")
        handle(self, channel, request, note)

    def _on_begins(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        if channel.untrusted:
            raise ValueError("a second beginning")
        channel.untrusted = True

    def _on_folder(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        """Open the child's folder before any user code runs there. The child waits for that."""
        if channel.untrusted or channel.run.folder >= 0:
            raise ValueError("a second folder, or one that user code names")
        path, place = channel.child.folder, None
        if self._spec.hardening.namespaces:
            self._pool.await_fork(channel.child)
            path, place = f"{memory.number(self._monitor.proc, channel.child.pidfd)}/root/tmp", self._monitor.proc
        try:
            channel.run.folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        except (FileNotFoundError, ProcessLookupError):
            channel.child.kill()  # it was killed from outside: its end is the answer
            return
        except OSError as error:
            channel.killed = Kill(KillReason.SANDBOX_FAILURE, f"the program's folder cannot be opened: {error}")
            channel.child.kill()
            return
        channel.run.home = str(note["folder"])
        self._send_go(channel)

    def _on_compiled(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        if not request.get("compile") or channel.run.compiled is not None:
            raise ValueError("a compiler's end where no compiler runs")
        channel.drain()
        channel.run.compiled = {"status": frames.plausible(int(note["compiled"])), **channel.outputs()}
        channel.begin(request)
        channel.child.memory_mb = request["memory_mb"]
        if self._spec.cgroups is not None:
            with contextlib.suppress(OSError):  # what the compiler left may take more: then its limit stays
                self._spec.cgroups.limit(channel.child.slot, request["memory_mb"])
        self._send_go(channel)  # only now: the program's output must not mix with the compiler's
        self._deadlines.arm(channel, request["timeout"])

    def _on_done(self, channel: Channel, request: dict[str, Any], note: dict[str, Any]) -> None:
        channel.drain()
        limit = REPORTED_LIMITS.get(str(note.get("why")))
        if limit is not None:
            channel.blame(limit)
        code = frames.plausible(int(note["done"]))
        cpu, rss_kb = frames.plausible(float(note["cpu"])), frames.plausible(int(note["rss_kb"]))
        self.finish(channel, code, cpu, rss_kb)
        channel.child.kill()

    _NOTES: ClassVar[Mapping[str, Callable[[Runs, Channel, dict[str, Any], dict[str, Any]], None]]] = {
        "begins": _on_begins,
        "folder": _on_folder,
        "compiled": _on_compiled,
        "done": _on_done,
    }

    @staticmethod
    def _send_go(channel: Channel) -> None:
        go: Go = {"go": True}
        channel.send(go)

    # ------------------------------------------------------------------ answers

    def finish(self, channel: Channel, code: int | None, cpu: float, rss_kb: int) -> None:
        """Answer a run, once.

        Args:
            channel: to its child.
            code: its exit code, negative for a signal; None: unknown.
            cpu: seconds of processor time.
            rss_kb: KiB resident at most.
        """
        request = channel.request
        if request is None:
            return
        channel.request = None
        channel.deadline = 0
        self.running.pop(request["id"], None)
        killed, compiled = channel.killed, channel.run.compiled
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
            "rss": max(0, rss_kb * 1024 - self._monitor.shared_pages * memory.PAGE),
            "compiled": compiled,
            "files": [],
            "left_out": [],
            **channel.outputs(),
        }
        if request.get("fetch"):
            self._fetches.append((request, answer, Fetch(channel.run.folder, channel.run.home, request["fetch"])))
        else:
            self._host.answer(request, answer)

    @property
    def fetching(self) -> bool:
        """Whether answers wait for files; see `fetch_more`."""
        return bool(self._fetches)

    def fetch_more(self) -> None:
        """Read one more chunk of the files that answers wait for: other requests are served in between."""
        request, answer, fetch = self._fetches[0]
        data = fetch.read()
        if data:
            self._host.forward(request["id"], data)
            return
        self._fetches.pop(0)
        answer["files"], answer["left_out"] = fetch.found, fetch.left_out
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
