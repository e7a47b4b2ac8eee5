"""The numbers of system calls against the kernel's own headers, for both processors, wherever the headers lie."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolgym.tools.sandbox.local.kernel import syscalls

HEADERS = (
    ("x86_64", ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h")),
    ("aarch64", ("/usr/include/asm-generic/unistd.h",)),
)
_LINE = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)


def numbers(machine: str, paths: tuple[str, ...]) -> dict[str, int]:
    for path in map(Path, paths):
        if path.exists():
            table = {name: int(number) for name, number in _LINE.findall(path.read_text())}
            assert table["openat2"] == 437, "this header is not understood"
            table.pop("syscalls", None)  # how many there are
            return table
    pytest.skip(f"no header for {machine} on this machine: install linux-libc-dev")


@pytest.mark.parametrize(("machine", "paths"), HEADERS, ids=[machine for machine, _ in HEADERS])
def test_the_table_agrees_with_the_headers(machine: str, paths: tuple[str, ...]) -> None:
    known = numbers(machine, paths)
    newest = max(known.values())
    column = syscalls.MACHINES.index(machine)
    wrong = {}
    for name, row in syscalls.NUMBERS.items():
        # A header that is older than a call does not know it; calls that came last have one number everywhere.
        unknown = row[column] if row[column] > newest and row[0] == row[1] else -1
        if row[column] != known.get(name, unknown):
            wrong[name] = (row[column], known.get(name))
    assert not wrong, "name: (ours, the header's)"
