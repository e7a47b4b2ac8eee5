"""A second session beside an attack, which must not notice it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.tools.sandbox.abuse.scene import marked
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.local.host import template_process
from toolgym.tools.sandbox.shared import SharedSandbox

TELL = """
import os, struct, time
def tell(body):
    frame = struct.pack("<I", len(body)) + body
    while frame:
        frame = frame[os.write(3, frame):]
def answer(head, data=b"", size=None):
    body = struct.pack("<I", len(head) if size is None else size) + head + data
    frame = struct.pack("<I", 1 << 31 | len(body)) + body
    while frame:
        frame = frame[os.write(3, frame):]
"""
"""Functions by which a program speaks the sandbox's own protocol."""

FORKS = """
import os, sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "forker"):
    frame = frame.f_back
FORKER = frame.f_locals["self"].forker
REAL = FORKER.fork
def fork_by(function):
    FORKER.fork = function
"""
"""Functions by which a program replaces how its interpreter is forked; REAL is the original."""


def marking(mark):
    """Code that gives its process a name of at most 15 characters, by which `gone` finds it."""
    return f"import ctypes; ctypes.CDLL(None).prctl(15, {mark.encode()!r}, 0, 0, 0)\n"


async def gone(mark):
    """Wait until no process has this name: until the one who started it has heard of its end too."""
    async with asyncio.timeout(60):
        while marked(mark) or marked(mark, dead=True):
            await asyncio.sleep(0.02)


def allow_few_forks(monkeypatch, most):
    """Template processes that start from now on let a session have this many live forks, beside its processes."""
    before_templates(
        monkeypatch, f"from toolgym.tools.sandbox.local.kernel import harden\nharden.MOST_FORKS = {most}\n"
    )


def before_templates(monkeypatch, code):
    """Template processes that start from now on run this code first."""
    line = "from toolgym.tools.sandbox.local.broker import startup"
    assert line in template_process._BOOT
    monkeypatch.setattr(template_process, "_BOOT", template_process._BOOT.replace(line, code + line))


@contextlib.asynccontextmanager
async def beside_a_witness(level, *, kind=SharedSandbox, **options):
    """A sandbox with a session that must still be alive at the end; the next test goes on with its template process."""
    python = "/usr/bin/python3" if level == "uid" else None  # one that other users can reach
    try:
        sandbox = kind(preload=[], level=level, python=python, templates=1, **options)
    except SandboxError as error:
        pytest.skip(str(error))
    async with sandbox, await sandbox.session() as witness:
        await witness.run_cell("x = 'seen'")
        yield sandbox
        seen = await witness.run_cell("x")
        assert (seen.status, seen.result) == (ExecutionStatus.OK, "'seen'"), "the template process was lost"
