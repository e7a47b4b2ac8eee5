r"""`same_value`: whether an answer is the same mathematics as the ground truth, as `math-verify` sees it.

Comparing may take SymPy seconds, or for ever, while it holds Python's lock. So it is done in processes of its own, as
many as there are processors, shared by all envs of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from toolgym.envs.rewards.answer import marked_answer, plain_choice, truth_texts
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.closeable import closed_on_error
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, check_seconds, shorten
from toolgym.tools.lazy import missing_extra
from toolgym.tools.library.final_answer import without_thinking

START_TIMEOUT = 120.0
"""Seconds that a worker has to load SymPy."""

MAX_ANSWER = 4096
"""Characters from the end of an answer that are read."""

_WORKER = Path(__file__).with_name("math_worker.py")


def same_value(*, timeout: float = 10.0) -> Callable[[Outcome], Awaitable[Score]]:
    r"""Return a scorer: 1 if the answer equals the ground truth mathematically, else 0. It needs the extra `math`.

    `\frac{1}{2}` equals `0.5`, and `(x+1)^2` equals `x^2+2x+1`; sets, intervals, matrices and equations are compared
    too. The answer is what the final text marks (`\boxed{...}`, see `toolgym.envs.rewards.answer.marked_answer`), or
    what `math-verify` finds in it. The ground truth is LaTeX or a plain expression, with or without dollar signs; of a
    list, any is right. One that is no mathematics is a `ConfigError`.

    Args:
        timeout: wall seconds for one comparison. One that takes longer, or more than 4 GiB, scores 0 and has the
            component `not_comparable`: the policy wrote it.
    """
    check_seconds(timeout=timeout)
    if importlib.util.find_spec("math_verify") is None:
        raise missing_extra("math", "Comparing answers as mathematics", ImportError("No module named 'math_verify'"))

    async def score(outcome: Outcome) -> Score:
        marked = marked_answer(outcome.final_text)
        text = without_thinking(outcome.final_text) if marked is None else marked
        answer = text[-MAX_ANSWER:].strip() if marked is None else f"\\boxed{{{text[-MAX_ANSWER:]}}}"
        truths = truth_texts(outcome.task.ground_truth)
        if not answer or not truths:
            return Score(0.0)
        if text.strip() and plain_choice(text) in map(plain_choice, truths):
            return Score(1.0)
        try:
            for truth in truths:
                verdict = await _workers.compare(truth, answer, timeout)
                if verdict == "no truth":
                    raise ConfigError(f"the ground truth {shorten(repr(truth))} cannot be read as mathematics")
                if verdict == "right":
                    return Score(1.0)
        except DeadlineError as error:
            if error.queued:
                raise
            return Score(0.0, {"not_comparable": 1.0})
        return Score(0.0)

    return score


class _Worker:
    """A process that compares. Its methods block."""

    def __init__(self) -> None:
        # By its path, and not by multiprocessing, which would import the user's main module, a whole trainer.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def await_ready(self) -> None:
        if self._read() != b"ready\n":
            raise EOFError("it ended before it was ready")

    def ask(self, request: bytes) -> str:
        """Send a line and return the answer. `EOFError`: the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EOFError(str(error)) from error
        line = self._read()
        if not line:
            raise EOFError("it ended without an answer")
        return str(json.loads(line))

    def end(self) -> None:
        """Kill the process, which takes long if it has much memory, and reap it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # a line that was not sent is sent once more at the end
                pipe.close()  # type: ignore[union-attr]

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _ended_on_error(worker: _Worker) -> AbstractAsyncContextManager[None]:
    return closed_on_error(lambda: shielded(in_thread(worker.end)))


class _Workers:
    """The workers of this process, for all event loops."""

    def __init__(self) -> None:
        self._places = LocalRateLimiter(os.cpu_count() or 1)
        self._idle: list[_Worker] = []

    async def compare(self, truth: str, answer: str, timeout: float) -> str:
        request = json.dumps({"truth": truth, "answer": answer, "timeout": timeout}).encode()
        async with self._places.permit():
            while self._idle:
                try:
                    return await self._ask(self._idle.pop(), request, timeout)
                except EOFError:
                    continue  # it had ended, having been idle
            try:
                return await self._ask(await self._started(), request, timeout)
            except EOFError as error:  # with its first line: too much memory, or a bug of the interpreter
                raise DeadlineError(timeout, stuck=True) from error

    def end_idle(self) -> None:
        while self._idle:
            self._idle.pop().end()

    async def _ask(self, worker: _Worker, request: bytes, timeout: float) -> str:
        async with _ended_on_error(worker):  # with half a comparison it is of no more use
            verdict = await with_deadline(in_thread(worker.ask, request), timeout)
        self._idle.append(worker)
        return verdict

    async def _started(self) -> _Worker:
        try:
            worker = _Worker()
            async with _ended_on_error(worker):
                await with_deadline(in_thread(worker.await_ready), START_TIMEOUT)
        except (OSError, EOFError, DeadlineError) as error:
            text = f"the process that compares answers by math-verify cannot be started: {error}"
            raise EpisodeFailedError(StopReason.SCORE_FAILED, text) from error
        return worker


_workers = _Workers()


os.register_at_fork(after_in_child=lambda: globals().update(_workers=_Workers()))  # the others are the parent's
atexit.register(lambda: _workers.end_idle())
