"""The seeds of a run: each episode, turn and branch has one of its own, which the run's decides."""

from __future__ import annotations

import hashlib


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """A seed of 63 bits that depends on every part and on nothing else."""
    text = "\x1f".join([str(run_seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream_seed(run_seed: int | None, *, validate: bool) -> int | None:
    """The seed that a run draws tasks with, and that its steps' seeds derive from; another one to validate."""
    return derive_seed(run_seed, "validate") if validate and run_seed is not None else run_seed


def step_seed(run_seed: int | None, training_step: int) -> int | None:
    return run_seed if run_seed is None or not training_step else derive_seed(run_seed, "step", training_step)
