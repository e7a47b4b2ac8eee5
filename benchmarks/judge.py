"""How many programs are judged in a second, beside plain subprocesses that run the same tests.

    python benchmarks/judge.py [--programs 100] [--repeats 3]

A plain subprocess is what evaluation scripts start: a fresh interpreter for the program with its assertions behind it,
or with its input, as many at once as there are processors. It isolates nothing, and its exit status can be forged. It
starts without the `.pth` files of this environment, which take longer than the rest of its start. The lines take turns
in one run, and the best of the repeats is printed, so that other work on the machine counts little. `numpy` is a
program that imports it first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from toolgym.tools.judge import AssertTest, FunctionTest, Judge, StdioTest, Test
from toolgym.tools.sandbox import LocalSandbox

FUNCTION = "def double(n):\n    return n * 2\n"
ASSERTS = "assert double(4) == 8\nassert double(-1) == -2\nassert double(0) == 0\n"
CALL = "import json, sys\nprint(json.dumps(double(json.load(sys.stdin))))\n"

CASES: dict[str, tuple[str, Test, str, str]] = {
    "output": ("print(int(input()) * 2)\n", StdioTest("4\n", "8"), "", "4\n"),
    "function": (FUNCTION, FunctionTest("double", [4], 8), CALL, "4"),
    "assertions": (FUNCTION, AssertTest(ASSERTS), ASSERTS, ""),
    "output, numpy": ("import numpy\nprint(numpy.int64(input()) * 2)\n", StdioTest("4\n", "8"), "", "4\n"),
    "assertions, numpy": (f"import numpy\n{FUNCTION}", AssertTest(ASSERTS), ASSERTS, ""),
}
"""From a line to the program, its test, what a plain subprocess runs behind the program, and its input."""


ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def plain(program: str, stdin: str) -> None:
    """Run a program in a fresh interpreter."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        "-c",
        program,
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await process.communicate(stdin.encode())
    assert process.returncode == 0


async def per_second(one: Callable[[], Awaitable[None]], count: int, at_once: int) -> float:
    """Return how many of `count` calls end in a second."""
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await one()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return count / (time.perf_counter() - started)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    processors = os.cpu_count() or 1
    async with LocalSandbox() as sandbox:
        await sandbox.start(full=True)
        judge = Judge(sandbox)
        print(f"{'':20}{'judged/s':>10}{'plain/s':>10}{'ratio':>8}")
        for name, (program, test, behind, stdin) in CASES.items():

            async def judged(program: str = program, test: Test = test) -> None:
                (verdict,) = await judge.judge(program, [test])
                assert verdict.passed, verdict

            async def run(program: str = program + behind, stdin: str = stdin) -> None:
                await plain(program, stdin)

            ours = theirs = 0.0
            for _ in range(args.repeats):
                ours = max(ours, await per_second(judged, args.programs, processors * 4))
                theirs = max(theirs, await per_second(run, args.programs, processors))
            print(f"{name:20}{ours:10.0f}{theirs:10.0f}{ours / theirs:8.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
