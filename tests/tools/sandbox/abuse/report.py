"""The security table of docs/sandbox.md, from a real run.

    python tests/tools/sandbox/abuse/report.py [--places root:namespaces docker-root:uid ...] [--out table.md]

One column per place (surroundings and isolation level, see `surroundings.py`), each level by default where it is meant
for, and one for a bare process; one row per kind of abuse: how many were stopped. Below, each one that was not stopped,
by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.tools.sandbox.abuse.catalog import PROGRAMS

TITLES = {
    "bombs": "Bombs: processes, threads, memory, disk, output",
    "time": "Programs that do not end, grandchildren that hide",
    "secrets": "Secrets of the host and of other runs",
    "writes": "Writes outside of its folder",
    "leftovers": "What stays behind",
    "network": "Network and sockets of the host",
    "escapes": "Escapes: memory of others, namespaces, mounts, kernel",
    "signals": "Signals to others",
    "descriptors": "Descriptors and forged results",
    "odd": "Odd programs get the right result",
    "roots": "Roots that are images",
    "works": "Useful things still work",
}
PLACES_OF_ROOT = ("root:namespaces", "docker-root:uid", "docker-user:landlock", "root:process")
PLACES_OF_A_USER = ("user:namespaces", "docker-user:landlock", "user:process")

Verdicts = dict[str, dict[str, object]]


def verdicts(place: str) -> Verdicts:
    """Run everything in one place. Empty where it is not to be had."""
    surroundings, _, level = place.partition(":")
    command = [sys.executable, str(Path(__file__).with_name("runner.py")), "--in", surroundings]
    command += ["--sandbox", "process"] if level == "process" else ["--level", level]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    # Where a network of its own is refused, nothing could be tried, and nothing was open.
    return {line["name"]: {"held": "skipped" in line, **line} for line in lines if "name" in line}


def heading(place: str) -> str:
    level = place.partition(":")[2]
    return "no isolation (`ProcessSandbox`)" if level == "process" else f"`{level}`"


def table(found: dict[str, Verdicts]) -> str:
    """The table as Markdown. A program that was not run because it would harm the machine counts as not stopped."""
    columns = [level for level, verdict in found.items() if verdict]
    lines = [
        "| stopped / tried | " + " | ".join(heading(level) for level in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    tried = {name for level in columns for name in found[level]}
    totals = dict.fromkeys(columns, 0)
    for category, title in TITLES.items():
        names = [name for name in PROGRAMS if name in tried and PROGRAMS[name].category == category]
        cells = []
        for level in columns:
            stopped = sum(bool(found[level].get(name, {}).get("held")) for name in names)
            totals[level] += stopped
            cells.append(f"{stopped} / {len(names)}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines.append("| **all** | " + " | ".join(f"**{totals[level]} / {len(tried)}**" for level in columns) + " |")
    lines.append("")
    for level in columns:
        if level.endswith(":process"):
            continue
        missed = [
            f"{name.partition('/')[2].replace('_', ' ')} ({str(verdict['said'])[:120]})"
            for name, verdict in found[level].items()
            if not verdict["held"]
        ]
        lines.append(
            f"Not stopped (or not working) at {heading(level)}: {'; '.join(missed) if missed else 'nothing'}.\n"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", nargs="*", default=PLACES_OF_ROOT if os.geteuid() == 0 else PLACES_OF_A_USER)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    text = table({place: verdicts(place) for place in options.places})
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
