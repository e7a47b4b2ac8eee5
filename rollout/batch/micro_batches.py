"""Division of a batch's rows into at least `parts` parts of at most `most` tokens; no single row has more."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.batch.prefixes import shared_prefixes

Count = Literal["padded", "packed", "tree"]

COUNTS: tuple[Count, ...] = get_args(Count)

Parts = list[list[int]]
"""Places of rows."""


def padded_parts(prompts: Sequence[int], responses: Sequence[int], most: int, parts: int) -> Parts:
    """Rows of like length together."""
    order = sorted(range(len(prompts)), key=lambda row: -(prompts[row] + responses[row]))

    def grow(run: _Run, place: int) -> _Run:
        _, rows, prompt, response = run or (0, 0, 0, 0)
        prompt, response = max(prompt, prompts[order[place]]), max(response, responses[order[place]])
        return (rows + 1) * (prompt + response), rows + 1, prompt, response

    return _even_runs(order, grow, most, parts)


def tree_parts(keys: Sequence[NDArray[np.int64]], most: int, parts: int) -> Parts:
    """Rows with equal beginnings together."""
    order, shared = shared_prefixes(keys)

    def grow(run: _Run, place: int) -> _Run:
        length = len(keys[order[place]])
        return (run[0] + length - shared[place],) if run else (length,)

    return _even_runs(order, grow, most, parts)


def packed_parts(lengths: Sequence[int], most: int, parts: int) -> Parts:
    """The fewest parts that hold all rows when the longest come first, each to the part that has least."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for number in range(max(parts, -(-sum(lengths) // most)), len(lengths) + 1):
        bins: Parts = [[] for _ in range(number)]
        loads = [(0, place) for place in range(number)]
        for row in order:
            load, place = loads[0]
            bins[place].append(row)
            heapq.heapreplace(loads, (load + lengths[row], place))
        if max(loads)[0] <= most:
            break
    return bins


_Run = tuple[int, ...]
"""Facts about a run of rows that make it longer; first its tokens. Empty: no rows."""

_Grow = Callable[[_Run, int], _Run]
"""A run with the row at the next place in the order."""


def _even_runs(order: Sequence[int], grow: _Grow, most: int, parts: int) -> Parts:
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
    runs = _runs(count, grow, high)
    while len(runs) < number:
        longest = max(range(len(runs)), key=lambda place: len(runs[place]))
        whole = runs[longest]
        runs[longest : longest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return [[order[place] for place in run] for run in runs]


def _runs(count: int, grow: _Grow, most: int) -> Parts:
    runs: Parts = []
    run: _Run = ()
    for place in range(count):
        longer = grow(run, place)
        if runs and longer[0] <= most:
            runs[-1].append(place)
        else:
            longer = grow((), place)
            runs.append([place])
        run = longer
    return runs
