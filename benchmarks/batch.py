"""What a batch costs: `make_batch` with all of its checks, beside plain NumPy that writes the same values.

    python benchmarks/batch.py [--trajectories 1024] [--turns 4] [--tokens 2000] [--repeats 5]

Plain NumPy (the bound) writes the ids, the mask and the log-probabilities of each segment into three padded arrays, and
checks nothing. The two take turns in one run, and the least CPU time of the repeats is printed, so that other work on
the machine counts little. The target is 0.5 s on a machine on which plain NumPy takes 25 ms for the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from toolgym.envs.base import StopReason
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory import Trajectory

TARGET = 20.0
"""Most times of the bound that a checked batch of eleven tensors may take."""


def trajectories(count: int, turns: int, tokens: int) -> list[Trajectory]:
    """Made-up trajectories of about so many tokens after the prompt, three quarters of them the policy's."""
    random = np.random.default_rng(0)
    share = tokens // turns
    made = []
    for number in range(count):
        segments = []
        for _ in range(turns):
            size = int(random.integers(share // 2, share))
            segments.append(Segment.policy(random.integers(0, 150_000, size), -random.random(size), ["3"] * size))
            segments.append(Segment.env(random.integers(0, 150_000, share // 4)))
        sequence = TokenSequence(random.integers(0, 150_000, 500), tuple(segments))
        made.append(
            Trajectory(
                id=str(number),
                env_id="",
                task_id="",
                source="",
                group_id=str(number // 8),
                task_index=number // 8,
                sample_index=number % 8,
                messages=(),
                tools=(),
                sequences=(sequence,),
                reward=1.0,
                stop_reason=StopReason.ANSWERED,
            )
        )
    return made


def plain(made: Sequence[Trajectory]) -> None:
    """Write ids, mask and log-probabilities to padded arrays, and check nothing."""
    shape = (len(made), max(sum(map(len, one.segments)) for one in made))
    ids, mask, log_probs = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for row, one in enumerate(made):
        at = 0
        for segment in one.segments:
            end = at + len(segment)
            ids[row, at:end] = segment.token_ids
            if segment.is_policy:
                mask[row, at:end] = 1
                log_probs[row, at:end] = segment.logprobs
            at = end


def main() -> None:
    """Print both times, their ratio, and whether the target holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("trajectories", 1024), ("turns", 4), ("tokens", 2000), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of torch that wait for each other would count as well
    made = trajectories(options.trajectories, options.turns, options.tokens)
    best = {"plain NumPy": float("inf"), "make_batch": float("inf")}
    for _ in range(options.repeats):
        for name, work in (
            ("plain NumPy", lambda: plain(made)),
            ("make_batch", lambda: make_batch(made, pad_token_id=0)),
        ):
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    for name, seconds in best.items():
        print(f"{name:12s} {seconds * 1e3:9.1f} ms of CPU")
    ratio = best["make_batch"] / best["plain NumPy"]
    print(f"ratio        {ratio:9.1f}  target at most {TARGET}: {'holds' if ratio <= TARGET else 'does not hold'}")


if __name__ == "__main__":
    main()
