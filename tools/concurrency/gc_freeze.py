"""`freeze_heap`: garbage collections of a run that leave alone what was there before it. Else the event loop stands
still for a quarter of a second if a trainer's libraries are loaded, several times in a run of a thousand episodes."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

YOUNG_OBJECTS = 20_000
"""New objects after which the collector looks at them, in a block. Python's own 700 are made by 20 turns of an episode;
nearly all of them are freed without it."""

_lock = threading.Lock()
_blocks = 0
_found: tuple[int, int, int] | None = None  # the collector's thresholds, where the first block has changed them
_theirs = False
"""Whether the process was seen to freeze its heap by itself. It is asked no more: counting takes a tenth of a second
where a million objects are frozen."""


@contextlib.contextmanager
def freeze_heap() -> Iterator[None]:
    """Keep the objects that are there now out of the garbage collections of the block (`gc.freeze`), and make these
    rarer.

    Cycles among these objects are freed once the block is over. Blocks that run at the same time count as one. If the
    process has frozen its heap by itself, nothing happens, now and from then on.
    """
    global _blocks, _found, _theirs
    with _lock:
        _blocks += 1
        if _blocks == 1 and not _theirs:
            _theirs = gc.get_freeze_count() > 0
            if not _theirs:
                gc.freeze()
                _found = gc.get_threshold()
                if 0 < _found[0] < YOUNG_OBJECTS:  # at 0 it is switched off
                    gc.set_threshold(YOUNG_OBJECTS, *_found[1:])
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and _found is not None:
                gc.unfreeze()
                if gc.get_threshold()[0] == YOUNG_OBJECTS:  # else it was changed meanwhile
                    gc.set_threshold(*_found)
                _found = None
