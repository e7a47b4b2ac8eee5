"""Time and memory that looking at a large run takes, in the terminal and as a page.

    python benchmarks/viewer.py [--rows 100000]

A run of so many rows is written to a temporary folder from the trajectories that `toolgym view --demo` shows, each as
long as those of real runs: 1 GB for 100,000. Each table is measured in a process of its own. The targets: a first
screen within 2 s, further screens within 100 ms (measured on the action itself until all of its lines are drawn), and
less than 300 MB of memory. A figure without a target is there to be known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

DEMO = Path(__file__).parents[1] / "front/viewer/demo"
ROW_BYTES = 10_500
FIRST_SCREEN, FURTHER_SCREEN, MEMORY = 2.0, 0.1, 300.0
DEADLINE = 120.0


class Measure(NamedTuple):
    """A figure, and the most that it may be."""

    name: str
    value: float
    unit: str
    target: float | None = None


def write_run(folder: Path, rows: int) -> Path:
    """Write a run of so many rows, in groups of eight."""
    path = folder / "trajectories.jsonl"
    lines = [line for name in ("0.jsonl", "1.jsonl") for line in (DEMO / name).read_bytes().splitlines()]
    trajectories = [json.loads(line) for line in lines]
    dice = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = trajectories[number % len(trajectories)]
            row |= {"id": f"{number:032x}", "group_id": f"group-{number // 8}", "sample_index": number % 8}
            row |= {"parent": None, "branch_turn": None, "score": round(dice.random(), 3), "step": number // 10_000}
            text = json.dumps(row)
            padding = "so on and so forth " * ((ROW_BYTES - len(text)) // (2 * 19))
            file.write(text.replace("Compute with the tool", f"{padding}Compute with the tool", 2) + "\n")
    (folder / "run.json").write_bytes((DEMO / "run.json").read_bytes())
    return path


def terminal(run: Path) -> list[Measure]:
    """The viewer in a terminal of 140 x 45."""
    return asyncio.run(_terminal(run))


async def _terminal(run: Path) -> list[Measure]:
    start = time.perf_counter()
    from toolgym.viewer.run_index import RunIndex
    from toolgym.viewer.terminal.app import RunViewer
    from toolgym.viewer.terminal.text_view import LineView

    def draw() -> str:
        views = [view for view in app.screen.query(LineView) if view.display]
        return "\n".join(view.render_line(y).text for view in views for y in range(view.size.height))

    async def until(holds: Callable[[], bool]) -> float:
        begin = time.perf_counter()
        while not holds():
            await asyncio.sleep(0.001)
            if time.perf_counter() - begin > DEADLINE:
                raise TimeoutError(f"not within {DEADLINE:.0f} s:\n{draw()}")
        draw()
        return time.perf_counter() - begin

    async def timed(action: Callable[[], object], holds: Callable[[], bool] = lambda: True) -> float:
        begin = time.perf_counter()
        action()
        await until(holds)
        return time.perf_counter() - begin

    app = RunViewer(RunIndex(run))
    measures = []
    async with app.run_test(size=(140, 45)):
        await until(lambda: len(app.screen.query("RunList")) > 0)
        rows = app.first.rows
        await until(lambda: "arithmetic" in draw())
        measures.append(Measure("first screen, imports included", time.perf_counter() - start, "s", FIRST_SCREEN))
        pages = [await timed(lambda: rows.action_page(1)) for _ in range(30)]
        measures.append(Measure("page down while it is read, slowest", max(pages), "s", FURTHER_SCREEN))
        await until(lambda: app.opened.selection.finished)
        measures.append(Measure("all read", time.perf_counter() - start, "s"))
        await asyncio.sleep(0.5)
        pages = [await timed(lambda: rows.action_page(1)) for _ in range(30)]
        pages += [await timed(lambda step=step: rows.action_end(step)) for step in (1, -1)]
        measures.append(Measure("page down, start and end, slowest", max(pages), "s", FURTHER_SCREEN))
        jumps = [await timed(lambda: rows.jump(1)) for _ in range(20)]
        measures.append(Measure("next failure, slowest", max(jumps), "s", FURTHER_SCREEN))
        opens = []
        for place in range(0, len(rows.rows), max(1, len(rows.rows) // 20)):
            rows.go(place)
            opens.append(await timed(rows.action_choose, lambda: getattr(app.screen, "trajectory", None) is not None))
            app.pop_screen()
            await asyncio.sleep(0.05)
        measures.append(Measure("open a trajectory, median", statistics.median(opens), "s", FURTHER_SCREEN))
        measures.append(Measure("open a trajectory, slowest", max(opens), "s"))
        groups = []
        for place in range(0, len(rows.rows), max(1, len(rows.rows) // 20)):
            rows.go(place)
            groups.append(
                await timed(app.first.action_group, lambda: "│" in (drawn := draw()) or "equal messages" in drawn)
            )
            app.pop_screen()
            await asyncio.sleep(0.05)
        measures.append(Measure("group side by side, median", statistics.median(groups), "s", FURTHER_SCREEN))
        for name, query in [
            ("sort by reward", "sort:-reward"), ("filter by figures", "reward<0.1 failed"),
            ("find a text, first rows", '"a rope of"'), ("find a regular expression, first rows", r"/rope of \d+ m/"),
        ]:  # fmt: skip
            before = app.opened.selection.query

            def ask(query: str = query) -> None:
                app.first.filter.value = query

            def answered(before: object = before) -> bool:
                return (
                    app.opened.selection.query is not before
                    and rows.rows is app.opened.selection.rows
                    and bool(rows.rows or app.opened.selection.finished)
                )

            measures.append(Measure(name, await timed(ask, answered), "s"))
            measures.append(Measure(f"{name}: all rows", await until(lambda: app.opened.selection.finished), "s"))
    measures.append(_memory())
    return measures


def page(run: Path) -> list[Measure]:
    """The server of the page, asked for what the page asks for."""
    return asyncio.run(_page(run))


async def _page(run: Path) -> list[Measure]:
    start = time.perf_counter()
    import aiohttp

    from toolgym.viewer.page.serve import serve_page
    from toolgym.viewer.run_index import RunIndex

    async def ask(path: str) -> Any:
        async with client.get(address.result() + path, timeout=aiohttp.ClientTimeout(DEADLINE)) as response:
            response.raise_for_status()
            body = await response.read()
            return json.loads(body) if response.content_type == "application/json" else body

    async def timed(path: str) -> float:
        begin = time.perf_counter()
        await ask(path)
        return time.perf_counter() - begin

    async def slowest(paths: Iterable[str]) -> float:
        return max([await timed(path) for path in paths])

    def screens(rows: int) -> list[str]:
        firsts = range(0, max(1, rows - 40), max(1, rows // 50))
        return ["rows?numbers=" + ",".join(map(str, range(first, first + 40))) for first in firsts]

    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_page(RunIndex(run), port=0, announce=address.set_result))
    measures = []
    try:
        async with aiohttp.ClientSession() as client:
            await asyncio.wait({serving, address}, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            await ask("")
            while not (columns := await ask("columns?since=0"))["reward"]:
                continue
            await ask(screens(40)[0])
            measures.append(Measure("first screen, imports included", time.perf_counter() - start, "s", FIRST_SCREEN))
            while_read = await slowest(screens(len(columns["reward"])))
            measures.append(Measure("40 rows while it is read, slowest", while_read, "s", FURTHER_SCREEN))
            while (await ask(f"columns?since={10**9}"))["reading"]:
                continue
            measures.append(Measure("all read", time.perf_counter() - start, "s"))
            count = (await ask("rows?limit=0"))["total"]
            measures.append(Measure("40 rows anywhere, slowest", await slowest(screens(count)), "s", FURTHER_SCREEN))
            opened = [f"row/{number}" for number in range(0, count, max(1, count // 50))]
            opens = [await timed(path) for path in opened]
            measures.append(Measure("open a trajectory, median", statistics.median(opens), "s", FURTHER_SCREEN))
            measures.append(Measure("open a trajectory, slowest", max(opens), "s"))
            measures.append(Measure("overview of all rows", await timed("columns?since=0"), "s"))
            for name, query in [
                ("sort by reward", "sort:-reward"), ("filter by figures", "reward<0.1 failed"),
                ("find a text", '"a rope of"'), ("find a regular expression", r"/rope of \d+ m/"),
            ]:  # fmt: skip
                path = "rows?all=1&limit=0&query=" + urllib.parse.quote(query)
                measures.append(Measure(f"{name}, all rows", await timed(path), "s"))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    measures.append(_memory())
    return measures


def _memory() -> Measure:
    return Measure("most memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB", MEMORY)


MEASURES: list[Callable[[Path], list[Measure]]] = [terminal, page]
"""Functions from a run's file to figures of it, each called in a fresh process."""


def table(measures: list[Measure]) -> Iterator[str]:
    for name, value, unit, target in measures:
        verdict = "" if target is None else f"{target:>8g} {unit:<3}{'ok' if value <= target else 'TOO MUCH'}"
        yield f"    {name:<42}{value:>10.3f} {unit:<3}{verdict}"


def main() -> int:
    """Print the tables; return the exit status, 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run that is written")
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), options.rows)
        print(f"{options.rows:,} rows, {run.stat().st_size / 1e6:,.0f} MB")
        for measure in MEASURES:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                measures = pool.submit(measure, run).result()
            print(f"  {measure.__name__}{' ' * 40}measured      target")
            print("\n".join(table(measures)))
            missed |= any(target is not None and value > target for _, value, _, target in measures)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
