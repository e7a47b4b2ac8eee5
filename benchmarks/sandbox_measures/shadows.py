"""What the shadow of a session's interpreter costs a cell: sessions with and without one, in turns, in one process.

    python benchmarks/sandbox.py --shadow [--level LEVEL] [--quick]

It prints the time that the caller waits for a cell, and the CPU time of the template processes and all their children,
from bare template processes and from those with the preloaded libraries. In a real turn a session waits for the model
between two cells, for which a pause of 50 ms stands here. Without a pause, each cell waits for its shadow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from sandbox_measures.processes import cpu_seconds
from sandbox_measures.samples import STACK, percentile, show

from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.base import Session

PAUSES = (0.05, 0.0)
"""Seconds between two cells."""

SETTLE = 0.1
"""Seconds after the last cell of a round, for its last shadow."""


async def measure_cells(session: Session, pids: list[int], count: int, pause: float) -> tuple[list[float], float]:
    """Run cells in a session, one after another.

    Returns:
        The milliseconds that each cell took, and the milliseconds of CPU time per cell.
    """
    times = []
    cpu_before = cpu_seconds(pids)
    for _ in range(count):
        began = time.perf_counter()
        cell = await session.run_cell("x += 1\nx")
        times.append((time.perf_counter() - began) * 1e3)
        if cell.result is None:
            raise SystemExit(f"a cell failed: {cell}")
        await asyncio.sleep(pause)
    await asyncio.sleep(SETTLE)
    return times, (cpu_seconds(pids) - cpu_before) / count * 1e3


async def measure_shadows(
    preload: tuple[str, ...], pause: float, *, count: int, rounds: int, level: str | None
) -> None:
    """Print a row of the table."""
    times: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(LocalSandbox(level=level, preload=preload, templates=1))
        sessions = {
            recover: await stack.enter_async_context(await sandbox.session(recover=recover)) for recover in times
        }
        for session in sessions.values():
            await session.run_cell("x = 0")
        for _ in range(rounds):
            for recover, session in sessions.items():
                cells, per_cell = await measure_cells(session, sandbox.template_ids, count, pause)
                times[recover] += cells
                cpu[recover].append(per_cell)
    row = [", ".join(preload) or "none", f"{pause * 1e3:.0f} ms"]
    for values in (times, cpu):
        without, with_it = (percentile(values[recover], 0.5) for recover in (False, True))
        row += [f"{without:.2f}", f"{with_it:.2f}", f"{with_it - without:.2f}"]
    show(row)


async def run_shadows(*, level: str | None, quick: bool) -> None:
    """Print the table."""
    columns = ("without", "with a shadow", "difference")
    show(["preloaded", "pause", *(f"{what}, ms {name}" for what in ("waited", "CPU") for name in columns)])
    show(["---"] * 8)
    for preload in ((), STACK):
        for pause in PAUSES:
            count, rounds = (10, 3) if quick else (20, 5)
            await measure_shadows(preload, pause, count=count, rounds=rounds, level=level)
