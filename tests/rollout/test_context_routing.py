"""`ContextRouting`: rows of whole contexts out of what an engine answers turn by turn."""

from __future__ import annotations

import numpy as np
import pytest

from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.tools.errors import BatchError, EngineError


def rows(*numbers):
    return np.array(numbers, np.uint8).reshape(-1, 1, 1)


@pytest.mark.parametrize("in_parts", [True, False])
def test_a_context_that_goes_on_has_all_its_rows(in_parts):
    routing = ContextRouting()
    assert routing.covered([1, 2]) == 0
    routing.add([1, 2], [3, 4], rows(1, 2, 3))
    assert routing.covered([1, 2, 3]) == 0
    assert routing.covered([1, 2, 3, 4, 5]) == 3
    start = 3 if in_parts else 0
    routing.add([1, 2, 3, 4, 5], [6], rows(1, 2, 3, 4, 5)[start:], start=start)
    routing.add([7], [8, 9], rows(7, 8))
    for whole in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [7, 8, 9]):
        assert routing.rows(np.array(whole)).ravel().tolist() == whole[:-1]
    with pytest.raises(BatchError, match="the 2 tokens of a sequence"):
        routing.rows(np.array([1, 3]))


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(EngineError, match=r"shape \[2, 1, 1\].*need \[3, layers"):
        ContextRouting().add([1, 2], [3, 4], rows(1, 2))
