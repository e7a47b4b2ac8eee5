"""The same programs, judged alone and many at once: verdicts must not depend on how busy the machine is."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest
from toolgym.tools.judge.inside import limits, processes
from toolgym.tools.judge.inside.link import BrokenLinkError
from toolgym.tools.judge.inside.loader import Loader
from toolgym.tools.judge.inside.loading import PID_SIZE

COMPUTE = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}: pass\n"

CALLS = [FunctionTest("f", [n], 2 * n) for n in range(3)]
LINES = [StdioTest(f"{n}\n", f"{2 * n}") for n in range(3)]
ASSERTIONS = [AssertTest(f"assert f({n}) == {2 * n}") for n in range(3)]

QUICK = {
    "right function": ("def f(n): return 2 * n", CALLS),
    "right script": ("print(2 * int(input()))", LINES),
    "right assertions": ("def f(n): return 2 * n", ASSERTIONS),
    "wrong function": ("def f(n): return n if n == 1 else 2 * n", CALLS),
    "wrong script": ("n = int(input())\nprint(n if n == 1 else 2 * n)", LINES),
    "wrong assertions": ("def f(n): return n if n == 1 else 2 * n", ASSERTIONS),
    "raises": ("def f(n): return 2 * n // (n != 1)", CALLS),
    "is killed by a signal": ("import os, signal\ndef f(n):\n    os.kill(os.getpid(), signal.SIGSEGV)", CALLS),
    "script that is killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", LINES),
    "ends with another code": ("import sys\nprint(2 * int(input()))\nsys.exit(int(3))", LINES),
    "recurses without end": ("def f(n): return f(n)", CALLS),
    "cannot be compiled": ("def f(n) return 2 * n", CALLS),
    "wants too much memory": ("def f(n): return len(bytearray(1 << 31))", CALLS),
    "leaves a process": ("import os, time\ndef f(n):\n    if os.fork() == 0: time.sleep(99)\n    return 2 * n", CALLS),
}
"""Programs with a verdict after some milliseconds."""

SLOW = {
    "function within its limit": (COMPUTE.format(0) + "def f(n):\n    began = time.process_time()\n"
                                  "    while time.process_time() - began < 0.2: pass\n    return 2 * n", CALLS[:2]),
    "script within its limit": (COMPUTE.format(0.2) + "print(2 * int(input()))", LINES[:2]),
    "function that is too slow": ("def f(n):\n    while True: pass", CALLS[:1]),
    "script that is too slow": ("while True: pass", LINES[:1]),
    "assertions on what is too slow": ("def f(n):\n    while True: pass", ASSERTIONS[:1]),
    "process below it that is too slow": ("import os\nif os.fork() == 0:\n    while True: pass\nos.wait()", LINES[:1]),
    "sleeps": ("import time\ndef f(n):\n    time.sleep(0.2)\n    return 2 * n", CALLS[:2]),
    "sleeps too long": ("import time\ntime.sleep(60)", LINES[:1]),
    "waits for input that does not come": ("import os\nr, w = os.pipe()\nos.read(r, 1)", LINES[:1]),
    "prints without end": ("while True: print('x' * 99999)", LINES[:1]),
    "loads too slowly": ("while True: pass", CALLS[:1]),
    "fills its memory": ("kept = []\nwhile True: kept.append(bytearray(1 << 22))", LINES[:1]),
    "fills its memory in a function": ("def f(n):\n    kept = []\n"
                                       "    while True: kept.append(bytearray(1 << 22))", CALLS[:1]),
}  # fmt: skip
"""Programs that take longer."""


async def check_same_verdicts(judge, programs, count):
    """Judge each program alone, then `count` programs at once, and compare the verdicts."""
    options = {"timeout": 0.5, "memory_mb": 128, "stop_at_failure": False}

    async def statuses_of(name):
        program, tests = programs[name]
        return [verdict.status.value for verdict in await judge(**options).judge(program, tests)]

    alone = {name: await statuses_of(name) for name in programs}
    names = list(itertools.islice(itertools.cycle(programs), count))
    together = await asyncio.gather(*map(statuses_of, names))
    differing = {name: got for name, got in zip(names, together, strict=True) if got != alone[name]}
    assert not differing, {name: (alone[name], got) for name, got in differing.items()}
    return alone


async def test_quick_programs_have_the_same_verdicts_alone_and_at_once(judge):
    alone = await check_same_verdicts(judge, QUICK, len(QUICK))
    for name, statuses in alone.items():
        assert (set(statuses) == {"passed"}) == (name.startswith("right") or name == "leaves a process"), (
            name,
            statuses,
        )


def test_end_of_a_process_is_noticed_if_it_arrives_with_its_id():
    allowed = limits.TestLimits({"seconds": 1.0, "idle": 1.0, "wall": 1.0, "output_bytes": 100})
    ends = [os.pipe() for _ in range(3)]
    loader = Loader.__new__(Loader)
    loader.pid, loader.can_share = os.getpid(), True
    (_, loader._asks), (loader._replies, told), (loader.answers, _) = ends
    loader.asks = loader._asks
    os.write(told, b"%*d" % (PID_SIZE, os.getpid()) + bytes(processes.REPORT_SIZE))
    try:
        pid = loader.fork(allowed)
        with pytest.raises(BrokenLinkError):
            loader.link(limits.LimitWatch(pid, allowed)).ask("find", [])
        assert loader.reap(allowed) == (0, 0.0)
    finally:
        for pair in ends:
            for fd in pair:
                os.close(fd)


@pytest.mark.long
async def test_all_programs_have_the_same_verdicts_alone_and_with_64_at_once(judge):
    alone = await check_same_verdicts(judge, {**QUICK, **SLOW}, 64)
    for name in ("function within its limit", "script within its limit", "sleeps"):
        assert alone[name] == ["passed", "passed"], name
    for name in ("function that is too slow", "script that is too slow", "sleeps too long", "loads too slowly"):
        assert alone[name] == ["timeout"], name
