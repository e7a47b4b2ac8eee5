"""`make_batch`: from trajectories to tensors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.advantages.reward_placement import RewardPlacement
from toolgym.rollout.batch.batch import Batch, Dropped
from toolgym.rollout.batch.check import check_rows
from toolgym.rollout.batch.fields import FIELDS, Field, aligned_field
from toolgym.rollout.batch.row import RowImages, RowSource, rows_of
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.distribution import GRAMMAR_ADVICE
from toolgym.rollout.trajectory.failures import log
from toolgym.rollout.trajectory.token_sequence import filled_up
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError, ConfigError, shorten
from toolgym.tools.keywords import named_keywords


@named_keywords
def make_batch(
    trajectories: Iterable[Trajectory],
    *,
    pad_token_id: int,
    max_prompt_length: int | None = None,
    max_response_length: int | None = None,
    aligned: Sequence[str] | None = None,
    reward_placement: RewardPlacement = "turns",
    processor: ImageProcessor | None = None,
    mixed_distributions: bool = False,
) -> Batch:
    """Make a batch, and check it. See `toolgym.rollout.batch.batch` for what becomes a row.

    Trajectories that are not `trainable` are left out and listed in `Batch.dropped`; one warning says how many and why.

    Args:
        trajectories: in the order of the rows; the rows of one trajectory follow each other.
        pad_token_id: the id in padding; masks, not ids, tell padding from tokens.
        max_prompt_length: width of the prompts in tokens; None: the longest one.
        max_response_length: width of the responses in tokens; None: the longest one.
        aligned: names of the payloads (see `Segment.aligned`) that become tensors; None: all that there are, `()`:
            none. Each must be there for every token that the policy sampled.
        reward_placement: which tokens have `token_rewards`, see `toolgym.rollout.advantages.reward_placement`. `turns`:
            the last one of each turn has the turn's reward, and the trajectory's last one what the whole was given
            beyond that. `outcome`: the trajectory's last one has all of it.
        processor: that of the rollout, for trajectories with images: it makes `Batch.images`. A trajectory whose policy
            sampled the token that stands for parts of images is left out, since no image belongs to it.
        mixed_distributions: accept trajectories that were sampled at different temperatures, top-p, top-k or min-p, or
            under a grammar. A loss has to use `Batch.temperatures` then, as `token_log_probs` does, because one number
            for the whole batch would be wrong. It must not use importance ratios of tokens under a grammar.

    Raises:
        ConfigError: `trajectories` holds something else, `reward_placement` is unknown, or the trajectories were
            sampled from different distributions or under a grammar, and `mixed_distributions` is not set.
        BatchError: no trajectory is left, one does not fit the widths (nothing is ever cut), a payload is missing or
            has another dtype or shape somewhere (nothing is ever filled in), turns tell of other tokens than there are,
            there are images and no processor, or the ids of an image are not those that it gives, or an invariant
            broke.
    """
    kept: list[Trajectory] = []
    dropped: list[Dropped] = []
    for trajectory in require_trajectories(trajectories):
        reason = _reason_to_drop(trajectory, processor)
        if reason is None:
            kept.append(trajectory)
        else:
            dropped.append(Dropped(trajectory.id, reason))
    if not kept:
        raise BatchError(
            f"no trajectory can become a row: {len(dropped)} were left out ({_reasons(dropped) or 'none were given'})"
        )
    if dropped:
        log.warning(
            "%d of %d trajectories were left out of the batch, which holds those alone that did not fail (%s)",
            len(dropped), len(dropped) + len(kept), _reasons(dropped),
        )  # fmt: skip
    groups = tuple(dict.fromkeys(trajectory.group_id for trajectory in kept))
    numbers = _number_versions(kept)
    rows = rows_of(kept, groups, numbers, reward_placement)
    if not mixed_distributions:
        _require_one_distribution(rows)
    widths = (
        _width("prompt", rows, [len(row.sequence.prompt_ids) for row in rows], max_prompt_length),
        _width("response", rows, [len(row.response_ids) for row in rows], max_response_length),
    )
    images = row_images(rows, processor)
    sampled = policy_places(rows, widths[1])
    batch = Batch(
        **{item.name: padded(item, rows, widths, pad_token_id, sampled) for item in FIELDS},
        pad_token_id=pad_token_id,
        ids=tuple(row.id for row in rows),
        groups=groups,
        dropped=tuple(dropped),
        version_numbers=numbers,
        aligned={name: padded(item, rows, widths, 0, sampled) for name, item in _payloads(rows, aligned).items()},
        reward_placement=reward_placement,
        images=images,
        distributions=tuple(row.sampling.distributions for row in rows),
        image_token_id=processor.image_token_id if processor is not None and images else None,
    )
    check_rows(batch, rows)
    return batch


def row_images(rows: Sequence[RowSource], processor: ImageProcessor | None) -> tuple[RowImages, ...]:
    """The pixel inputs of each row's images; empty if no row has any. Raises BatchError as `make_batch` does."""
    shown = [row for row in rows if row.sequence.images]
    if not shown:
        return ()
    if processor is None:
        raise BatchError(
            f"trajectory {shown[0].id} has {len(shown[0].sequence.images)} images: give the processor that the "
            "rollout had, make_batch(..., processor=...)"
        )
    inputs: dict[tuple[str, ...], Mapping[str, Tensor]] = {(): {}}
    images = []
    for row in rows:
        for number, image in enumerate(row.sequence.images):
            wanted = processor.expansion(image.url)
            here = row.token_ids[image.start : image.start + image.tokens]
            if not np.array_equal(here, wanted):
                raise BatchError(
                    f"image {number} of trajectory {row.id} stands there as {len(here)} ids, and this processor gives "
                    f"{len(wanted)} ids that differ: give make_batch the processor of the rollout, with its settings"
                )
        urls = tuple(image.url for image in row.sequence.images)
        if urls not in inputs:
            inputs[urls] = {name: torch.as_tensor(value) for name, value in processor.pixel_inputs(urls).items()}
        images.append(RowImages(inputs[urls], row.image_tokens(processor.image_token_id)))
    return tuple(images)


def sampled_image_token(trajectory: Trajectory, processor: ImageProcessor) -> bool:
    """Whether the policy sampled the token that stands for parts of images: no model can be given what it shows."""
    segments = (segment for sequence in trajectory.sequences for segment in sequence.policy_segments)
    return any(bool((segment.token_ids == processor.image_token_id).any()) for segment in segments)


def _require_one_distribution(rows: Sequence[RowSource]) -> None:
    counts = Counter(distribution for row in rows for distribution in row.sampling.distributions)
    if len(counts) > 1:
        each = "; ".join(f"{count} rows at {distribution}" for distribution, count in counts.most_common(4))
        raise ConfigError(
            f"a batch is made of rows that were sampled alike, got {len(counts)} distributions ({each}): make a batch "
            "of each. If your loss scales every token by Batch.temperatures, as token_log_probs does, call "
            "make_batch(..., mixed_distributions=True)"
        )
    if any(distribution.grammar is not None for distribution in counts):
        [distribution] = counts
        raise ConfigError(
            f"the trajectories were sampled under a grammar ({distribution}): {GRAMMAR_ADVICE}. If your loss has no "
            "ratios, call make_batch(..., mixed_distributions=True)"
        )


def _reason_to_drop(trajectory: Trajectory, processor: ImageProcessor | None) -> str | None:
    if trajectory.error is not None:
        return f"{trajectory.stop_reason}: {trajectory.error.message}"
    if trajectory.trainable:
        if processor is None or not sampled_image_token(trajectory, processor):
            return None
        return "the policy sampled the token that stands for parts of images"
    problem = "not trainable" if trajectory.policy_tokens else "no policy tokens"
    return f"{problem} (stop reason {trajectory.stop_reason.value})"


def _reasons(dropped: Sequence[Dropped]) -> str:
    kinds: dict[str, list[str]] = {}
    for trajectory in dropped:
        kinds.setdefault(trajectory.reason.partition(":")[0], []).append(trajectory.reason)
    return "; ".join(f"{len(reasons)} times {shorten(reasons[0])}" for reasons in kinds.values())


def _number_versions(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """See `Batch.version_numbers`."""
    names = dict.fromkeys(
        version
        for trajectory in trajectories
        for sequence in trajectory.sequences
        for segment in sequence.policy_segments
        for version, _ in segment.version_runs
    )
    numbers = {name: int(name) for name in names if _is_number(name)}
    taken = set(numbers.values())
    free = (number for number in itertools.count() if number not in taken)
    return {name: numbers[name] if name in numbers else next(free) for name in names}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 18 and (name == "0" or name[0] != "0")


def _width(what: str, rows: Sequence[RowSource], lengths: Sequence[int], limit: int | None) -> int:
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


def _payloads(rows: Sequence[RowSource], names: Sequence[str] | None) -> dict[str, Field]:
    segments = [(row.id, segment) for row in rows for segment in row.sequence.policy_segments]
    if names is None:
        names = list(dict.fromkeys(name for _, segment in segments for name in segment.aligned))
    payloads = {}
    for name in names:
        present = [segment.aligned[name] for _, segment in segments if name in segment.aligned]
        width = max((values.shape[1] for values in present if values.ndim == 2), default=0)
        forms: dict[tuple[np.dtype[Any], tuple[int, ...]], str] = {}
        for row, segment in segments:
            values = segment.aligned.get(name)
            if values is None:
                raise BatchError(
                    f"{len(segment)} policy tokens of row {row} have no payload {name!r}; it is not filled in: drop "
                    "that trajectory, or name the payloads that every one has in aligned=(...)"
                )
            values = filled_up(name, values, width)
            forms.setdefault((values.dtype, values.shape[1:]), row)
        if len(forms) > 1:
            shown = " and ".join(f"{dtype} {['tokens', *shape]} in row {row}" for (dtype, shape), row in forms.items())
            raise BatchError(f"payload {name!r} must have one dtype and shape, got {shown}")
        [(dtype, _)] = forms
        payloads[name] = aligned_field(name, dtype, width)
    return payloads


def policy_places(rows: Sequence[RowSource], width: int) -> NDArray[np.bool_]:
    """Return where the policy sampled: bool `[rows, width]`."""
    places = np.zeros((len(rows), width), dtype=bool)
    for index, row in enumerate(rows):
        places[index, : len(row.response_mask)] = row.response_mask
    return places


def padded(
    item: Field, rows: Sequence[RowSource], widths: tuple[int, int], pad_token_id: int, sampled: NDArray[np.bool_]
) -> Tensor:
    """Return a field of all rows, each written to its place at once.

    Args:
        item: the field.
        rows: the rows, in order.
        widths: of prompts and responses, in tokens.
        pad_token_id: the id in padding.
        sampled: where the policy sampled, see `policy_places`.
    """
    prompt_width, response_width = widths
    values = [item.values(row) for row in rows]
    width = {"prompt": (prompt_width,), "tokens": (prompt_width + response_width,), "row": ()}
    shape = (len(rows), *width.get(item.place, (response_width,)), *values[0].shape[1:])
    padding = pad_token_id if item.padding == "pad_token_id" else item.padding or 0
    array = np.full(shape, padding, dtype=torch.empty(0, dtype=item.dtype).numpy().dtype)
    if item.place == "row":
        array[:] = np.concatenate(values)
    elif item.place == "policy":
        array[sampled] = np.concatenate(values)
    else:
        for index, (row, each) in enumerate(zip(rows, values, strict=True)):
            start = 0 if item.place == "response" else prompt_width - len(row.sequence.prompt_ids)
            array[index, start : start + len(each)] = each
    return torch.from_numpy(array)
