"""A trajectory as the tensors that AReaL's workflows return.

The format is that of AReaL 1.0.4 (`areal/workflow/multi_turn.py`, `areal/utils/data.py`): whole sequences, padded on
the right, with a log-probability, a mask and a weight version at the place of each token itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

if TYPE_CHECKING:
    import torch

NO_VERSION = -1
"""AReaL's version of a token that the policy did not sample."""


def to_tensors(trajectory: Trajectory, *, several_rows: bool = False) -> dict[str, torch.Tensor] | None:
    """What `arun_episode` returns for a trajectory; None, which AReaL leaves out, for one that cannot be trained on.

    Args:
        trajectory: None comes of one that may not be trained on, does not count, or in which the policy sampled
            nothing.
        several_rows: whether a trajectory with several token sequences is as many rows. AReaL normalizes rewards over
            a fixed number of rows (`group_size`), so this does not go with normalization over groups.

    Returns:
        `input_ids`, `loss_mask` (1 for what the policy sampled), `versions` (-1 for the rest) int32 and `logprobs`
        (0 for the rest) float32 `[rows, tokens]`, `attention_mask` bool `[rows, tokens]`, `rewards` float32 `[rows]`.

    Raises:
        ConfigError: something else than a trajectory was given.
        BatchError: there are several token sequences without `several_rows`, or a weight version is no number.
    """
    import torch

    [trajectory] = require_trajectories([trajectory])
    if not trajectory.usable:
        return None
    sequences = [one for one in trajectory.sequences if one.policy_tokens]
    if len(sequences) > 1 and not several_rows:
        raise BatchError(
            f"trajectory {trajectory.id} has {len(sequences)} token sequences, and AReaL normalizes rewards over a "
            "fixed number of rows for each task: play with history='append' and without a context policy that revises "
            "messages, or give several_rows=True and normalize no rewards over groups"
        )
    longest = max(len(one.prompt_ids) + one.response_tokens for one in sequences)
    rows = [_row(trajectory, sequence, longest) for sequence in sequences]
    kinds = {"logprobs": torch.float32, "attention_mask": torch.bool}
    tensors = {name: torch.tensor([row[name] for row in rows], dtype=kinds.get(name, torch.int32)) for name in rows[0]}
    return {**tensors, "rewards": torch.full((len(rows),), trajectory.reward, dtype=torch.float32)}


def _row(trajectory: Trajectory, sequence: TokenSequence, longest: int) -> dict[str, list[Any]]:
    context = len(sequence.prompt_ids)
    row: dict[str, list[Any]] = {
        "input_ids": [*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()],
        "logprobs": [0.0] * context + sequence.logprobs.tolist(),
        "loss_mask": [0] * context + sequence.response_mask.tolist(),
        "versions": [NO_VERSION] * context + [_version(trajectory, one) for one in sequence.weight_versions],
        "attention_mask": [1] * (context + sequence.response_tokens),
    }
    fillers = {"versions": NO_VERSION}
    return {name: values + [fillers.get(name, 0)] * (longest - len(values)) for name, values in row.items()}


def _version(trajectory: Trajectory, version: str | None) -> int:
    try:
        return NO_VERSION if version is None else int(version)
    except ValueError:
        raise BatchError(
            f"field versions: trajectory {trajectory.id} has the weight version {version!r}; AReaL's are whole numbers"
        ) from None
