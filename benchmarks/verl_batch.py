"""What verl's batch of trajectories costs in CPU time: made by `to_data_proto`, and by verl's own worker.

    .trainers/verl/bin/python benchmarks/verl_batch.py [--rows 128] [--repeats 3]

Both give the same tensors, to the bit, of responses of up to 8192 tokens, in batches that hold 1024 tokens of prompt
and 8192 of response. The least CPU time of the repeats is printed. Needs verl, see `scripts/trainers`; without it
nothing is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from toolgym.envs.types import StopReason
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn

PROMPT_LENGTH, RESPONSE_LENGTH = 1024, 8192


def trajectory(rng: random.Random, number: int) -> Trajectory:
    """One of four turns, with observations between."""
    length = rng.randint(8, RESPONSE_LENGTH)
    segments = []
    for place in range(7):
        ids = np.array([rng.randrange(400) for _ in range(length // 7)], np.int32)
        policy = place % 2 == 0
        logprobs = -np.abs(np.sin(ids)) if policy else np.zeros(0)
        segments.append(Segment(ids, policy, logprobs, (("1", len(ids)),) if policy else ()))
    prompt = np.array([rng.randrange(400) for _ in range(rng.randint(100, PROMPT_LENGTH))], np.int32)
    return Trajectory(
        id=str(number),
        env_id="",
        task_id=str(number // 8),
        source="",
        group_id=str(number // 8),
        task_index=number // 8,
        sample_index=number % 8,
        messages=(),
        tools=(),
        sequences=(TokenSequence(prompt, tuple(segments)),),
        reward=rng.random(),
        stop_reason=StopReason.ANSWERED,
        turns=(Turn("", "stop", len(prompt), 1),),
    )


def cpu_seconds(make: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least CPU time of several calls, and what the last gave."""
    least, made = float("inf"), None
    for _ in range(repeats):
        started = time.process_time()
        made = make()
        least = min(least, time.process_time() - started)
    return least, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if importlib.util.find_spec("verl") is None:
        print("verl is not installed (make test-trainer-verl): nothing measured")
        return
    import torch
    from hydra import compose, initialize_config_module
    from verl.experimental.agent_loop import AgentLoopWorker

    from toolgym.rollout.adapters.verl import to_data_proto
    from toolgym.rollout.adapters.verl.agent_loop import to_output
    from toolgym.rollout.adapters.verl.rows import rows_of

    torch.set_num_threads(1)
    with initialize_config_module("verl.trainer.config", version_base=None):
        overrides = [
            f"actor_rollout_ref.model.path={tiny_policy_path()}",
            "actor_rollout_ref.rollout.name=sglang",
            f"data.max_prompt_length={PROMPT_LENGTH}",
            f"data.max_response_length={RESPONSE_LENGTH}",
        ]
        worker = AgentLoopWorker(compose("ppo_trainer", overrides), None)
    pad = worker.tokenizer.pad_token_id
    shape = {"prompt_length": PROMPT_LENGTH, "response_length": RESPONSE_LENGTH, "pad_token_id": pad}
    rng = random.Random(0)
    trajectories = [trajectory(rng, number) for number in range(args.rows)]

    async def by_verl() -> Any:
        outputs = [to_output(row) for one in trajectories for row in rows_of(one, **shape)]
        padded = [await worker._agent_loop_postprocess(output, False, raw_prompt=[]) for output in outputs]
        return worker._postprocess(padded)

    ours, batch = cpu_seconds(lambda: to_data_proto(trajectories, **shape), args.repeats)
    theirs, other = cpu_seconds(lambda: asyncio.run(by_verl()), args.repeats)
    same = all(torch.equal(batch.batch[name], tensor) for name, tensor in other.batch.items())
    print(f"{args.rows} rows, equal to the bit: {same}")
    print(f"verl's worker   {theirs / args.rows * 1e3:6.2f} ms of CPU time a row")
    print(f"to_data_proto   {ours / args.rows * 1e3:6.2f} ms of CPU time a row, {theirs / ours:.1f} times less")


if __name__ == "__main__":
    main()
