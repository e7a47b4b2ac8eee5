"""Which episode the running code belongs to.

An engine or a tool serves many episodes at once and is told of none. Who must tell them apart all the same, as a
recording does, asks here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple


class EpisodeName(NamedTuple):
    """An episode's place in its run, which is the same when the run is repeated.

    Attributes:
        group_id: number of the task in the run.
        sample: number of the episode in its group.
    """

    group_id: int
    sample: int


_current: ContextVar[EpisodeName | None] = ContextVar("toolgym_episode", default=None)


def current_episode() -> EpisodeName | None:
    """The episode that the running code belongs to; None outside of any. Tasks that it starts belong to it, too."""
    return _current.get()


@contextlib.contextmanager
def playing(group_id: int, sample: int) -> Iterator[None]:
    """Name the episode for the code inside."""
    token = _current.set(EpisodeName(group_id, sample))
    try:
        yield
    finally:
        _current.reset(token)
