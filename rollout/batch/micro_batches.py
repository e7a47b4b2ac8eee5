"""Parts of a batch for one forward and backward pass each, with a bound on their tokens."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.tree import row_keys, shared_prefixes
from toolgym.tools.errors import BatchError, ConfigError, require_whole_number

Count = Literal["padded", "packed", "tree"]
"""What is counted as a part's tokens: the padded tensor's, those of its rows, or the nodes of its tree."""

COUNTS: tuple[Count, ...] = get_args(Count)

_Parts = list[list[int]]


class MicroBatch(NamedTuple):
    """Some rows of a batch.

    Attributes:
        rows: int64 `[rows]`, their places in the batch, ascending: `advantages[part.rows]` are theirs.
        batch: these rows, without the padding that none of them needs (see `Batch.select`).
    """

    rows: Tensor
    batch: Batch


def micro_batches(batch: Batch, *, max_tokens: int, count: Count = "padded", min_parts: int = 1) -> list[MicroBatch]:
    """Parts of a batch with at most `max_tokens` tokens each, as few as that and as even as the rows allow.

    Each row is in one part; `restore_rows` undoes the order. What is counted:

    - `padded`: rows times the width that they need, as the part's tensors have it. Rows of like length share a part.
    - `packed`: tokens without padding, for `pack`. The longest rows are shared out first, each to the least part.
    - `tree`: nodes, for `pack_tree`. Rows with equal beginnings share a part.

    Args:
        batch: the batch.
        max_tokens: of a part.
        count: see above.
        min_parts: at least so many parts. Processes that train together need equally many: each passes the largest
            number that one of them found.

    Raises:
        ConfigError: an argument cannot be.
        BatchError: a row alone has more tokens; nothing is ever cut.
    """
    require_whole_number("max_tokens", max_tokens, at_least=1)
    require_whole_number("min_parts", min_parts, at_least=1)
    if count not in COUNTS:
        raise ConfigError(f"count is one of {', '.join(COUNTS)}, got {count!r}")
    if min_parts > len(batch):
        raise ConfigError(f"{len(batch)} rows cannot make {min_parts} parts")
    width = batch.prompts.shape[1]
    prompts = batch.attention_mask[:, :width].sum(dim=1).tolist()
    responses = batch.attention_mask[:, width:].sum(dim=1).tolist()
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    longest = max(lengths)
    if longest > max_tokens:
        raise BatchError(
            f"row {batch.ids[lengths.index(longest)]} has {longest} tokens, more than max_tokens={max_tokens}; "
            "nothing is cut: raise it, or limit the rollout"
        )
    if count == "packed":
        parts = _shared_out(lengths, max_tokens, min_parts)
    else:
        order, grow = _by_prefix(row_keys(batch)) if count == "tree" else _by_length(prompts, responses)
        parts = _even_runs(order, grow, max_tokens, min_parts)
    rows = [torch.tensor(sorted(part), device=batch.prompts.device) for part in parts]
    return [MicroBatch(one, batch.select(one)) for one in rows]


def restore_rows(parts: Sequence[MicroBatch], values: Sequence[Tensor], *, padding: float = 0) -> Tensor:
    """Values of the parts' rows as values of the batch's rows, in its order: `[rows, ...]`.

    Args:
        parts: all that `micro_batches` made of a batch.
        values: one tensor for each part, `[rows, ...]`. Those of responses, `[rows, response, ...]`, may be of
            different widths: all get the width of the widest.
        padding: what the columns that a part did not have get.

    Raises:
        ConfigError: the values are not of these parts.
    """
    if len(values) != len(parts) or any(len(one) != len(part.rows) for one, part in zip(values, parts, strict=True)):
        expected = [len(part.rows) for part in parts]
        raise ConfigError(f"expected values of {expected} rows, got {[len(one) for one in values]}")
    rows = torch.cat([part.rows for part in parts])
    widest = max(values, key=lambda one: one.shape[1] if one.dim() > 1 else 0)
    made = widest.new_full((len(rows), *widest.shape[1:]), padding)
    for part, one in zip(parts, values, strict=True):
        if one.dim() > 1:
            made[part.rows, : one.shape[1]] = one
        else:
            made[part.rows] = one
    return made


def _shared_out(lengths: Sequence[int], most: int, parts: int) -> _Parts:
    """The fewest parts, from a least number on, that hold all rows when the longest come first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for number in range(max(parts, -(-sum(lengths) // most)), len(lengths) + 1):
        made: _Parts = [[] for _ in range(number)]
        loads = [(0, place) for place in range(number)]
        for row in order:
            load, place = loads[0]
            made[place].append(row)
            heapq.heapreplace(loads, (load + lengths[row], place))
        if max(loads)[0] <= most:
            break
    return made


_Run = tuple[int, ...]
"""What must be known of a run of rows to make it longer; first its tokens. Empty: no rows."""

_Grow = Callable[[_Run, int], _Run]
"""A run with the row at the next place in the order."""


def _by_length(prompts: Sequence[int], responses: Sequence[int]) -> tuple[list[int], _Grow]:
    order = sorted(range(len(prompts)), key=lambda row: -(prompts[row] + responses[row]))

    def grow(run: _Run, place: int) -> _Run:
        _, rows, prompt, response = run or (0, 0, 0, 0)
        prompt, response = max(prompt, prompts[order[place]]), max(response, responses[order[place]])
        return (rows + 1) * (prompt + response), rows + 1, prompt, response

    return order, grow


def _by_prefix(keys: Sequence[NDArray[np.int64]]) -> tuple[list[int], _Grow]:
    order, shared = shared_prefixes(keys)

    def grow(run: _Run, place: int) -> _Run:
        length = len(keys[order[place]])
        return (run[0] + length - shared[place],) if run else (length,)

    return order, grow


def _even_runs(order: Sequence[int], grow: _Grow, most: int, parts: int) -> _Parts:
    """Rows that follow each other in an order, in as few parts as the bound allows, with the least bound that does."""
    count = len(order)
    number = max(parts, len(_runs(count, grow, most)))
    low, high = max(grow((), place)[0] for place in range(count)), most
    while low < high:
        middle = (low + high) // 2
        if len(_runs(count, grow, middle)) <= number:
            high = middle
        else:
            low = middle + 1
    made = _runs(count, grow, high)
    while len(made) < number:
        longest = max(range(len(made)), key=lambda place: len(made[place]))
        whole = made[longest]
        made[longest : longest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return [[order[place] for place in run] for run in made]


def _runs(count: int, grow: _Grow, most: int) -> _Parts:
    """The places from 0 to `count` in runs, each as long as the bound allows."""
    made: _Parts = []
    run: _Run = ()
    for place in range(count):
        longer = grow(run, place)
        if made and longer[0] <= most:
            made[-1].append(place)
        else:
            longer = grow((), place)
            made.append([place])
        run = longer
    return made
