"""`OwnRandom`: the global random generators, one state for each env that draws from them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from toolgym.envs.types import EpisodeFailedError, StopReason

T = TypeVar("T")

RANDOM_TIMEOUT = 60.0
"""Wall seconds to wait for the function of another env."""

_lock = threading.Lock()


class OwnRandom:
    """Gives one env the global generators of `random` and NumPy as if no other code drew from them.

    Some projects seed and draw from the global generators, so episodes at the same time would disturb each other, and
    the training program around them. Here each env has states of its own, which are in place while one of its functions
    runs; these run one after another in the process.
    """

    def __init__(self, timeout: float = RANDOM_TIMEOUT) -> None:
        self._timeout = timeout
        self._state: tuple[Any, Any] | None = None

    def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if not _lock.acquire(timeout=self._timeout):
            raise EpisodeFailedError(
                StopReason.ENV_TIMEOUT,
                f"another env holds the global random generators for more than {self._timeout:g} seconds",
            )
        try:
            before = random.getstate(), np.random.get_state()
            if self._state is None:
                random.seed()
                np.random.seed()
            else:
                random.setstate(self._state[0])
                np.random.set_state(self._state[1])
            try:
                return function(*args, **kwargs)
            finally:
                self._state = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
        finally:
            _lock.release()
