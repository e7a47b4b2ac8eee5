"""How the CPU time of work grows with the length of a text, without waiting for work that is quadratic."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

FIRST, LAST = 1 << 13, 1 << 20
"""Characters of the first and the last text."""

NOTICEABLE = 0.05
"""CPU seconds below which growth is not judged, because caches weigh more."""

SUPERLINEAR = 9.0
"""How many times as long as a quarter of it a text must take to count as superlinear: linear work takes 4 times as
long, quadratic work 16 times."""

TRIES = 3


def cpu_seconds(work: Callable[[str], object], text: str) -> float:
    """The CPU seconds of this thread that work on a text takes, without those of the garbage collector."""
    gc.disable()
    try:
        begun = time.thread_time()
        work(text)
        return time.thread_time() - begun
    finally:
        gc.enable()


def first_superlinear(
    work: Callable[[str], object],
    shape: Callable[[int], str],
    first: int = FIRST,
    last: int = LAST,
    noticeable: float = NOTICEABLE,
) -> str:
    """Double a text from `first` to `last` characters. Return a sentence on the first length at which the work takes
    more than `SUPERLINEAR` times as long as at a quarter of it and more than `noticeable` CPU seconds; empty if there
    is no such length."""
    length = first
    while length <= last:
        text = shape(length)
        seconds = cpu_seconds(work, text)
        if seconds > noticeable:
            quarter = shape(length // 4)
            before = cpu_seconds(work, quarter)
            for _ in range(TRIES - 1):
                if seconds > SUPERLINEAR * before:  # or other work on the machine made one of them slow
                    before = min(before, cpu_seconds(work, quarter))
                    seconds = min(seconds, cpu_seconds(work, text))
            if seconds > max(noticeable, SUPERLINEAR * before):
                return f"{length} characters take {seconds:.2f} s, a quarter of them {before:.3f} s"
        length *= 2
    return ""
