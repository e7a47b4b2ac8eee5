"""What a turn costs in CPU time where episodes are played in Ray actors.

    python benchmarks/ray_turns.py [--episodes 256] [--turns 4] [--repeats 5]
    .trainers/verl/bin/python benchmarks/ray_turns.py       beside verl; see `scripts/trainers`

One worker of a `RayRunner` plays episodes whose engine answers at once with ids that were made before, 200 a turn, and
whose tool does nothing, as in `turn_cost.py`. Printed is the least CPU time of the repeats: of the worker's process,
with all threads of Ray's in it, and of the driver; what the same episodes cost with a `Runner` of one process, in the
same run; and how many bytes a trajectory is on its way. In a further line the engine is a Ray actor, so each turn is a
call of one.

verl asks its engine through Ray in each turn, by two calls: of its load balancer and of the server. Where verl is
installed, its worker does the same work in this process, with tensors made at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ray
import turn_cost
import verl_turns

from toolgym.envs import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout import RayRunner, RunConfig, Runner, SamplingParams
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.runner.ray import EngineActor
from toolgym.rollout.runner.ray.packing import Packer
from toolgym.tools.message import user

GROUP, TURN_TOKENS = turn_cost.GROUP, turn_cost.TURN_TOKENS
TARGET = 0.7
"""Most milliseconds of CPU time a turn in the worker."""


def make_engine(turns: int) -> turn_cost.Ready:
    """The engine, in the process that asks it."""
    return turn_cost.Ready(turn_cost.real_tokenizer(), turns)


def make_env(turns: int) -> ToolEnv:
    """An env with one tool."""
    return ToolEnv(turn_cost.tools(1), tasks(GROUP), max_turns=turns)


def tasks(episodes: int) -> list[Task]:
    """As many as make so many episodes."""
    return [Task(messages=[user(question)]) for question in turn_cost.questions(episodes)]


async def cost(runner: RayRunner | Runner, episodes: int, repeats: int) -> tuple[float, float, float]:
    """Least CPU seconds of a worker and of this process, and the mean bytes of a trajectory."""
    worker = driver = float("inf")

    def spent() -> float:
        return sum(one["cpu_seconds"] for one in getattr(runner, "worker_metrics", {}).values())

    for repeat in range(repeats + 1):
        gc.collect()
        before, began = spent(), time.process_time()
        made = await runner.run(tasks(episodes))
        took = time.process_time() - began
        if repeat:  # the first makes what is made once a process
            worker, driver = min(worker, spent() - before), min(driver, took)
        assert len(made) == episodes
        assert all(not one.problems and one.policy_tokens == len(one.turns) * TURN_TOKENS for one in made)
    return worker, driver, sum(len(Packer().pack(one)) for one in made) / len(made)


async def measure(episodes: int, turns: int, repeats: int) -> None:
    """Print a line for each way."""
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=TURN_TOKENS), group_size=GROUP, max_concurrent=episodes, seed=0
    )
    envs: Callable[[], ToolEnv] = partial(make_env, turns)
    per_turn = 1e3 / (episodes * turns)

    def show(name: str, worker: float, driver: float) -> None:
        print(f"{name:28s}{worker * per_turn:7.3f} ms a turn in the worker  {driver * per_turn:7.3f} ms in the driver")

    _, alone, _ = await cost(Runner(envs, make_engine(turns), config=config), episodes, repeats)
    print(f"{'Runner, one process':28s}{alone * per_turn:7.3f} ms a turn")
    host = ray.remote(EngineActor).options(num_cpus=0).remote(partial(make_engine, turns))
    found: dict[str, float] = {}
    for name, engine in (("RayRunner", partial(make_engine, turns)), ("RayRunner, engine an actor", host)):
        async with RayRunner(envs, engine, num_workers=1, config=config, ray_options={"num_cpus": 0}) as runner:
            found[name], driver, size = await cost(runner, episodes, repeats)
        show(name, found[name], driver)
    tokens = turns * TURN_TOKENS
    print(
        f"{size / 1024:.1f} KiB a trajectory of {tokens} sampled tokens, of which {tokens * 12 / 1024:.1f} are arrays"
    )
    milliseconds = found["RayRunner"] * per_turn
    print(f"target at most {TARGET} ms in the worker: {'holds' if milliseconds <= TARGET else 'does not hold'}")


def verls(episodes: int, turns: int, repeats: int) -> float:
    """Least milliseconds of CPU a turn in verl's worker."""
    engine = make_engine(turns)
    worker = verl_turns.VerlWorker(
        engine.tokenizer,
        Path(tiny_policy_path()),
        tools=1,
        description=turn_cost.DESCRIPTION,
        argument=turn_cost.ARGUMENT,
        result=turn_cost.RESULT,
        turns=[engine.turn(number).token_ids for number in range(turns)],
    )
    worker.ask_through_ray()
    asked = [question for question in turn_cost.questions(episodes) for _ in range(GROUP)]
    return 1e3 * min(worker.cpu_seconds(asked) for _ in range(repeats + 1)) / (episodes * turns)


def main() -> None:
    """Start Ray, measure, and stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 256), ("turns", 4), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tgray", ignore_cleanup_errors=True) as folder:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder)
        ray.init("local", num_cpus=2, object_store_memory=200 * 2**20, include_dashboard=False,
                 log_to_driver=False, logging_level=logging.ERROR)  # fmt: skip
        try:
            asyncio.run(measure(options.episodes, options.turns, options.repeats))
            if verl_turns.installed():
                milliseconds = verls(options.episodes, options.turns, options.repeats)
                print(f"{'verl, engine an actor':28s}{milliseconds:7.3f} ms a turn in the worker")
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
