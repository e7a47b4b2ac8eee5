"""Timing calls in a closed loop, and a line of a table."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

STACK = tuple(name for name in ("numpy", "sympy", "pandas", "scipy") if importlib.util.find_spec(name))
STACK_CODE = "".join(f"import {name}\n" for name in STACK)


@dataclass(frozen=True)
class Sample:
    """What one measurement gave.

    Attributes:
        rate: per second.
        p50: milliseconds.
        p99: milliseconds.
        errors: wrong or missing answers.
        amount: another figure, in the row's unit.
    """

    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    errors: int = 0
    amount: float = 0.0


@dataclass
class Scale:
    """How much each measurement does."""

    executions: int = 300
    rounds: int = 3
    sessions: int = 2000
    level: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def summary(times: list[float], wall: float, errors: int) -> Sample:
    """The sample of one round; times in seconds."""
    return Sample(len(times) / wall, percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3, errors)


async def closed_loop(call: Callable[[], Awaitable[bool]], at_once: int, count: int) -> Sample:
    """Time `count` calls by `at_once` workers, each one call at a time. A call returns whether its answer was right."""
    times: list[float] = []
    errors = 0
    left = count

    async def worker() -> None:
        nonlocal left, errors
        while left > 0:
            left -= 1
            began = time.perf_counter()
            if not await call():
                errors += 1
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return summary(times, time.perf_counter() - began, errors)


async def best_of(measure: Callable[[], Awaitable[Sample]], rounds: int) -> Sample:
    """The median round by rate, with the errors of all."""
    samples = [await measure() for _ in range(rounds)]
    middle = sorted(samples, key=lambda sample: sample.rate)[len(samples) // 2]
    return Sample(middle.rate, middle.p50, middle.p99, sum(sample.errors for sample in samples), middle.amount)


def show(columns: list[str]) -> None:
    print("| " + " | ".join(columns) + " |", flush=True)
