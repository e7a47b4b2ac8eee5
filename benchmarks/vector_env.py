"""Code steps of a vector env, beside bare cells of the same sandbox: what envs, tools and hand-overs cost.

    python benchmarks/vector_env.py [--envs 64] [--steps 10] [--repeats 5]

A code step is a turn that runs a cell in an open session of the isolating sandbox. The bound is that cell alone, sent
on the sandbox's own event loop, by as many sessions at once as there are envs. One env is measured the same way. The
lines take turns in one run, and the best of the repeats is printed: steps a second, and milliseconds of CPU in this
process and in those of the sandbox. The rates say something on a quiet machine alone, where the targets are 2,000 steps
a second with 64 envs and 1,000 with one. On a busy one too, it counts how often a step takes its cell's CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import psutil

import toolgym  # noqa: F401  it registers the envs
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.base import Session

CODE = "print(1+1)"
ACTION = f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{CODE}"}}}}\n</tool_call>'
TARGET = 1.75
"""Most times of the bare cell's CPU time, in all processes, that a code step may take."""


@dataclass
class Best:
    """The best of several measurements, a step each.

    Attributes:
        seconds: of wall time.
        own: CPU seconds of this process.
        sandbox: CPU seconds of the sandbox's processes.
    """

    seconds: float = float("inf")
    own: float = float("inf")
    sandbox: float = float("inf")

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes."""
        return self.own + self.sandbox

    def add(self, work: Callable[[], Any], times: int, each: int) -> None:
        """Measure `times` calls of `each` steps."""
        own, sandbox, start = time.process_time(), children_cpu(), time.perf_counter()
        for _ in range(times):
            work()
        seconds, count = time.perf_counter() - start, times * each
        self.seconds = min(self.seconds, seconds / count)
        self.own = min(self.own, (time.process_time() - own) / count)
        self.sandbox = min(self.sandbox, (children_cpu() - sandbox) / count)


def children_cpu() -> float:
    """CPU seconds that all processes below this one have used so far.

    They are the kernel's nanoseconds (`schedstat`). The usual CPU times are whole hundredths of a second for each
    process, and a session's part in ten cells is less than one.
    """
    nanoseconds = 0
    for child in psutil.Process().children(recursive=True):
        for thread in Path(f"/proc/{child.pid}/task").glob("*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def measure(count: int, steps: int, repeats: int) -> dict[str, Best]:
    """Bare cells and steps, in turns."""
    bridge = EventLoopThread(name="bare")
    sandbox = LocalSandbox()

    async def opened() -> list[Session]:
        return [await sandbox.session() for _ in range(count)]

    sessions = bridge.run(opened())

    async def cells() -> None:
        results = await asyncio.gather(*(one.run_cell(CODE) for one in sessions))
        assert all(result.stdout == "2\n" for result in results)

    env: Any
    if count > 1:
        env, action = gymnasium.make_vec("CodeInterpreter-v0", num_envs=count, max_turns=10**9), (ACTION,) * count
    else:
        env, action = gymnasium.make("CodeInterpreter-v0", max_turns=10**9), ACTION  # type: ignore[assignment]
    env.reset(seed=0)
    works = {"bare cell": lambda: bridge.run(cells()), "code step": functools.partial(env.step, action)}
    best = {name: Best() for name in works}
    for work in works.values():
        for _ in range(3):
            work()
    for _ in range(repeats):
        for name, work in works.items():
            best[name].add(work, steps, count)
    env.close()
    bridge.run(sandbox.close())
    bridge.close()
    return best


def main() -> None:
    """Print the lines and whether the targets hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("envs", 64), ("steps", 10), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(f"{'':18s} {'a second':>9s} {'CPU here':>9s} {'sandbox':>9s}   ms a step")
    for count in (options.envs, 1):
        best = measure(count, options.steps * (1 if count > 1 else options.envs // 2 or 1), options.repeats)
        for name, one in best.items():
            figures = f"{1 / one.seconds:9.0f} {one.own * 1e3:9.3f} {one.sandbox * 1e3:9.3f}"
            print(f"{count:4d} x {name:11s} {figures}")
        ratio = best["code step"].cpu / best["bare cell"].cpu
        said = "holds" if ratio <= TARGET else "does not hold"
        print(f"     CPU of a step to that of its cell {ratio:6.2f}  target at most {TARGET}: {said}")


if __name__ == "__main__":
    main()
