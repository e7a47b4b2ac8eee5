"""A program of another language, which is compiled once and started for each test."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.judge.inside import processes
from toolgym.tools.judge.inside.files import Streams
from toolgym.tools.judge.inside.limits import LimitError, LimitWatch, TestLimits, await_end
from toolgym.tools.judge.inside.link import BrokenLinkError
from toolgym.tools.judge.inside.loader import Loader

_MAX_ERROR = 4000


class CompiledProgram:
    """A program of another language: compiled once, and started for each test. It has the methods of `Loader`."""

    def __init__(self, command: Mapping[str, Any], program: str) -> None:
        self._command, self._program = command, program
        self._environment = {**os.environ, **command["env"]}
        self.pid = 0
        self._memory_mb: int | None = None
        self.streams = Streams()

    def load(self, limits: TestLimits, memory_mb: int | None) -> tuple[str, str]:
        self._memory_mb = memory_mb
        for need in self._command["needs"]:
            if shutil.which(need, path=self._environment.get("PATH")) is None and not os.path.exists(need):
                return "not_installed", need
        for module in self._command["modules"]:
            if importlib.util.find_spec(module) is None:
                return "not_installed", module
        with open(self._command["source"], "wb") as file:
            file.write(self._program.encode("utf-8", "surrogatepass"))
        if not self._command["compile"]:
            return "", ""
        self.streams.begin("")
        stdin, out, _ = self.streams.files
        pid = self._start(self._command["compile"], (stdin, out, out), limits)
        status, _, failure = await_program(self, pid, limits, self.streams)
        if failure:
            return "compile_error", failure[1]
        return ("", "") if status == 0 else ("compile_error", self.streams.read(1, _MAX_ERROR)[0])

    def fork(self, limits: TestLimits, argv: Sequence[str] = ()) -> int:
        words = [*self._command["argv"], *argv]
        return self._start(words, self.streams.files, limits, native=self._command["native"])

    def is_ready(self) -> bool:
        return True

    def reap(self, limits: TestLimits) -> tuple[int, float]:
        return processes.reap(self.pid)

    def end(self) -> None: ...

    def _start(self, argv: Sequence[str], fds: Sequence[int], limits: TestLimits, *, native: bool = False) -> int:
        self.pid = processes.start(
            argv, fds, self._environment, limits.seconds, self._memory_mb if native else None, native=native
        )
        return self.pid


def await_program(
    subject: Loader | CompiledProgram, pid: int, limits: TestLimits, streams: Streams, left: float | None = None
) -> tuple[int, float, tuple[str, str] | None]:
    """Wait for a process. Returns its exit status, the seconds that it used, and the limit that it met, if any."""
    watch, failure = LimitWatch(pid, limits, left=left), None
    try:
        await_end(pid, watch, lambda: streams.check(limits.output_bytes))
        watch.glance()
        streams.check(limits.output_bytes)
    except LimitError as error:
        failure = (str(error.args[0]), str(error.args[1]))
        processes.kill(pid)
    except OSError as error:
        raise BrokenLinkError("the program's process has ended") from error
    status, cpu = subject.reap(limits)
    if failure is None and cpu > limits.seconds:
        failure = ("timeout", f"it used more than {limits.seconds:g} s of CPU time")
    return status, max(watch.used, cpu), failure
