"""What one abuse is: code, how its outcome is judged from outside, and at which levels it must be stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.tools.sandbox.abuse.scene import Scene
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits

LEVELS = ("namespaces", "uid", "landlock")
"""The levels that isolate, strongest first. "none" is the level that does not."""

EVERYWHERE = frozenset(LEVELS)
NAMESPACES = frozenset({"namespaces"})

LIMITS = Limits(
    memory_mb=256, processes=32, file_mb=16, disk_mb=32, inodes=2000, open_files=128, output_bytes=64 * 1024
)
"""What the suite allows. Every bomb goes for several times as much, and stops there by itself."""

SAME = "same"
"""As a follow-up: the program itself once more."""

Category = Literal[
    "bombs",
    "time",
    "secrets",
    "writes",
    "leftovers",
    "network",
    "escapes",
    "signals",
    "descriptors",
    "odd",
    "works",
    "roots",
]

PRELUDE = """\
import ctypes, errno, os, signal, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl(15, b"@mark@", 0, 0, 0)
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def opened(*words):
    say("OPEN:", *words)
def syscall(number, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    value = _libc.syscall(ctypes.c_long(number), *given)
    return value if value >= 0 else -ctypes.get_errno()
say("TRIED")
"""
"""Before every abuse: it reports in whole lines, and its processes carry a name by which the host finds them."""


@dataclass(frozen=True)
class Outcome:
    """What there is to judge.

    Attributes:
        result: of the program.
        wall: seconds that the call took, as its caller saw them.
        second: result of the follow-up, where there is one.
        neighbour: result of the run beside it, where there is one.
        scene: the host's side, for what the program may have done to it.
        most_processes: the most processes with the program's mark that were seen at once.
    """

    result: ExecutionResult
    wall: float
    scene: Scene
    second: ExecutionResult | None = None
    neighbour: ExecutionResult | None = None
    most_processes: int = 0

    @property
    def numbers(self) -> list[int]:
        """Every number that the program reported with `say("held", number)`."""
        return [int(n) for n in re.findall(r"^held (\d+)$", self.result.stdout, re.MULTILINE)]


Judge = Callable[[Outcome], str]
"""Says what went wrong, or nothing."""


def brief(result: ExecutionResult) -> str:
    """A result in one line."""
    return (
        f"{result.status} rc={result.return_code} stdout={result.stdout[-300:]!r} stderr={result.stderr[-300:]!r}"
        f"{' ' + result.message if result.message else ''}"
    )


def held(outcome: Outcome) -> str:
    """The program ran, and nothing that it tried was open."""
    result = outcome.result
    if result.status is ExecutionStatus.SANDBOX_ERROR or "TRIED" not in result.stdout:
        return f"did not run: {brief(result)}"
    opened = [line for line in result.stdout.splitlines() if line.startswith("OPEN: ")]
    return opened[0][6:] if opened else ""


def at_most(number: int, *, of: str) -> Judge:
    """The program got hold of no more than `number` things."""

    def judge(outcome: Outcome) -> str:
        most = max(outcome.numbers, default=0)
        return held(outcome) or (f"{most} {of}, more than {number}" if most > number else "")

    return judge


def ended(
    *statuses: ExecutionStatus, code: int | None = None, out: str | None = None, within: float | None = None
) -> Judge:
    """The run ended in one of these statuses, with this return code, this text in its output, in this time."""

    def judge(outcome: Outcome) -> str:
        result = outcome.result
        if result.status not in statuses:
            return f"expected {' or '.join(statuses)}: {brief(result)}"
        if code is not None and result.return_code != code:
            return f"expected return code {code}: {brief(result)}"
        if out is not None and out not in result.stdout:
            return f"expected {out!r} in stdout: {brief(result)}"
        if within is not None and outcome.wall > within:
            return f"took {outcome.wall:.1f} s, more than {within} s"
        return ""

    return judge


def both(*judges: Judge) -> Judge:
    """The first that has something to say."""

    def judge(outcome: Outcome) -> str:
        return next((said for one in judges if (said := one(outcome))), "")

    return judge


def prints(text: str) -> Judge:
    """The program worked: it ended well, and printed just this."""

    def judge(outcome: Outcome) -> str:
        if outcome.result.status is ExecutionStatus.OK and outcome.result.stdout == text:
            return ""
        return f"expected {text!r}: {brief(outcome.result)}"

    return judge


def second(judge: Judge) -> Judge:
    """The same question about the follow-up."""

    def judge_second(outcome: Outcome) -> str:
        assert outcome.second is not None
        follow_up = Outcome(outcome.second, 0.0, outcome.scene)
        said = judge(follow_up)
        return f"afterwards: {said}" if said else ""

    return judge_second


@dataclass(frozen=True)
class Program:
    """One abuse, or one useful thing that must still work.

    Attributes:
        name: unique.
        category: row of the table.
        code: what runs; `@name@` stands for a part of the `Scene`, built when asked for.
        judge: says from outside what went wrong. Beyond it, no program may leave a process or a secret behind.
        must: levels at which it must be stopped (or, for `works`, work). Elsewhere it is tried and told.
        bare: what comes of it without any isolation: `"open"` (proof that the test can fail), `"held"`, `"either"`, or
            `"unsafe"`: never run that way.
        timeout: seconds.
        stdin: standard input.
        files: put into its folder.
        fetch: names of files to bring back.
        network: as in `LocalSandbox`.
        follow_up: code that runs after it in the same sandbox, or `SAME`.
        neighbour: code that runs beside it in the same sandbox, begun a little earlier.
        alone: nothing else runs meanwhile: it is measured, or it is heavy.
        needs: modules without which there is nothing to try.
        image: it is about sessions whose root is an image, and runs there alone.
        survivors: whether the host looks for processes that carry the mark when the call has returned.
    """

    name: str
    category: Category
    code: str
    judge: Judge = held
    must: frozenset[str] = EVERYWHERE
    bare: Literal["open", "held", "either", "unsafe"] = "open"
    timeout: float = 5.0
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    network: Literal["off", "loopback"] = "off"
    follow_up: str = ""
    neighbour: str = ""
    alone: bool = False
    needs: tuple[str, ...] = ()
    image: bool = False
    survivors: bool = True


def abuse(name: str, category: Category, code: str, **rest: object) -> Program:
    """A program that reports what it found open."""
    return Program(name, category, PRELUDE + code, **rest)  # type: ignore[arg-type]
