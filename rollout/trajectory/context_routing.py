"""`ContextRouting`: the experts that a router chose for every token of an episode's contexts, prompts included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import BatchError, EngineError

Rows: TypeAlias = NDArray[Any]
"""Integers `[tokens, layers, experts per token]`."""


class ContextRouting:
    """Joins what an engine answered turn by turn, for trainers that replay the routing of whole contexts. Row t
    belongs to the forward pass over token t: a context of n tokens that ends with a sampled one has n - 1 rows."""

    def __init__(self) -> None:
        self._held: list[tuple[NDArray[np.int32], list[Rows]]] = []

    def covered(self, prompt_ids: Sequence[int]) -> int:
        """The number of rows that are known of the context that goes on with these ids; 0 for a new context."""
        if not self._held:
            return 0
        ids, parts = self._held[-1]
        goes_on = len(ids) <= len(prompt_ids) and np.array_equal(ids, np.asarray(prompt_ids[: len(ids)]))
        return sum(map(len, parts)) if goes_on else 0

    def add(self, prompt_ids: Sequence[int], token_ids: Sequence[int], rows: Rows, *, start: int = 0) -> None:
        """Add the rows of one turn, from row `start` of the context on: 0, or what `covered` said of the prompt."""
        expected = len(prompt_ids) + len(token_ids) - 1 - start
        if rows.ndim != 3 or len(rows) != expected:
            raise EngineError(
                f"the engine sent routed experts of shape {list(rows.shape)}; {len(prompt_ids)} ids of the prompt and "
                f"{len(token_ids)} sampled ones, from row {start} on, need [{expected}, layers, experts per token]"
            )
        before: list[Rows] = []
        if self.covered(prompt_ids):
            before = self._held.pop()[1]
        parts = [*before, rows] if start else [rows]
        self._held.append((np.array([*prompt_ids, *token_ids], np.int32), parts))

    def rows(self, whole_ids: NDArray[np.int32]) -> Rows:
        """The rows of a context that ends with a sampled token, `[tokens - 1, layers, experts per token]`."""
        for ids, parts in self._held:
            if len(ids) >= len(whole_ids) and np.array_equal(ids[: len(whole_ids)], whole_ids):
                return np.concatenate(parts)[: len(whole_ids) - 1]
        raise BatchError(f"no answer of the engine has the routed experts of the {len(whole_ids)} tokens of a sequence")
