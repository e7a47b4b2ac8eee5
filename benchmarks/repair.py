"""A repair of 50 actions in a session, and with plain processes in the same run: what the place of work costs.

    python benchmarks/repair.py [--rounds N]

The actions are those of an agent that repairs a small project: it looks around, reads, searches, edits, and runs the
tests, which fail until the last edit. Each is one command, as an agent's call of a tool is. "Plain" starts the same
commands in a folder, without protection. A repair begins with a new place (session, folder) and ends when it is gone;
one whose tests do not pass at its end, or pass before, is an error. The target is 3 s; Daytona's paper on the task
(arXiv 2607.01415) has 12.9 s for its own 50 actions on other machines, which is 36 worker-hours for 10,000 repairs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from toolgym.tools.sandbox import LocalSandbox

TARGET = 3.0
PLAIN = os.environ | {"PATH": f"{os.path.dirname(os.path.realpath(sys.executable))}:{os.environ['PATH']}"}
"""The environment of plain commands: `python3` is this one, and not a script that looks for it."""
MODULES = [f"part{number}" for number in range(10)]
TEST = "python3 -B -m unittest -q"
"""Without files of bytecode: an edit within the same second, of the same length, would not count."""

Shell = Callable[[str], Awaitable[int]]
"""Runs a command and returns its exit status."""


def actions() -> list[tuple[str, bool]]:
    """The commands of a repair, each with whether it succeeds."""
    modules = "".join(f"printf 'def value(x):\\n    return x - {n}\\n' > {name}.py\n" for n, name in enumerate(MODULES))
    tests = "".join(f"\n        self.assertEqual({name}.value(1), {1 + n})" for n, name in enumerate(MODULES))
    test = f"import unittest\nimport {', '.join(MODULES)}\nclass T(unittest.TestCase):\n    def test_it(self):{tests}\n"
    rows = [(f"{modules}cat > test_parts.py <<'END'\n{test}END", True), ("ls -la", True), ("cat test_parts.py", True)]
    rows += [("uname -a", True), ("find . -name '*.py' | sort", True), (TEST, False)]
    for number, name in enumerate(MODULES):
        rows += [(f"cat {name}.py", True), (f"grep -n 'return x - {number}' {name}.py", True)]
        rows += [(f"sed -i 's/x - {number}/x + {number}/' {name}.py", True)]
        if number in (2, 4, 6, 8, 9):
            rows.append((TEST, name == MODULES[-1]))
    rows += [(f"wc -l {name}.py", True) for name in MODULES[:7]]
    return [*rows, ("grep -rn 'x - ' --include='part*.py' .", False), (TEST, True)]


async def repair(shell: Shell) -> bool:
    """Carry out all actions; return whether each ended as it should."""
    ended = [(await shell(command) == 0) is succeeds for command, succeeds in actions()]
    return all(ended)


async def in_session(sandbox: LocalSandbox) -> bool:
    async with await sandbox.session() as session:

        async def shell(command: str) -> int:
            return (await session.exec(command, timeout=60)).shell_code

        return await repair(shell)


async def plainly() -> bool:
    with tempfile.TemporaryDirectory() as folder:

        async def shell(command: str) -> int:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN
            )
            await process.communicate()
            return await process.wait()

        return await repair(shell)


async def main(rounds: int) -> bool:
    assert len(actions()) == 50
    times: dict[str, list[float]] = {"plain": [], "session": []}
    errors = dict.fromkeys(times, 0)
    async with LocalSandbox() as sandbox:
        await in_session(sandbox)  # its libraries are loaded
        for _ in range(rounds):
            for name, work in (("plain", plainly), ("session", lambda: in_session(sandbox))):
                start = time.perf_counter()
                errors[name] += not await work()
                times[name].append(time.perf_counter() - start)
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {rounds} repairs of 50 actions each, in turns\n")
    print("| where | s, median | worker-hours for 10,000 | times plain | errors |\n| --- | --- | --- | --- | --- |")
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in middle.items():
        hours, ratio = seconds * 10_000 / 3600, seconds / middle["plain"]
        print(f"| {name} | {seconds:.2f} | {hours:.1f} | {ratio:.2f} | {errors[name]} |")
    return not any(errors.values()) and middle["session"] <= TARGET


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    sys.exit(0 if asyncio.run(main(parser.parse_args().rounds)) else 1)
