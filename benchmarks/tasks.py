"""Memory and time of drawing tasks at random from a file, compared with loading all of it first.

    python benchmarks/tasks.py [--rows 100000] [--draws 2000]

Each way runs in a process of its own, which imports what it needs, notes its memory, opens the file, and draws tasks in
an order that a seed gives. Memory is the peak above what was noted. `load_tasks` holds every task, so that its memory
grows with the file; what the others hold is 8 bytes a line, or the row groups that fit into the cache, and what an
order costs, 4 bytes a task.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from toolgym.envs import Task, from_jsonl, from_parquet, load_tasks, write_tasks

MIB = 2**20
MEMORY_TARGET = 5.0
"""How many times less memory than with `load_tasks` the other ways must take."""

WAYS = {
    "load_tasks, JSON Lines": (load_tasks, "tasks.jsonl"),
    "from_jsonl": (from_jsonl, "tasks.jsonl"),
    "load_tasks, Parquet": (load_tasks, "tasks.parquet"),
    "from_parquet": (from_parquet, "tasks.parquet"),
}


def made(rows: int) -> Iterator[Task]:
    rng = random.Random(0)
    for number in range(rows):
        text = f"{number}: " + "".join(rng.choices("abcdefgh ", k=1000))
        yield Task.from_row(
            {
                "data_source": "benchmark",
                "prompt": [{"role": "system", "content": "Solve."}, {"role": "user", "content": text}],
                "reward_model": {"style": "rule", "ground_truth": str(number)},
                "extra_info": {"index": number, "tools_kwargs": {"check": {"create_kwargs": {"truth": str(number)}}}},
            }
        )


def forget_peak() -> float:
    """Let the kernel count the peak anew; returns the memory of this process now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """Most memory that this process has had since then, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(way: str, folder: Path, draws: int) -> None:
    """Draw tasks, and print the memory in MiB and the seconds to open the file and to draw."""
    open_tasks, name = WAYS[way]
    import pyarrow.parquet  # noqa: F401  what stays in memory after an import is no cost of the file

    before = forget_peak()
    started = time.monotonic()
    source = open_tasks(folder / name)
    opened = time.monotonic()
    drawn = source.take(min(draws, source.size), seed=0)
    done = time.monotonic()
    assert len({task.id for task in drawn}) == len(drawn)
    print(json.dumps({"memory": peak() - before, "open": opened - started, "draw": (done - opened) / len(drawn)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], Path(given.measure[1]), given.draws)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for name in ("tasks.jsonl", "tasks.parquet"):
            write_tasks(Path(folder) / name, made(given.rows))
            sizes[name] = (Path(folder) / name).stat().st_size / MIB
        found = {}
        for way in WAYS:
            command = [sys.executable, __file__, "--draws", str(given.draws), "--measure", way, folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            found[way] = json.loads(done.stdout)
    print(f"{given.rows} rows, {given.draws} draws in the order of a seed")
    print(f"{'':24}{'file MiB':>10}{'memory MiB':>12}{'open s':>10}{'draw ms':>10}{'memory, times less':>21}")
    good = True
    for way, one in found.items():
        whole = found["load_tasks, Parquet" if "arquet" in way else "load_tasks, JSON Lines"]
        times = whole["memory"] / max(one["memory"], 1.0)
        good = good and (way.startswith("load") or times >= MEMORY_TARGET)
        numbers = f"{sizes[WAYS[way][1]]:10.0f}{one['memory']:12.0f}{one['open']:10.2f}{1000 * one['draw']:10.2f}"
        print(f"{way:24}{numbers}{times:21.1f}")
    if not good:
        print(f"more memory than a {MEMORY_TARGET:g}th of what all tasks take")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
