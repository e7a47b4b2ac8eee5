"""Many short episodes over several worker processes: none is lost, none comes twice, and memory stays flat.

    python benchmarks/soak_episodes.py [--episodes 5000] [--workers 2] [--kills 4]

A `RayRunner` plays groups of eight episodes of two turns, whose engine answers at once and whose tool does nothing, as
in `turn_cost.py`; `--kills` workers are killed meanwhile. Each trajectory must be the first with its key (task and
sample), and whole. Memory is that of the driver and of each worker, from a fifth of the episodes on; a worker that
replaced a killed one counts from its own first look on. With `--kills 0` it prints CPU time as well. Ends with status 1
if anything does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ray
import turn_cost
from ray_turns import GROUP, make_engine, make_env

from toolgym.envs import Task
from toolgym.rollout import RayRunner, RunConfig, SamplingParams
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.message import user

TURNS, AT_ONCE, LOOKS = 2, 64, 50
GROWTH, SLACK = 1.1, 30.0
"""Memory at the end may be so many times that of the first look, and so many MB more."""


def resident(pid: int) -> float:
    """MB of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def alive(pids: list[int]) -> list[int]:
    """Those that are processes: figures of a worker outlive it."""
    return [pid for pid in pids if Path(f"/proc/{pid}/statm").exists() and resident(pid)]


def tasks(episodes: int) -> Iterator[Task]:
    """As many as make so many episodes, made when they are asked for."""
    return (Task(messages=[user(f"What is the sum of {number} and 7?")]) for number in range(episodes // GROUP))


class Account:
    """What came so far: a mark for each key, problems in words, and looks at memory by process."""

    def __init__(self, episodes: int) -> None:
        self.marks = bytearray(episodes)
        self.problems: list[str] = []
        self.memory: dict[int, list[float]] = {}
        self.came = 0

    def take(self, trajectory: Trajectory) -> None:
        """Count a trajectory."""
        key = trajectory.task_index * GROUP + trajectory.sample_index
        self.came += 1
        if self.marks[key]:
            self.problems.append(f"twice: task {trajectory.task_index}, sample {trajectory.sample_index}")
        self.marks[key] = 1
        if trajectory.error or trajectory.policy_tokens != TURNS * turn_cost.TURN_TOKENS:
            self.problems.append(f"not whole: {trajectory!r}")

    def look(self, pids: list[int]) -> None:
        """Note the memory of processes that live."""
        for pid in alive(pids):
            self.memory.setdefault(pid, []).append(resident(pid))

    def close(self) -> None:
        """Compare, at the end, what came with what should have."""
        lost = self.marks.count(0)
        if lost:
            self.problems.append(f"{lost} never came, first that of task {self.marks.index(0) // GROUP}")
        for pid, looks in self.memory.items():
            if looks[-1] > looks[0] * GROWTH + SLACK:
                self.problems.append(f"process {pid} grew from {looks[0]:.0f} to {looks[-1]:.0f} MB")


async def soak(episodes: int, workers: int, kills: int) -> Account:
    """Play the episodes, and print what they took."""
    account, draw = Account(episodes), random.Random(1)
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=turn_cost.TURN_TOKENS), group_size=GROUP, max_concurrent=AT_ONCE, seed=0
    )
    deaths = [episodes * (at + 1) // (kills + 1) for at in range(kills)]
    began = time.monotonic()
    first: tuple[int, float, dict[int, float]] | None = None
    spent: dict[int, float] = {}
    async with RayRunner(
        partial(make_env, TURNS), partial(make_engine, TURNS), num_workers=workers, config=config,
        ray_options={"num_cpus": 0},
    ) as runner:  # fmt: skip
        async for trajectory in runner.stream(tasks(episodes)):
            account.take(trajectory)
            spent = {figures["pid"]: figures["cpu_seconds"] for figures in runner.worker_metrics.values()}
            pids = list(spent)
            if deaths and account.came >= deaths[0] and alive(pids):
                os.kill(draw.choice(alive(pids)), signal.SIGKILL)
                deaths.pop(0)
            if account.came >= episodes // 5 and account.came % max(1, episodes // LOOKS) == 0:
                account.look([os.getpid(), *pids])
                first = first or (account.came, time.process_time(), spent)
    wall = time.monotonic() - began
    account.problems += [f"{len(deaths)} workers were not killed"] if deaths else []
    account.close()
    print(f"{account.came} of {episodes} episodes in {wall:.0f} s, {account.came / wall:.0f} a second; {kills} killed")
    if first is not None and not kills:  # from the first look on: what processes take to start is not in it
        each = 1e3 / (account.came - first[0])
        driver, workers = time.process_time() - first[1], sum(spent[pid] - cpu for pid, cpu in first[2].items())
        print(f"CPU an episode: {driver * each:.2f} ms in the driver, {workers * each:.2f} ms in the workers")
    for pid, looks in account.memory.items():
        who = "driver" if pid == os.getpid() else "worker"
        series = " ".join(f"{look:.1f}" for look in looks[:: max(1, len(looks) // 8)])
        print(f"{who} {pid}: {series}, {looks[-1]:.1f} MB at the end")
    return account


def main() -> None:
    """Start Ray, play, stop it, and say what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 5_000), ("workers", 2), ("kills", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    episodes = max(GROUP, options.episodes // GROUP * GROUP)
    with tempfile.TemporaryDirectory(prefix="tgray", ignore_cleanup_errors=True) as folder:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder)
        ray.init("local", num_cpus=options.workers, object_store_memory=200 * 2**20, include_dashboard=False,
                 log_to_driver=False, logging_level=logging.ERROR)  # fmt: skip
        try:
            account = asyncio.run(soak(episodes, options.workers, options.kills))
        finally:
            ray.shutdown()
    for problem in account.problems[:20]:
        print(problem)
    if account.problems:
        raise SystemExit(f"{len(account.problems)} problems")
    print("none lost, none twice, memory flat")


if __name__ == "__main__":
    main()
