"""Lines and files of each room of the library beside its budget: size.py [--all]

A room is a folder. Ends with status 1 if a part has more lines than `size.toml` allows, or if a room that
is no list of equals has too many files. Without `--all`, small rooms are added to the room above them.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ["tools", "envs", "wrappers", "rollout", "front"]
PAGES = ["js", "css", "html"]
"""Kinds of files that are counted apart, as `pages`, wherever they are."""
SMALL = 1_000
"""A room with fewer lines has no row of its own in the short table."""


def lines_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def rooms() -> dict[str, list[int]]:
    """From each folder of the library to the lines of its files, `__init__.py` included."""
    folders: dict[str, list[int]] = {}
    for path in files("py"):
        folders.setdefault(str(path.parent.relative_to(ROOT)), []).append(lines_of(path))
    return folders


def files(kind: str) -> list[Path]:
    return sorted(path for layer in LAYERS for path in (ROOT / layer).rglob(f"*.{kind}"))


def part_of(room: str, parts: dict[str, list[str]]) -> str:
    """The part that lists the room, or one above it; the core is what no other part has."""
    return next((part for part, places in parts.items() if any(f"{room}/".startswith(f"{p}/") for p in places)), "core")


def main() -> int:
    """Print the table and what is above the budget; return the exit status."""
    budget = tomllib.loads((ROOT / "scripts/size.toml").read_text(encoding="utf-8"))
    parts, equals, most = budget["rooms"], budget["files"]["equals"], budget["files"]["most"]
    folders = rooms()
    faults = [
        f"{room} has {count} files, {most} are allowed"
        for room, sizes in folders.items()
        if (count := len(sizes) - (ROOT / room / "__init__.py").exists()) > most and room not in equals
    ]
    total = dict.fromkeys(budget["lines"], 0)
    shown: dict[str, list[int]] = {}
    for room, sizes in folders.items():
        total[part_of(room, parts)] += sum(sizes)
        row = room
        while "--all" not in sys.argv and row.count("/") and sum(map(sum, _below(row, folders))) < SMALL:
            row = row.rpartition("/")[0]
        shown.setdefault(row, []).extend(sizes)
    total["pages"] = sum(lines_of(path) for kind in PAGES for path in files(kind))
    for room in sorted(shown):
        print(f"{part_of(room, parts):<5} {room:<40} {len(shown[room]):>4} files {sum(shown[room]):>7} lines")
    for part, lines in total.items():
        print(f"{part:<5} {'of ' + format(budget['lines'][part], ','):<40} {'':>10} {lines:>7} lines")
        if lines > budget["lines"][part]:
            faults.append(f"{part}: {lines} lines, {budget['lines'][part]} are allowed")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def _below(room: str, folders: dict[str, list[int]]) -> list[list[int]]:
    return [sizes for name, sizes in folders.items() if name == room or name.startswith(f"{room}/")]


if __name__ == "__main__":
    sys.exit(main())
