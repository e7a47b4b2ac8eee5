"""While a run goes on, the garbage collector leaves alone what was there before."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from toolgym.tools.concurrency import gc_freeze
from toolgym.tools.concurrency.gc_freeze import YOUNG_OBJECTS, freeze_heap


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def _own_heap(monkeypatch):
    monkeypatch.setattr(gc_freeze, "_theirs", False)
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()


def test_only_what_the_block_made_is_collected_in_it_and_the_rest_after_it():
    gc.disable()
    try:
        old = weakref.ref(Cycle())
        with freeze_heap():
            new = weakref.ref(Cycle())
            gc.collect()
            assert old() is not None
            assert new() is None
        gc.collect()
        assert old() is None
    finally:
        gc.enable()


def test_blocks_at_the_same_time_end_with_the_last_of_them():
    first, second = freeze_heap(), freeze_heap()
    first.__enter__()
    second.__enter__()
    with contextlib.suppress(ValueError):
        first.__exit__(ValueError, ValueError("a run breaks"), None)
    assert gc.get_freeze_count()
    second.__exit__(None, None, None)
    assert not gc.get_freeze_count()


def test_a_heap_that_the_process_froze_stays_frozen_and_is_counted_once(monkeypatch):
    gc.freeze()
    count, counts = gc.get_freeze_count, []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    for _ in range(3):
        with freeze_heap():
            pass
    assert len(counts) == 1
    assert count()


@pytest.mark.parametrize("threshold", [(500, 11, 12), (0, 11, 12), (90_000, 11, 12)])
def test_the_collector_looks_more_rarely_in_a_block_where_it_looks_often(threshold):
    before = gc.get_threshold()
    try:
        gc.set_threshold(*threshold)
        with freeze_heap():
            assert gc.get_threshold() == ((YOUNG_OBJECTS, 11, 12) if threshold[0] == 500 else threshold)
        assert gc.get_threshold() == threshold
        with freeze_heap():
            gc.set_threshold(1234, 5, 6)
        assert gc.get_threshold() == (1234, 5, 6), "what others set meanwhile stays"
    finally:
        gc.set_threshold(*before)
