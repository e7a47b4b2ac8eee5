"""What a batch costs: `make_batch` with all of its checks, and what packs it, beside plain NumPy.

    python benchmarks/batch.py [--trajectories 1024] [--turns 4] [--tokens 2000] [--repeats 5]

Plain NumPy (the bound) writes the ids, the mask and the log-probabilities of each segment into three padded arrays, and
checks nothing. All take turns in one run, and the least CPU time of the repeats is printed, so that other work on the
machine counts little. The target of `make_batch` is 0.5 s on a machine on which plain NumPy takes 25 ms for the same,
and so is that of each way to pack the batch.

The trajectories come in groups of eight that share their prompt, and pairs of them the first turn. The last lines tell
what packing saves: the tokens that a forward pass computes, in relation to those of the padded batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from toolgym.envs.base import StopReason
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.batch.packing import pack
from toolgym.rollout.batch.tree import pack_tree
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory

TARGET = 20.0
"""Most times of the bound that a checked batch of twelve tensors may take, or a packed one that is made of it."""


def trajectories(count: int, turns: int, tokens: int) -> list[Trajectory]:
    """Made-up trajectories of about so many tokens after the prompt, three quarters of them the policy's."""
    random = np.random.default_rng(0)
    share = tokens // turns
    made: list[Trajectory] = []
    for number in range(count):
        before = made[-1] if number % 8 else None
        prompt = random.integers(0, 150_000, 500) if before is None else before.prompt_ids
        segments = list(before.segments[:2]) if before is not None and number % 2 else []
        while len(segments) < 2 * turns:
            size = int(random.integers(share // 2, share))
            segments.append(Segment.policy(random.integers(0, 150_000, size), -random.random(size), ["3"] * size))
            segments.append(Segment.env(random.integers(0, 150_000, share // 4)))
        sequence = TokenSequence(prompt, tuple(segments))
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
    """Print the times, their ratios to the bound, whether the targets hold, and what packing saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("trajectories", 1024), ("turns", 4), ("tokens", 2000), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of torch that wait for each other would count as well
    made = trajectories(options.trajectories, options.turns, options.tokens)
    batch = make_batch(made, pad_token_id=0)
    longest = int(batch.attention_mask.sum(dim=1).max())
    ways: dict[str, Callable[[], object]] = {
        "plain NumPy": lambda: plain(made),
        "make_batch": lambda: make_batch(made, pad_token_id=0),
        "pack": lambda: pack(batch),
        "pack_tree": lambda: pack_tree(batch),
        "micro_batches": lambda: batch.micro_batches(max_tokens=8 * longest, count="packed"),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.repeats):
        for name, work in ways.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    for name, seconds in best.items():
        ratio = seconds / best["plain NumPy"]
        verdict = "" if name == "plain NumPy" else f"target at most {TARGET}: {_holds(ratio <= TARGET)}"
        print(f"{name:14s} {seconds * 1e3:9.1f} ms of CPU, ratio {ratio:5.1f}  {verdict}")
    padded = batch.input_ids.numel()
    for name, tokens in (("padded", padded), ("packed", len(pack(batch))), ("tree", len(pack_tree(batch)))):
        print(f"{name:14s} {tokens:9d} tokens, {tokens / padded:.2f} of the padded")


def _holds(condition: bool) -> str:
    return "holds" if condition else "does not hold"


if __name__ == "__main__":
    main()
