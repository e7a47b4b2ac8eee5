"""Random generators that a child inherits from the zygote: finds them there, and gives each child numbers of its own.

A library that makes a generator while it is loaded, as sympy does, would otherwise draw the same numbers in every run
and every session. Generators that a library seeds with a value of its own keep that state, as in a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any

_MERSENNE = 624
"""Words of state of numpy's global generator; at this position it makes new ones before it uses the first."""

_MOST_CHOSEN = 1 << 64
"""An entropy of numpy's below this was chosen by a program: numpy itself takes 128 random bits."""

_pythons: list[random.Random] = []
_numpys: list[Any] = []


@contextlib.contextmanager
def watch_seeds() -> Iterator[weakref.WeakSet[random.Random]]:
    """Collect the generators of Python that get a seed from a program while libraries are loaded."""
    seeded: weakref.WeakSet[random.Random] = weakref.WeakSet()
    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, *more: Any, **named: Any) -> None:
        (seeded.discard if a is None else seeded.add)(self)
        original(self, a, *more, **named)

    random.Random.seed = seed  # type: ignore[method-assign]
    try:
        yield seeded
    finally:
        random.Random.seed = original  # type: ignore[method-assign]


def remember(seeded: weakref.WeakSet[random.Random]) -> None:
    """Remember all generators of this process that have a random seed. Called once, when the libraries are loaded."""
    numpy_random = sys.modules.get("numpy.random")
    kinds = (random.Random,) if numpy_random is None else (random.Random, numpy_random.BitGenerator)
    known: list[object] = [random._inst]  # `renew` seeds them anyway
    if numpy_random is not None:
        known.append(numpy_random.mtrand._rand._bit_generator)
    for generator in gc.get_objects():
        if not isinstance(generator, kinds) or any(generator is other for other in known):
            continue
        if not isinstance(generator, random.Random):
            if _has_random_seed(generator):
                _numpys.append(generator)
        elif generator not in seeded and not isinstance(generator, random.SystemRandom):
            _pythons.append(generator)


def renew() -> None:
    """Give new states to the generators of Python, numpy and torch, and to all that are remembered.

    Each object that this touches costs a copied page, so numpy's global generator gets its state in one piece.
    """
    random.seed()
    for generator in _pythons:
        generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        key = sys.modules["numpy"].frombuffer(os.urandom(4 * _MERSENNE), "uint32")
        numpy_random.set_state(("MT19937", key, _MERSENNE))
    for generator in _numpys:
        generator.state = type(generator)().state
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):  # not if a program has a module of that name
        torch.default_generator.seed()


def _has_random_seed(generator: Any) -> bool:
    entropy = getattr(getattr(generator, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy >= _MOST_CHOSEN
