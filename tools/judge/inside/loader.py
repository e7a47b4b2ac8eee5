"""The process that has loaded a Python program once, and forks a process for each of its tests.

The loader has run the program's code, so nothing that it says decides a verdict. It can only lie about its exit code
and its children. No test sees what another one left in memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import marshal
import os
import types
from collections.abc import Iterator, Sequence
from typing import Any

from toolgym.tools.judge.inside import processes
from toolgym.tools.judge.inside.files import Streams
from toolgym.tools.judge.inside.limits import LimitError, LimitWatch, TestLimits
from toolgym.tools.judge.inside.link import OPERATIONS, BrokenLinkError, Link
from toolgym.tools.judge.inside.loading import FORK, MAX_MESSAGE, PID_SIZE, be_loader, kept
from toolgym.tools.judge.inside.pipes import WatchedReader, WatchedWriter, drain, is_drained

_NO_REFERENCES = 2
"""The version of `marshal` in which each list is written for itself."""
_FAR_MORE = 4
_ENDED = "the program's process has ended"


class Loader:
    """The process that has loaded the program, as the tests' process sees it. All that it says may be a lie.

    It and the tests' process share pipes, and the files of a script's streams, which all tests use in turn.
    """

    def __init__(self, setup: str, program: str, script_name: str) -> None:
        """Fork it. `script_name` is the file of a program that is a script, and empty for a program with functions.

        In a process that a script's test was forked in, `script` is the code to run.
        """
        self.script: types.CodeType | None = None
        self.streams = Streams() if script_name else None
        # Each pair is what the loader reads, and what it writes.
        control, calls = (os.pipe(), os.pipe()), (os.pipe(), os.pipe())
        self.pid = processes.fork_apart()
        if self.pid == 0:
            theirs = [pair[at][at] for pair in (control, calls) for at in (0, 1)]
            streams = self.streams.files if self.streams is not None else ()
            kept.append((self, control, calls, theirs, streams))
            self.script = be_loader(theirs, streams, setup, program, script_name)
            return
        for pair in (control, calls):
            os.close(pair[0][0])
            os.close(pair[1][1])
        self._asks, self._replies = control[0][1], control[1][0]
        self.asks, self.answers = calls[0][1], calls[1][0]
        os.set_blocking(self.asks, False)
        self.can_share = True
        self._unsent = memoryview(b"")

    def load(self, limits: TestLimits, memory_mb: int | None) -> tuple[str, str]:
        """Load the program. Returns the status of all its tests and an error, both empty if it could be loaded.

        Only the first reply, about the setup, comes from a process that has not run the program yet.
        """
        message = json.dumps({"seconds": limits.seconds, "memory_mb": memory_mb}).encode()
        watch = LimitWatch(self.pid, limits)
        try:
            self._send(message)
            replies = self._lines(watch)
            failed = json.loads(next(replies))
            if failed:
                return "not_judgeable", str(failed)
            error, shares = json.loads(next(replies))
            self.can_share = bool(shares)
            return ("error", str(error)) if error else ("", "")
        except LimitError as error:
            return str(error.args[0]), str(error.args[1])
        except (BrokenLinkError, ValueError, TypeError, RecursionError):
            return "error", _ENDED

    def fork(self, limits: TestLimits, words: Sequence[str] = ()) -> int:
        """Have it fork a process for a test. Returns the process's id. The words are the arguments of a script."""
        return self._fork("\0".join([FORK, *words]).encode(), limits)

    def call(self, function: str, args: list[Any], limits: TestLimits) -> int:
        """Have it fork a process that calls a function. Returns the process's id.

        The arguments, as `Link.encode` writes them, go to a pipe that only the new process reads.
        """
        call = marshal.dumps((function, list(args), not all(map(_is_plain, args))), _NO_REFERENCES)
        try:
            sent = os.write(self.asks, call)
        except OSError as error:
            raise BrokenLinkError(_ENDED) from error
        self._unsent = memoryview(call)[sent:]
        return self._fork(b"%d" % len(call), limits)

    def reply(self, watch: LimitWatch, output_bytes: int) -> bytes:
        """Read the line that the last test's process writes for its call. Raises BrokenLinkError if there is none."""
        while self._unsent:
            if watch.wait(self.asks, self._replies, for_writing=True) != self.asks:
                raise BrokenLinkError(_ENDED)
            self._unsent = self._unsent[os.write(self.asks, self._unsent) :]
        line = bytearray()
        while not line.endswith(b"\n"):
            ready = watch.wait(self.answers, self._replies)
            part = os.read(self.answers, MAX_MESSAGE) if ready == self.answers else b""
            line += part
            if not part:
                raise BrokenLinkError(_ENDED)
            if len(line) > _FAR_MORE * output_bytes:
                raise LimitError("limit", "it returned far more than is kept of its output")
        return bytes(line)

    def _fork(self, message: bytes, limits: TestLimits) -> int:
        try:
            watch = LimitWatch(self.pid, limits, alone=True)
            self._send(message)
            return int(self._read(PID_SIZE, watch))
        except ValueError as error:
            raise BrokenLinkError(_ENDED) from error

    def link(self, watch: LimitWatch) -> Link:
        """Return a link to the last test's process."""
        reader = WatchedReader(self.answers, watch, self._replies)
        writer = WatchedWriter(self.asks, watch)
        return Link(io.BufferedReader(reader), io.BufferedWriter(writer), {"call": OPERATIONS["call"]}, False)

    def reap(self, limits: TestLimits) -> tuple[int, float]:
        """Wait for the end of the last test's process. Returns its exit status, and CPU seconds with its children."""
        if not self.can_share:
            return processes.reap(self.pid)
        try:
            watch = LimitWatch(self.pid, limits, alone=True)
            return processes.read_report(self._read(processes.REPORT_SIZE, watch))
        except (ValueError, LimitError) as error:
            raise BrokenLinkError(_ENDED) from error

    def is_ready(self) -> bool:
        """Empty what the last test left in the pipes. Returns whether the loader can fork for another test."""
        return self.can_share and drain(self.answers) and is_drained(self.asks)

    def end(self) -> None:
        processes.kill(self.pid)
        with contextlib.suppress(OSError):
            processes.reap(self.pid)

    def _send(self, message: bytes) -> None:
        try:
            os.write(self._asks, message)
        except OSError as error:
            raise BrokenLinkError(_ENDED) from error

    def _lines(self, watch: LimitWatch) -> Iterator[bytes]:
        """Yield the lines of its replies. Raises BrokenLinkError if the loader has ended."""
        received = b""
        while len(received) < MAX_MESSAGE:
            received += self._read_some(MAX_MESSAGE, watch)
            *lines, received = received.split(b"\n")
            yield from lines
        raise BrokenLinkError(_ENDED)

    def _read(self, size: int, watch: LimitWatch) -> bytes:
        """Read a reply of a fixed size, and nothing of the next one: that one tells that a test's process has ended."""
        received = b""
        while len(received) < size:
            received += self._read_some(size - len(received), watch)
        return received

    def _read_some(self, most: int, watch: LimitWatch) -> bytes:
        watch.wait(self._replies)
        part = os.read(self._replies, most)
        if not part:
            raise BrokenLinkError(_ENDED)
        return part


def _is_plain(value: object) -> bool:
    """Whether an encoded value stands for itself."""
    return not isinstance(value, dict) and (not isinstance(value, list) or all(map(_is_plain, value)))
