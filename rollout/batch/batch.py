"""`Batch`: trajectories as masked token tensors; docs/batches.md shows the layout.

A row is one token sequence. `trajectory_ids` tells which rows belong to one trajectory: statistics such as a group's
mean reward must count each trajectory once (`toolgym.rollout.advantages.advantages`), and its advantage goes to all of
its rows (`Batch.per_row`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.advantages.reward_placement import RewardPlacement
from toolgym.rollout.batch.fields import FIELDS, payload_padding
from toolgym.rollout.batch.micro_batches import COUNTS, Count, packed_parts, padded_parts, tree_parts
from toolgym.rollout.batch.prefixes import prefix_keys, require_no_images
from toolgym.rollout.batch.row import RowImages, joined_inputs
from toolgym.rollout.trajectory.distribution import SamplingDistribution
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError, ConfigError, require_whole_number
from toolgym.tools.views.html import drawn_by

T = TypeVar("T")


@dataclass(frozen=True)
class Dropped:
    id: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Masked token tensors, one row for each token sequence: those that `FIELDS` lists.

    Attributes:
        pad_token_id: the id that padding holds.
        ids: the rows' ids: the trajectory's id if it is one sequence, else that id, a slash and the sequence's number
            in the trajectory.
        groups: the ids of the groups, see `Trajectory.group_id`; `group_ids` are places in it.
        dropped: trajectories that were left out, and why.
        version_numbers: the engine's name of each version to its number in `weight_versions`. A name that is a decimal
            number, as a training step is, keeps it. Others get the smallest numbers that are left, in the order of
            their first appearance; so SGLang's initial `default` comes before step 1.
        aligned: payloads of the policy's tokens by name, `[rows, response, ...]` in the dtype in which they came.
            Elsewhere they hold -1 if the dtype has a sign and is an integer, else 0 or False.
        reward_placement: which tokens have `token_rewards`: `turns` or `outcome`.
        images: what a vision-language model gets beside the ids, one for each row; empty if no row has images.
        image_token_id: the id that stands for a part of an image, and nowhere else; None without images.
        distributions: for each row the different distributions that its tokens were sampled from: one, unless turns of
            the row differ. `temperatures` has the temperature of each token.
    """

    prompts: Tensor
    responses: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    input_ids: Tensor
    position_ids: Tensor
    rollout_log_probs: Tensor
    temperatures: Tensor
    weight_versions: Tensor
    token_rewards: Tensor
    trajectory_ids: Tensor
    rewards: Tensor
    group_ids: Tensor
    pad_token_id: int
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    version_numbers: Mapping[str, int] = field(default_factory=dict)
    aligned: Mapping[str, Tensor] = field(default_factory=dict)
    reward_placement: RewardPlacement = "turns"
    images: tuple[RowImages, ...] = ()
    image_token_id: int | None = None
    distributions: tuple[tuple[SamplingDistribution, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<Batch: {self._summary}>"

    _repr_html_ = drawn_by("toolgym.rollout.views.batches:batch_html")

    @property
    def _summary(self) -> str:
        dropped = f", {len(self.dropped)} trajectories left out" if self.dropped else ""
        return (
            f"{len(self)} rows of {self.prompts.shape[1]} + {self.responses.shape[1]} tokens, "
            f"{int(self.response_mask.sum())} of them the policy's, {len(self.groups)} groups{dropped}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; those of `aligned` as `aligned.NAME`."""
        fields = {item.name: getattr(self, item.name) for item in FIELDS}
        return fields | {f"aligned.{name}": value for name, value in self.aligned.items()}

    @property
    def pixel_inputs(self) -> dict[str, Tensor]:
        """The arguments of a model for the images of all rows, in their order, such as `pixel_values` and
        `image_grid_thw`; empty without images. They go beside `input_ids` and `attention_mask`: a model with positions
        of its own for images, as Qwen-VL, computes them itself."""
        return joined_inputs(self.images)

    def to(self, device: torch.device | str) -> Batch:
        return moved(self, device)

    def token_log_probs(self, logits: Tensor, *, temperature: float | Tensor | None = None) -> Tensor:
        """Return the log-probabilities of the policy's tokens: float32 `[rows, response]`, 0 elsewhere.

        They carry the gradient of the logits.

        Args:
            logits: `[rows, prompt + response, vocabulary]`, of a model that was given `input_ids`, `attention_mask` and
                `position_ids`; or the last `response + 1` of them (`logits_to_keep` of transformers).
            temperature: divides the logits. Defaults to `temperatures`, the distribution of `rollout_log_probs`.

        Raises:
            ConfigError: the logits have another shape.
        """
        rows, response = self.responses.shape
        whole, kept = self.input_ids.shape[1], response + 1
        if logits.dim() != 3 or len(logits) != rows or logits.shape[1] not in (whole, kept):
            raise ConfigError(
                f"expected logits of [{rows}, {whole}, vocabulary], or the last {kept} columns of them, got "
                f"{list(logits.shape)}"
            )
        row, place = self.response_mask.nonzero(as_tuple=True)
        scale = temperature_at(self.temperatures if temperature is None else temperature, (row, place))
        before = place + logits.shape[1] - kept
        chosen = chosen_log_probs(logits[row, before], self.responses[row, place], scale)
        values = torch.zeros(self.responses.shape, dtype=torch.float32, device=logits.device)
        return values.index_put((row, place), chosen)

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """Some rows of the batch, without the padding that none of them needs. The tensors are copies.

        `trajectory_ids`, `group_ids` and `weight_versions` mean the same as in the whole. With places in ascending
        order the part holds the invariants of a batch too. Raises ConfigError if there are none, or one is not in the
        batch.
        """
        at = torch.as_tensor(rows, device=self.prompts.device)
        numbers = at.dim() == 1 and len(at) > 0 and at.dtype in (torch.int32, torch.int64)  # a mask is none
        if not numbers or not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise ConfigError(f"expected the places of some of {len(self)} rows, got {rows!r:.200}")
        at = at.long()
        whole = self.prompts.shape[1]
        tokens = self.attention_mask[at]
        left = whole - int(tokens[:, :whole].sum(dim=1).max())
        right = int(tokens[:, whole:].sum(dim=1).max())
        columns = {"prompt": slice(left, whole), "tokens": slice(left, whole + right), "row": slice(0)}
        fields = {}
        for item in FIELDS:
            value = getattr(self, item.name)[at]
            fields[item.name] = value if item.place == "row" else value[:, columns.get(item.place, slice(right))]
        return dataclasses.replace(
            self,
            **fields,
            ids=tuple(self.ids[row] for row in at.tolist()),
            aligned={name: value[at, :right] for name, value in self.aligned.items()},
            images=tuple(self.images[row] for row in at.tolist()) if self.images else (),
            distributions=tuple(self.distributions[row] for row in at.tolist()) if self.distributions else (),
        )

    def flattener(self) -> Callable[[Tensor, int], Tensor]:
        """A function that takes values of the responses, `[rows, response, ...]`, and returns those of all tokens.

        The rows follow each other: `[tokens, ...]`. The prompts' tokens get its second argument.
        """
        width = self.prompts.shape[1]
        tokens = self.attention_mask.bool()
        responses = tokens[:, width:]
        behind = torch.cat([torch.zeros_like(tokens[:, :width]), responses], dim=1)[tokens]
        count, sources, places = len(behind), responses.reshape(-1).nonzero()[:, 0], behind.nonzero()[:, 0]

        def flat(values: Tensor, padding: int) -> Tensor:
            flattened = values.new_full((count, *values.shape[2:]), padding)
            return flattened.index_copy_(0, places, values.flatten(0, 1).index_select(0, sources))

        return flat

    def micro_batches(self, *, max_tokens: int, count: Count = "padded", min_parts: int = 1) -> list[MicroBatch]:
        """Parts with at most `max_tokens` tokens each, as few as that and as even as the rows allow.

        Each row is in one part; `restore_rows` brings results back into this order. `count` says what is counted:

        - `padded`: rows times the width of the part's tensors. Rows of like length share a part.
        - `packed`: tokens without padding, for `pack`. The longest rows are shared out first, each to the least part.
        - `tree`: nodes, for `pack_tree`. Rows with equal beginnings share a part.

        Processes that train together need equally many parts: each passes as `min_parts` the largest number that one
        found.

        Raises:
            ConfigError: an argument cannot be.
            BatchError: one row has more tokens; nothing is ever cut.
        """
        require_whole_number("max_tokens", max_tokens, at_least=1)
        require_whole_number("min_parts", min_parts, at_least=1)
        if count not in COUNTS:
            raise ConfigError(f"count is one of {', '.join(COUNTS)}, got {count!r}")
        if min_parts > len(self):
            raise ConfigError(f"{len(self)} rows cannot make {min_parts} parts")
        width = self.prompts.shape[1]
        prompts = self.attention_mask[:, :width].sum(dim=1).tolist()
        responses = self.attention_mask[:, width:].sum(dim=1).tolist()
        lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
        longest = max(lengths)
        if longest > max_tokens:
            raise BatchError(
                f"row {self.ids[lengths.index(longest)]} has {longest} tokens, more than max_tokens={max_tokens}; "
                "nothing is cut: raise it, or limit the rollout"
            )
        if count == "padded":
            parts = padded_parts(prompts, responses, max_tokens, min_parts)
        elif count == "packed":
            parts = packed_parts(lengths, max_tokens, min_parts)
        else:
            require_no_images(self.images)
            parts = tree_parts(self._prefix_keys(lengths), max_tokens, min_parts)
        rows = [torch.tensor(sorted(part), device=self.prompts.device) for part in parts]
        return [MicroBatch(places, self.select(places)) for places in rows]

    def _prefix_keys(self, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
        flat = self.flattener()
        aligned = {
            name: flat(payload, payload_padding(payload.dtype)).cpu().numpy() for name, payload in self.aligned.items()
        }
        keys = prefix_keys(self.input_ids[self.attention_mask.bool()].cpu().numpy(), aligned)
        return np.split(keys, np.cumsum(lengths)[:-1])

    def owners(self, trajectories: Sequence[Trajectory]) -> list[int]:
        """For each row the place of its trajectory among those given. Raises BatchError if there is none."""
        places = {trajectory.id: place for place, trajectory in enumerate(trajectories)}
        names = [name if name in places else name.rpartition("/")[0] for name in self.ids]
        for row, name in enumerate(names):
            if name not in places:
                raise BatchError(f"row {row}, {self.ids[row]!r}, is of a trajectory that is not among those given")
        return [places[name] for name in names]

    def per_row(self, trajectories: Sequence[Trajectory], values: Sequence[float | None]) -> Tensor:
        """Values of trajectories as values of the rows: float32 `[rows]`, with 0 for None.

        For advantages: `batch.per_row(trajectories, group_advantages(trajectories))`. The trajectories are all that are
        in the batch, in any order; those that it left out are passed over.

        Raises:
            ConfigError: the numbers of trajectories and values differ.
            BatchError: a row is of a trajectory that is not among them.
        """
        if len(trajectories) != len(values):
            raise ConfigError(f"{len(trajectories)} trajectories need as many values, got {len(values)}")
        each = torch.tensor([values[index] or 0.0 for index in self.owners(trajectories)], dtype=torch.float32)
        return each.to(self.prompts.device)


class MicroBatch(NamedTuple):
    """Some rows of a batch, and their places in it, int64 `[rows]` ascending: `advantages[part.rows]` are theirs."""

    rows: Tensor
    batch: Batch


def restore_rows(parts: Sequence[MicroBatch], values: Sequence[Tensor], *, padding: float = 0) -> Tensor:
    """Values of the rows of all parts of a batch as values of the batch's rows, in its order: `[rows, ...]`.

    Values of responses, `[rows, response, ...]`, may be of different widths: all get that of the widest, and `padding`.
    Raises ConfigError if the values are not of these parts.
    """
    if len(values) != len(parts) or any(
        len(value) != len(part.rows) for value, part in zip(values, parts, strict=True)
    ):
        expected = [len(part.rows) for part in parts]
        raise ConfigError(f"expected values of {expected} rows, got {[len(value) for value in values]}")
    rows = torch.cat([part.rows for part in parts])
    widest = max(values, key=lambda value: value.shape[1] if value.dim() > 1 else 0)
    restored = widest.new_full((len(rows), *widest.shape[1:]), padding)
    for part, value in zip(parts, values, strict=True):
        if value.dim() > 1:
            restored[part.rows, : value.shape[1]] = value
        else:
            restored[part.rows] = value
    return restored


def chosen_log_probs(logits: Tensor, ids: Tensor, scale: float | Tensor) -> Tensor:
    """Return the log-probability of each id under its logits `[tokens, vocabulary]`, divided by `scale`: a number, or
    `[tokens]`."""
    scaled = logits.float() / (scale[:, None] if isinstance(scale, Tensor) else scale)
    return scaled.gather(1, ids[:, None])[:, 0] - scaled.logsumexp(dim=1)


def temperature_at(temperature: float | Tensor, places: Tensor | tuple[Tensor, ...]) -> float | Tensor:
    """Return the temperatures of some tokens; a number stays a number. Raises ConfigError if it is not above 0."""
    if isinstance(temperature, Tensor) and temperature.dim():
        return temperature[places]
    number = float(temperature)
    if not 0 < number < math.inf:
        raise ConfigError(f"temperature must be above 0 and finite, got {number!r}")
    return number


_WITHOUT_TENSORS = frozenset({"ids", "groups", "dropped", "version_numbers", "distributions"})
"""Attributes of a batch that `moved` leaves as they are."""


def moved(value: T, device: torch.device | str) -> T:
    """A copy whose tensors are on the device, in dataclasses and mappings too; those that are there already are
    shared."""
    copy: Any = value
    if isinstance(value, Tensor):
        copy = value.to(device)
    elif isinstance(value, Mapping):
        copy = {name: moved(part, device) for name, part in value.items()}
    elif type(copy) is tuple:
        copy = tuple(moved(part, device) for part in copy)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.name not in _WITHOUT_TENSORS]
        fields = {name: moved(getattr(value, name), device) for name in names}
        copy = dataclasses.replace(value, **fields)
    return copy  # type: ignore[no-any-return]


if Batch.__doc__:  # python -OO takes docstrings away
    Batch.__doc__ = Batch.__doc__.replace("Attributes:", "\n        ".join(["Attributes:", *map(str, FIELDS)]))
