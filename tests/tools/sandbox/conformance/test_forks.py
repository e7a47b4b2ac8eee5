"""Forks of live sessions, and many sessions at once."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import sys
import time

import pytest
from sandbox_makers import BRANCHING, ISOLATED, MAKERS, forked

from toolgym.tools.errors import SandboxError

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_fork_takes_the_state_along(branching):
    async with await branching.session() as session:
        await session.run_cell("import math, os\nx = [1, 2]\ndef f(): return len(x)\nopen('a.txt', 'w').write('one')")
        await session.run_cell(
            "os.mkdir('d')\nos.chdir('d')\nopen('b.txt', 'w').write('two')\nh = open('b.txt')\nh.read(1)"
        )
        async with await forked(session) as other:
            assert other.id != session.id
            result = await other.run_cell(
                "f(), math.floor(1.5), open('b.txt').read(), open('../a.txt').read(), h.read()"
            )
            assert result.result == "(2, 1, 'two', 'one', 'wo')"
            assert (await other.run_cell("os.path.basename(os.getcwd())")).result == "'d'"


async def test_a_fork_and_its_origin_go_on_independently(branching):
    async with await branching.session() as session:
        await session.run_cell("x = [1]\nopen('a.txt', 'w').write('before')\nimport random")
        other = await forked(session)
        await session.run_cell("x.append(2)\nopen('a.txt', 'w').write('origin')")
        await other.run_cell("x.append(3)\nopen('a.txt', 'w').write('fork')\nopen('new.txt', 'w').close()")
        mine, theirs = (
            await session.run_cell("x, open('a.txt').read()"),
            await other.run_cell("x, open('a.txt').read()"),
        )
        assert mine.result == "([1, 2], 'origin')"
        assert theirs.result == "([1, 3], 'fork')"
        assert (await session.run_cell("import os\nos.path.exists('new.txt')")).result == "False"
        assert await session.read_file("a.txt") == b"origin"
        assert await other.read_file("a.txt") == b"fork"
        drawn = [(await one.run_cell("random.random()")).result for one in (session, other)]
        assert drawn[0] != drawn[1], "a fork must not repeat its origin's randomness"
        await session.run_cell("import os; os._exit(0)")
        assert (await other.run_cell("x")).result == "[1, 3]"
        await other.close()


async def test_a_tree_of_forks(branching):
    async with await branching.session() as root:
        await root.run_cell("path = []")
        level = [root]
        for depth in range(3):
            grown = []
            for parent in level:
                for side in "ab":
                    child = await forked(parent)
                    await child.run_cell(f"path.append({side + str(depth)!r})")
                    grown.append(child)
            level = grown
        found = [(await leaf.run_cell("'-'.join(path)")).result for leaf in level]
        assert len(set(found)) == 8
        assert "'b0-a1-b2'" in found
        assert (await root.run_cell("path")).result == "[]"
        for leaf in level:
            await leaf.close()


@pytest.mark.parametrize("maker", [name for name in ISOLATED if name not in BRANCHING])
async def test_where_sessions_cannot_be_forked_they_say_so_and_go_on(maker):
    async with MAKERS[maker]() as made, await made.session() as session:
        await session.run_cell("x = 42")
        with pytest.raises(SandboxError, match="fork"):
            await session.fork()
        assert (await session.run_cell("x")).result == "42"


async def test_a_fork_of_something_large_is_quick(branching):
    async with await branching.session(memory_mb=400) as session:
        await session.run_cell("data = bytearray(b'x' * (100 << 20))")
        began = time.monotonic()
        async with await forked(session) as other:
            assert time.monotonic() - began < 1
            assert (await other.run_cell("len(data) >> 20")).result == "100"


async def test_a_dead_session_cannot_be_forked(isolated):
    session = await isolated.session()
    await session.close()
    with pytest.raises(SandboxError):
        await session.fork()


async def test_many_sessions_at_once(isolated):
    sessions = await asyncio.gather(*(isolated.session() for _ in range(20)))
    await asyncio.gather(*(one.run_cell(f"n = {k}") for k, one in enumerate(sessions)))
    results = await asyncio.gather(*(one.run_cell("n") for one in sessions))
    assert [result.result for result in results] == [str(k) for k in range(20)]
    await asyncio.gather(*(one.close() for one in sessions))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_an_idle_session_is_small():
    """Proportional memory: what is shared with the template counts once."""
    if "namespaces" not in MAKERS or os.geteuid() != 0:
        pytest.skip("needs root, to read the memory of others")
    from psutil import Process

    def has_own_memory(process):
        """The first process of a namespace has none: it runs in that of the template, its parent."""
        number = {"x86_64": 312, "aarch64": 272}[platform.machine()]  # kcmp, KCMP_VM
        return ctypes.CDLL(None).syscall(number, process.pid, process.ppid(), 1, 0, 0) != 0

    async with MAKERS["namespaces"]() as made, await made.session() as first:
        await first.run_cell("1")
        templates = [Process(pid) for pid in made.template_ids]

        def proportional() -> float:
            family = {child for one in templates for child in [one, *one.children(recursive=True)]}
            return sum(process.memory_full_info().pss for process in family if has_own_memory(process)) / 2**20

        before = proportional()
        sessions = [await made.session() for _ in range(20)]
        for one in sessions:
            await one.run_cell("x = 1")
        each = (proportional() - before) / 20
        for one in sessions:
            await one.close()
    assert each < 6, f"{each:.1f} MB for each idle session"
