"""`Batch`: trajectories as masked token tensors, with an invariant checker that always runs.

Layout (as verl's, TRL's and OpenRLHF's padded batches have it): the prompt is padded on the left, the response on
the right, so that all responses begin in the same column.

    prompts         [batch, prompt]                 pad pad p1 p2 p3
    responses       [batch, response]                                r1 r2 t1 t2 r3 pad
    response_mask   [batch, response]                                 1  1  0  0  1   0     1 = sampled by the policy
    input_ids       [batch, prompt + response]      pad pad p1 p2 p3 r1 r2 t1 t2 r3 pad
    attention_mask  [batch, prompt + response]        0   0  1  1  1  1  1  1  1  1   0
    position_ids    [batch, prompt + response]        0   0  0  1  2  3  4  5  6  7   0

A row is one token sequence. Most trajectories are one sequence; one whose context was written anew on the way
(`history="template"`, a context policy) is several, and each becomes a row of its own with the trajectory's reward
and group. What an earlier sequence sampled is prompt in a later one, so no token is trained twice. `trajectory_ids`
tells which rows belong together: statistics over trajectories, such as a group's mean reward, must count each
trajectory once, and its advantage goes to all of its rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from toolgym.rollout.trajectory import TokenSequence, Trajectory
from toolgym.tools.errors import BatchError, ConfigError, UnknownNameError, missing_extra, nearest

try:
    import numpy as np
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
    from torch import Tensor
except ImportError as error:
    raise missing_extra("rollout", "A batch of tensors", error) from error


@dataclass(frozen=True)
class Dropped:
    """A trajectory that is not in the batch.

    Attributes:
        id: the trajectory's id.
        reason: why it was left out.
    """

    id: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Masked token tensors, one row for each token sequence. See the module for the layout.

    Attributes:
        prompts: int64 `[batch, prompt]`, padded on the left with `pad_token_id`.
        responses: int64 `[batch, response]`, padded on the right.
        response_mask: int64 `[batch, response]`, 1 on tokens that the policy sampled, 0 on the env's and on padding.
        input_ids: int64 `[batch, prompt + response]`.
        attention_mask: int64 `[batch, prompt + response]`, 1 on all tokens, the env's included, 0 on padding.
        position_ids: int64 `[batch, prompt + response]`, counted over the attended tokens, 0 on padding.
        rollout_log_probs: float32 `[batch, response]`, the engine's natural-log probabilities of the policy's tokens
            under the temperature-scaled distribution; 0.0 elsewhere.
        weight_versions: int64 `[batch, response]`, the number of the version of the weights that sampled each of the
            policy's tokens; -1 elsewhere.
        rewards: float32 `[batch]`, the trajectory's, the same in each of its rows.
        group_ids: int64 `[batch]`, equal for trajectories sampled from one task.
        trajectory_ids: int64 `[batch]`, equal for the rows of one trajectory: trajectories are numbered from 0 in the
            order of their rows.
        pad_token_id: the id that padding holds.
        ids: the rows' ids: the trajectory's id where it is one sequence, else that id, a slash and the sequence's
            number in the trajectory.
        dropped: trajectories that were left out, and why.
        version_numbers: the engine's name of each version to its number in `weight_versions`. A name that is a
            decimal number, as a training step is, keeps it. Others get the smallest numbers that are left, in the
            order of their first appearance; so SGLang's initial `default` comes before step 1.
    """

    prompts: Tensor
    responses: Tensor
    response_mask: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    rollout_log_probs: Tensor
    weight_versions: Tensor
    rewards: Tensor
    group_ids: Tensor
    trajectory_ids: Tensor
    pad_token_id: int
    ids: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    version_numbers: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {item.name: value for item in fields(self) if isinstance(value := getattr(self, item.name), Tensor)}

    def save(self, path: str | Path) -> None:
        """Write the batch to a safetensors file; `load_batch` reads it back.

        Raises:
            ConfigError: the file cannot be written.
        """
        metadata = {
            "pad_token_id": str(self.pad_token_id),
            "ids": json.dumps(self.ids),
            "dropped": json.dumps([[one.id, one.reason] for one in self.dropped]),
            "version_numbers": json.dumps(dict(self.version_numbers)),
        }
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            save_file({name: value.contiguous() for name, value in self.tensors().items()}, str(path), metadata)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot write the batch to {str(path)!r}: {error}") from error


class _Row(NamedTuple):
    trajectory: Trajectory
    number: int
    id: str
    sequence: TokenSequence


def _rows(trajectories: Sequence[Trajectory]) -> list[_Row]:
    """The sequences to train on. One without a sampled token, where the engine gave nothing, has nothing to train."""
    rows = []
    for number, trajectory in enumerate(trajectories):
        for part, sequence in enumerate(trajectory.sequences):
            name = trajectory.id if len(trajectory.sequences) == 1 else f"{trajectory.id}/{part}"
            if sequence.policy_tokens:
                rows.append(_Row(trajectory, number, name, sequence))
    return rows


def _number_versions(names: Iterable[str | None]) -> dict[str, int]:
    """See `Batch.version_numbers`."""
    found = dict.fromkeys(name for name in names if name is not None)
    numbers = {name: int(name) for name in found if _is_number(name)}
    taken = set(numbers.values())
    free = (number for number in itertools.count() if number not in taken)
    return {name: numbers[name] if name in numbers else next(free) for name in found}


def _is_number(name: str) -> bool:
    """Whether a version's name is a decimal number in its one spelling that an int64 holds."""
    return name.isascii() and name.isdecimal() and len(name) <= 18 and (name == "0" or name[0] != "0")


def make_batch(
    trajectories: Iterable[Trajectory],
    *,
    pad_token_id: int,
    max_prompt_length: int | None = None,
    max_response_length: int | None = None,
) -> Batch:
    """Make a batch, and check it. See the module for what becomes a row.

    Failed trajectories and those without a single policy token are left out and listed in `Batch.dropped`.

    Args:
        trajectories: in the order of the rows; the rows of one trajectory follow each other.
        pad_token_id: what padding holds; masks, not ids, tell padding from tokens.
        max_prompt_length: width of the prompts; None: the longest one.
        max_response_length: width of the responses; None: the longest one.

    Raises:
        BatchError: no trajectory is left, one does not fit the widths (nothing is ever cut), or an invariant broke.
    """
    kept: list[Trajectory] = []
    dropped: list[Dropped] = []
    for trajectory in trajectories:
        if trajectory.error is not None:
            dropped.append(Dropped(trajectory.id, f"{trajectory.error.kind}: {trajectory.error.message}"))
        elif trajectory.policy_tokens == 0:
            dropped.append(Dropped(trajectory.id, f"no policy tokens (stop reason {trajectory.stop_reason.value})"))
        else:
            kept.append(trajectory)
    if not kept:
        reasons = "; ".join(one.reason for one in dropped[:3])
        raise BatchError(
            f"no trajectory can become a row: {len(dropped)} were left out ({reasons or 'none were given'})"
        )
    rows = _rows(kept)
    sequences = [row.sequence for row in rows]
    responses = [one.response_ids for one in sequences]
    prompt_width = _width("prompt", rows, [len(one.prompt_ids) for one in sequences], max_prompt_length)
    response_width = _width("response", rows, [len(one) for one in responses], max_response_length)
    versions = [one.weight_versions for one in sequences]
    numbers = _number_versions(itertools.chain.from_iterable(versions))
    numbered = [[-1 if name is None else numbers[name] for name in row] for row in versions]

    prompts, prompt_mask = _pad([one.prompt_ids for one in sequences], prompt_width, pad_token_id, left=True)
    padded, attended = _pad(responses, response_width, pad_token_id)
    response_mask, _ = _pad([one.response_mask for one in sequences], response_width, 0)
    log_probs, _ = _pad([one.logprobs for one in sequences], response_width, 0.0, dtype=torch.float32)
    weight_versions, _ = _pad(numbered, response_width, -1)
    attention_mask = torch.cat([prompt_mask, attended], dim=1)
    batch = Batch(
        prompts=prompts,
        responses=padded,
        response_mask=response_mask,
        input_ids=torch.cat([prompts, padded], dim=1),
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1) * attention_mask,
        rollout_log_probs=log_probs,
        weight_versions=weight_versions,
        rewards=torch.tensor([row.trajectory.reward for row in rows], dtype=torch.float32),
        group_ids=torch.tensor([row.trajectory.group_id for row in rows], dtype=torch.int64),
        trajectory_ids=torch.tensor([row.number for row in rows], dtype=torch.int64),
        pad_token_id=pad_token_id,
        ids=tuple(row.id for row in rows),
        dropped=tuple(dropped),
        version_numbers=numbers,
    )
    check_batch(batch, kept)
    return batch


def check_batch(batch: Batch, trajectories: Sequence[Trajectory] | None = None) -> None:
    """Check a batch's invariants, and its way back to the trajectories.

    Args:
        batch: the batch.
        trajectories: those in the batch, in the order of its rows; None leaves the way back out.

    Raises:
        BatchError: an invariant does not hold; names it and the first row.
    """
    rows, prompt_width = batch.prompts.shape
    response_width = batch.responses.shape[1]
    both = (rows, prompt_width + response_width)
    expected = {
        "prompts": ((rows, prompt_width), torch.int64),
        "responses": ((rows, response_width), torch.int64),
        "response_mask": ((rows, response_width), torch.int64),
        "input_ids": (both, torch.int64),
        "attention_mask": (both, torch.int64),
        "position_ids": (both, torch.int64),
        "rollout_log_probs": ((rows, response_width), torch.float32),
        "weight_versions": ((rows, response_width), torch.int64),
        "rewards": ((rows,), torch.float32),
        "group_ids": ((rows,), torch.int64),
        "trajectory_ids": ((rows,), torch.int64),
    }
    for name, (shape, dtype) in expected.items():
        value = getattr(batch, name)
        if tuple(value.shape) != shape or value.dtype != dtype:
            raise BatchError(f"{name} must be {dtype} {list(shape)}, got {value.dtype} {list(value.shape)}")
    if len(batch.ids) != rows:
        raise BatchError(f"{rows} rows need as many ids, got {len(batch.ids)}")
    if len(set(batch.ids)) != rows:
        twice = next(one for one in batch.ids if batch.ids.count(one) > 1)
        raise BatchError(f"two rows have the id {twice!r}: a trajectory came twice, or two share an id")
    numbers = list(batch.version_numbers.values())
    if len(set(numbers)) != len(numbers) or any(number < 0 for number in numbers):
        raise BatchError(f"version_numbers must be different numbers from 0 on, got {dict(batch.version_numbers)!r}")

    mask, attention = batch.response_mask, batch.attention_mask
    prompt_attention, response_attention = attention[:, :prompt_width], attention[:, prompt_width:]
    log_probs = batch.rollout_log_probs
    steps = batch.position_ids.diff(dim=1)
    inner = attention[:, 1:] * attention[:, :-1]
    _hold("masks hold 0 and 1 only", (torch.cat([attention, mask], dim=1) & ~1) == 0)
    _hold("prompts are padded on the left only", prompt_attention.diff(dim=1) >= 0)
    _hold("responses are padded on the right only", response_attention.diff(dim=1) <= 0)
    _hold("every prompt has a token", prompt_attention.any(dim=1))
    _hold("every response has a policy token", mask.any(dim=1))
    _hold("response_mask lies within the attention", mask <= response_attention)
    _hold("padding holds the pad token", (batch.input_ids == batch.pad_token_id) | (attention == 1))
    _hold("input_ids are prompts and responses", batch.input_ids == torch.cat([batch.prompts, batch.responses], dim=1))
    _hold("position_ids begin at 0 and count the attended tokens", (steps == 1) | (inner == 0))
    _hold("position_ids are 0 on padding", (batch.position_ids == 0) | (attention == 1))
    _hold("the first token has position 0", (batch.position_ids * attention).amax(dim=1) == attention.sum(dim=1) - 1)
    _hold("log probs are finite and at most 0", torch.isfinite(log_probs) & (log_probs <= 1e-4))
    _hold("log probs are 0 where the policy did not sample", (log_probs == 0) | (mask == 1))
    versions = batch.weight_versions
    _hold("weight_versions are -1 where the policy did not sample", (versions == -1) | (mask == 1))
    _hold(
        "weight_versions are in version_numbers where the policy sampled",
        torch.isin(versions, torch.tensor(numbers, dtype=torch.int64)) | (mask == 0),
    )
    _hold("rewards are finite", torch.isfinite(batch.rewards))
    # Row by row a trajectory goes on or the next one begins; within one, reward and group are the same.
    order = torch.cat([torch.tensor([-1]), batch.trajectory_ids]).diff()
    same = torch.cat([torch.tensor([False]), order[1:] == 0])
    _hold("trajectory_ids count the trajectories from 0 in the order of the rows", (order == 1) | same)
    _hold("rows of one trajectory share its reward", ~same | (batch.rewards == batch.rewards.roll(1)))
    _hold("rows of one trajectory share its group", ~same | (batch.group_ids == batch.group_ids.roll(1)))
    if trajectories is not None:
        _check_way_back(batch, trajectories)


def load_batch(path: str | Path) -> Batch:
    """Read a batch that `Batch.save` wrote, and check it.

    Raises:
        UnknownNameError: there is no such file; names the nearest one.
        ConfigError: the file is not a batch.
        BatchError: an invariant does not hold.
    """
    path = Path(path)
    if not path.exists():
        siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UnknownNameError(f"no batch at {str(path)!r}{nearest(path.name, siblings)}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        numbers = json.loads(metadata["version_numbers"])
        batch = Batch(
            **tensors,
            pad_token_id=int(metadata["pad_token_id"]),
            ids=tuple(json.loads(metadata["ids"])),
            dropped=tuple(Dropped(*one) for one in json.loads(metadata["dropped"])),
            version_numbers={str(name): int(number) for name, number in numbers.items()},
        )
    except (OSError, SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is not a batch of toolgym: {type(error).__name__}: {error}") from error
    check_batch(batch)
    return batch


def _pad(
    rows: Sequence[Sequence[float]],
    width: int,
    value: float,
    *,
    left: bool = False,
    dtype: torch.dtype = torch.int64,
) -> tuple[Tensor, Tensor]:
    """Pad ragged rows in one go. Returns the padded `[rows, width]` and an int64 mask, 1 where a row has a value."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    columns = np.arange(width)
    where = columns >= width - lengths[:, None] if left else columns < lengths[:, None]
    kind = np.float32 if dtype is torch.float32 else np.int64
    padded = np.full((len(rows), width), value, dtype=kind)
    padded[where] = np.fromiter(itertools.chain.from_iterable(rows), dtype=kind, count=int(lengths.sum()))
    return torch.from_numpy(padded), torch.from_numpy(where.astype(np.int64))


def _width(what: str, rows: Sequence[_Row], lengths: Sequence[int], limit: int | None) -> int:
    longest = max(lengths)
    if limit is None:
        return longest
    if longest > limit:
        row = lengths.index(longest)
        raise BatchError(
            f"the {what} of trajectory {rows[row].id} has {longest} tokens, more than "
            f"max_{what}_length={limit}; nothing is cut: raise the width, or limit the rollout"
        )
    return limit


def _hold(what: str, condition: Tensor) -> None:
    if bool(condition.all()):
        return
    broken = condition if condition.dim() == 1 else condition.all(dim=1)
    row = int((~broken).nonzero()[0])
    raise BatchError(f"the batch broke an invariant: {what} (first at row {row})")


def _check_way_back(batch: Batch, trajectories: Sequence[Trajectory]) -> None:
    """Unpad every row with its masks and compare with what the trajectories hold."""
    rows = _rows(trajectories)
    if len(rows) != len(batch):
        raise BatchError(f"{len(batch)} rows came from trajectories that make {len(rows)}")
    prompt_width = batch.prompts.shape[1]
    attention = batch.attention_mask.bool()
    mask = batch.response_mask.bool()
    names = {number: name for name, number in batch.version_numbers.items()}
    for index, row in enumerate(rows):
        prompt = batch.prompts[index][attention[index, :prompt_width]].tolist()
        response = batch.responses[index][attention[index, prompt_width:]].tolist()
        sampled = batch.responses[index][mask[index]].tolist()
        log_probs = batch.rollout_log_probs[index][mask[index]]
        versions = [names[number] for number in batch.weight_versions[index][mask[index]].tolist()]
        policy = [segment for segment in row.sequence.segments if segment.is_policy]
        wanted = torch.tensor([p for segment in policy for p in segment.logprobs], dtype=torch.float32)
        back = {
            "prompt ids": prompt == list(row.sequence.prompt_ids),
            "response ids": response == row.sequence.response_ids,
            "policy ids": sampled == [token for segment in policy for token in segment.token_ids],
            "log probs": torch.equal(log_probs, wanted),
            "weight versions": versions == [name for segment in policy for name in segment.weight_versions],
            "trajectory": int(batch.trajectory_ids[index]) == row.number,
            "reward": torch.equal(batch.rewards[index], torch.tensor(row.trajectory.reward, dtype=torch.float32)),
            "group": int(batch.group_ids[index]) == row.trajectory.group_id,
            "id": batch.ids[index] == row.id,
        }
        wrong = [name for name, equal in back.items() if not equal]
        if wrong:
            raise BatchError(f"row {index} does not lead back to trajectory {row.id}: {', '.join(wrong)} differ")
