"""The numbers of system calls against the kernel's own headers, for both processors, wherever the headers lie."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolgym.tools.sandbox.local.kernel import seccomp, syscall_batch, syscalls

HEADERS = (
    ("x86_64", ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h")),
    ("aarch64", ("/usr/include/asm-generic/unistd.h",)),
)
_LINE = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)


def numbers(machine: str, paths: tuple[str, ...]) -> dict[str, int]:
    for path in map(Path, paths):
        if path.exists():
            found = {name: int(number) for name, number in _LINE.findall(path.read_text())}
            assert found["openat2"] == 437, "this header is not understood"
            found.pop("syscalls", None)  # how many there are
            return found
    pytest.skip(f"no header for {machine} on this machine: install linux-libc-dev")


@pytest.mark.parametrize(("machine", "paths"), HEADERS, ids=[machine for machine, _ in HEADERS])
@pytest.mark.parametrize("table", [syscall_batch._NUMBERS, seccomp._NUMBERS], ids=["batch", "seccomp"])
def test_tables_agree_with_the_headers(table: dict[str, tuple[int, int]], machine: str, paths: tuple[str, ...]) -> None:
    known = numbers(machine, paths)
    newest = max(known.values())
    column = [name for name, _ in HEADERS].index(machine)
    wrong = {}
    for name, row in table.items():
        # A header that is older than a call does not know it; calls that came last have one number everywhere.
        unknown = row[column] if row[column] > newest and row[0] == row[1] else -1
        if row[column] != known.get(name, unknown):
            wrong[name] = (row[column], known.get(name))
    assert not wrong, "name: (ours, the header's)"


@pytest.mark.parametrize(("machine", "paths"), HEADERS, ids=[machine for machine, _ in HEADERS])
def test_single_numbers_agree_with_the_headers(machine: str, paths: tuple[str, ...]) -> None:
    known = numbers(machine, paths)
    assert known["close_range"] == syscalls._CLOSE_RANGE
    assert known["openat2"] == syscalls._OPENAT2
    if machine == syscalls.MACHINE:
        assert known["pivot_root"] == syscalls._PIVOT_ROOT
        assert known["rt_sigprocmask"] == syscalls._RT_SIGPROCMASK
