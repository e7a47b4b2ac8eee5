"""CPU time of verdicts, compared with plain processes that run the same tests, and with a bound.

    python benchmarks/judge.py [--programs 20] [--tests 20] [--repeats 3]

The lines take turns in one run, and the least of the repeats is printed, so that other work on the machine counts
little. All numbers are milliseconds of CPU time (user and system, with all child processes) for one test:

- `judge`: a `Judge` over a `LocalSandbox`, with all isolation.
- `plain`: what evaluation scripts start for each test: a fresh interpreter with the program and its assertions or its
  input. It isolates nothing, and its exit status can be forged. It starts without the `.pth` files of this environment,
  which take longer than the rest of its start.
- `bound`: a process of the same interpreter that imports the program once and forks for each test, without any judge.

`--programs` programs have `--tests` tests each. A line for numpy uses a program that imports it first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from collections.abc import Awaitable, Callable

from toolgym.tools.judge import AssertTest, FunctionTest, Judge, StdioTest, Test
from toolgym.tools.sandbox import LocalSandbox

FUNCTION = "def double(n):\n    return n * 2\n"
SCRIPT = "print(int(input()) * 2)\n"
CALL = "import json, sys\nprint(json.dumps(double(json.load(sys.stdin))))\n"

KINDS: dict[str, tuple[str, Callable[[int], Test], str]] = {
    "output": (SCRIPT, lambda n: StdioTest(f"{n}\n", f"{2 * n}"), ""),
    "function": (FUNCTION, lambda n: FunctionTest("double", [n], 2 * n), CALL),
    "assertion": (FUNCTION, lambda n: AssertTest(f"assert double({n}) == {2 * n}"), CALL),
    "output, numpy": (f"import numpy\n{SCRIPT}", lambda n: StdioTest(f"{n}\n", f"{2 * n}"), ""),
    "function, numpy": (f"import numpy\n{FUNCTION}", lambda n: FunctionTest("double", [n], 2 * n), CALL),
}
"""From a line to the program, its n-th test, and what a plain process runs after the program."""

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

FORKING = """
import os
for n in range({tests}):
    pid = os.fork()
    if pid == 0:
        double({tests})
        os._exit(0)
    os.waitpid(pid, 0)
"""


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


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


async def measure(work: Callable[[], Awaitable[None]], tests: int) -> float:
    """Return the CPU milliseconds of some work for each of its tests."""
    began = cpu_seconds()
    await work()
    return (cpu_seconds() - began) / tests * 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    count = args.programs * args.tests
    processors = os.cpu_count() or 1

    async def idle() -> None:
        """Start a sandbox and end it."""
        async with LocalSandbox() as sandbox:
            await sandbox.start(full=True)

    print(f"{'ms of CPU for a test':20}{'judge':>8}{'plain':>8}{'bound':>8}{'plain/judge':>13}{'judge/bound':>13}")
    for name, (program, test_of, after) in KINDS.items():
        tests = [test_of(n) for n in range(args.tests)]

        async def judged(program: str = program, tests: list[Test] = tests) -> None:
            async with LocalSandbox() as sandbox:
                await sandbox.start(full=True)
                judge = Judge(sandbox)

                async def one(number: int) -> None:
                    verdicts = await judge.judge(f"{program}# {number}\n", tests)
                    assert all(verdict.passed for verdict in verdicts), verdicts

                slots = asyncio.Semaphore(2 * processors)

                async def in_slot(number: int) -> None:
                    async with slots:
                        await one(number)

                await asyncio.gather(*(in_slot(number) for number in range(args.programs)))

        async def plainly(program: str = program, after: str = after) -> None:
            for _ in range(args.tests):
                await plain(program + after, "4\n")

        async def forking(program: str = program) -> None:
            source = program.replace(SCRIPT, FUNCTION) + FORKING.format(tests=args.tests)
            await plain(source, "")

        lines: list[list[float]] = []
        for _ in range(args.repeats):
            start = await measure(idle, count)
            bound = await measure(forking, args.tests)
            lines.append([await measure(judged, count) - start, await measure(plainly, args.tests), bound])
        ours, theirs, bound = (min(line[at] for line in lines) for at in range(3))
        print(f"{name:20}{ours:8.2f}{theirs:8.2f}{bound:8.2f}{theirs / ours:13.1f}{ours / bound:13.1f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
