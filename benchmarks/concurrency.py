"""What many episodes at once cost: time beside the critical path, memory, the event loop's lag, and faults.

    python benchmarks/concurrency.py [--rows PATTERN ...] [--episodes 1024] [--waiting 20000]

| row | what it is |
| --- | --- |
| path | wall time of a run in relation to its slowest episode's engine and tool delays, all drawn from seeds |
| lag | how late the event loop was in that run: the 99th percentile of a clock that should tick each 10 ms |
| memory | what an episode that waits in its tool holds above its tokens; all of them then run to the end |
| faults | a batch of 256 with one tool that hangs, one that raises when released, and one of two engines that dies |

A delay takes no processor time, so where the machine is busy with other things, `path` and `lag` tell of those as well.
Each row runs in a process of its own. There is no peer beside these rows: verl's loop waits for its slowest episode as
well, and what its faults cost is in the issue trackers, not in a ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import fnmatch
import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import turn_cost

from toolgym.envs import Task
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.engines.base import Generation, GenerationRequest, SamplingParams
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import EngineUnavailableError
from toolgym.tools.message import user

GROUP, TURNS, STEPS = 8, 4, 64
TICK = 0.01
DEADLINE = 2.0
"""Seconds that a tool call of `faults` may take."""

TARGETS = {"path": 1.05, "lag": 20.0, "memory": 15.0, "faults": 255.0}
BYTES_A_TOKEN = 8 + 4 + 8
"""What a sampled token holds while an episode runs: a place in the context, the id, and the log-probability."""


class Delayed(turn_cost.Ready):
    """Answers after 50 to 500 ms; each call that it writes tells the tool to take 0 to 2 s. Both follow from the
    request's seed. Adds up the delays of each episode."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, TURNS)
        self._calls = [self.call({"argument_0": str(2.0 * step / (STEPS - 1))}) for step in range(STEPS)]
        self.delays: collections.Counter[str] = collections.Counter()

    async def _generate(self, request: GenerationRequest) -> Generation:
        draw = random.Random(request.params.seed)
        delay, step = draw.uniform(0.05, 0.5), draw.randrange(STEPS)
        last = request.request_id.endswith(f"-{TURNS - 1}")
        self.delays[request.affinity or ""] += delay + (0.0 if last else 2.0 * step / (STEPS - 1))
        await asyncio.sleep(delay)
        return turn_cost.fresh(self._answer if last else self._calls[step])


class Slow(turn_cost.Silent):
    """A tool that takes the seconds that its call names."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        await asyncio.sleep(float(parameters["argument_0"]))
        return ToolResult(turn_cost.RESULT)


class Gate(turn_cost.Silent):
    """Waits until all episodes wait here."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waiting, self.opened = 0, asyncio.Event()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        self.waiting += 1
        await self.opened.wait()
        return ToolResult(turn_cost.RESULT)


class Faulty(turn_cost.Silent):
    """Its third call never ends, and its fifth release raises."""

    calls = releases = 0

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        self.calls += 1
        if self.calls == 3:
            await asyncio.Event().wait()
        return ToolResult(turn_cost.RESULT)

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        self.releases += 1
        if self.releases == 5:
            raise RuntimeError("cannot be released")


class TwoEngines(turn_cost.Ready):
    """Two engines, each with every other episode; the second dies with what it has after 100 requests. An episode
    that is played again goes to the first."""

    asked = 0

    async def _generate(self, request: GenerationRequest) -> Generation:
        self.asked += 1
        await asyncio.sleep(0.02)
        if self.asked > 100 and int(request.affinity or "0", 16) % 2 and self.asked < 300:
            raise EngineUnavailableError("the second engine is dead")
        return await super()._generate(request)


def runner(engine: turn_cost.Ready, tool: BaseTool, tasks: TaskList, episodes: int) -> Runner:
    """A runner that plays all episodes at once."""
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=turn_cost.TURN_TOKENS),
        group_size=GROUP,
        max_concurrent=episodes,
        max_tool_calls=episodes,
        seed=0,
    )
    return Runner(lambda: ToolEnv([tool], tasks, max_turns=TURNS, tool_timeout=600.0), engine, config=config)


def questions(episodes: int) -> list[Task]:
    """Tasks, each played by a group."""
    return [Task(messages=[user(f"What is the sum of {at} and 7?")]) for at in range(max(1, episodes // GROUP))]


async def path(episodes: int) -> None:
    """Print the rows `path` and `lag`."""
    engine, tasks = Delayed(turn_cost.real_tokenizer()), questions(episodes)
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            late.append(time.monotonic() - due)

    async with runner(engine, Slow({}, turn_cost.tools(1)[0].tool_schema), TaskList(tasks), episodes) as plays:
        await plays.run(tasks[:1])  # what is made once a process is made
        engine.delays.clear()
        gc.collect()
        ticking = asyncio.create_task(tick())
        cpu, began = time.process_time(), time.monotonic()
        made = await plays.run(tasks)
        wall, cpu = time.monotonic() - began, time.process_time() - cpu
        ticking.cancel()
    whole(made, episodes)
    bound = max(engine.delays.values())
    say(
        "path", wall / bound, f"{wall:.2f} s of wall, bound {bound:.2f} s: ratio {wall / bound:.3f}; {cpu:.2f} s of CPU"
    )
    p99 = sorted(late)[int(0.99 * len(late))] * 1e3
    say("lag", p99, f"{p99:.1f} ms at the 99th percentile of {len(late)} ticks, at most {max(late) * 1e3:.0f} ms")


async def memory(episodes: int) -> None:
    """Print the row `memory`."""
    tasks, gate = questions(episodes), Gate({}, turn_cost.tools(1)[0].tool_schema)
    engine = turn_cost.Ready(turn_cost.real_tokenizer(), 2)
    async with runner(engine, gate, TaskList(tasks), episodes) as plays:
        gc.collect()
        before, began = resident(), time.process_time()
        playing = asyncio.create_task(plays.run(tasks))
        while gate.waiting < episodes and not playing.done():  # noqa: ASYNC110  both are looked at
            await asyncio.sleep(0.05)
        gc.collect()
        held, ready = (resident() - before) / episodes, time.process_time() - began
        gate.opened.set()
        made = await playing
    whole(made, episodes)
    tokens = BYTES_A_TOKEN * turn_cost.TURN_TOKENS / 1e3
    above = held / 1e3 - tokens
    spent = time.process_time() - began
    say(
        "memory",
        above,
        f"{above:.1f} kB above {tokens:.1f} kB of tokens, each of {episodes} that wait; {ready:.1f} s of CPU until all "
        f"waited, {spent:.1f} s until all had ended; peak of the process {peak_resident() / 2**20:.0f} MB",
    )


async def faults(_: int) -> None:
    """Print the row `faults`."""
    tasks = questions(256)
    engine, tool = TwoEngines(turn_cost.real_tokenizer(), TURNS), Faulty({}, turn_cost.tools(1)[0].tool_schema)
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=turn_cost.TURN_TOKENS), group_size=GROUP, max_concurrent=256, refills=3
    )
    env = lambda: ToolEnv([tool], TaskList(tasks), max_turns=TURNS, tool_timeout=DEADLINE)  # noqa: E731
    began = time.monotonic()
    ends: list[float] = []
    finished = 0
    async with Runner(env, engine, config=config) as plays:
        async for one in plays.stream(tasks):
            ends.append(time.monotonic() - began)
            finished += one.error is None
    last, median = ends[-1], ends[len(ends) // 2]
    said = f"{finished} of {len(ends)} finished; half of them after {median:.2f} s, the last after {last:.2f} s"
    say(
        "faults",
        finished if last <= median + DEADLINE + 1.0 else 0.0,
        f"{said} (a tool's deadline is {DEADLINE:.0f} s)",
    )


def whole(made: list[Trajectory], episodes: int) -> None:
    """Refuse a run that lost an episode, or in which one failed."""
    failed = [one.error for one in made if one.error is not None]
    if failed or len(made) != episodes:
        raise SystemExit(f"{len(made)} of {episodes} episodes came back, and {len(failed)} failed: {failed[:1]}")


def peak_resident() -> int:
    """Most bytes of memory that the process had. `ru_maxrss` would count those of the process that started it, too."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(row: str, value: float, text: str) -> None:
    """Print a row, and whether its target holds."""
    holds = value >= TARGETS[row] if row == "faults" else value <= TARGETS[row]
    bound = "at least" if row == "faults" else "at most"
    print(f"{row:8s} {text}  target {bound} {TARGETS[row]:g}: {'holds' if holds else 'does not hold'}", flush=True)


ROWS = {"path": path, "memory": memory, "faults": faults}


def main() -> None:
    """Run each row in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of the rows' names; `path` prints `lag` too")
    parser.add_argument("--episodes", type=int, default=1024, help="of `path`")
    parser.add_argument("--waiting", type=int, default=20_000, help="episodes of `memory`")
    parser.add_argument("--here", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        asyncio.run(ROWS[options.here](options.waiting if options.here == "memory" else options.episodes))
        return
    for row in ROWS:
        if any(fnmatch.fnmatch(row, pattern) for pattern in options.rows):
            subprocess.run([sys.executable, *sys.argv, "--here", row], check=True)


if __name__ == "__main__":
    main()
