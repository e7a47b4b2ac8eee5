"""Checkpoints: many forks, what they free, and where there is no room, beside the suite of all sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.parameters import first
from tests.tools.sandbox.abuse.scene import Scene
from tests.tools.sandbox.conformance.sandbox_makers import BRANCHING, ISOLATED, LIMITS, MAKERS, gone, named, seen
from tests.tools.sandbox.witness import allow_few_forks
from toolgym.tools.errors import (
    ForkNotSupportedError,
    SandboxBusyError,
    SandboxUnsupportedError,
)
from toolgym.tools.sandbox.base import Session

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = "x, open('f').read()"


async def close(sessions: list[Session]) -> None:
    await asyncio.gather(*(one.close() for one in sessions))


async def test_thirty_two_forks_at_once(keeping):
    async with await keeping.session() as session:
        await session.run_cell("x = [1]\nopen('f', 'w').write('old')")
        await session.checkpoint("before")
        await session.run_cell("x.append(2)")
        forks = await session.fork("before", n=32)
        assert len({fork.id for fork in [session, *forks]}) == 33
        await asyncio.gather(*(fork.run_cell(f"x.append({at})") for at, fork in enumerate(forks)))
        shown = await asyncio.gather(*(fork.run_cell(LOOK) for fork in forks))
        assert [one.result for one in shown] == [f"([1, {at}], 'old')" for at in range(32)]
        await close(forks)


async def test_checkpoints_are_freed_with_their_session_or_earlier(keeping):
    async with await keeping.session() as session:
        dropped, replaced, kept = Scene().mark, Scene().mark, Scene().mark
        for mark, name in ((dropped, "a"), (replaced, "b"), (kept, "c")):
            await session.run_cell(named(mark))
            await session.checkpoint(name)
        await session.run_cell(named(Scene().mark))
        assert await seen(dropped)
        await session.drop_checkpoint("a")
        assert await gone(dropped)
        assert await seen(replaced)
        await session.checkpoint("b")
        assert await gone(replaced)
        assert await seen(kept)
        fork = await session.fork("c")
    assert session.checkpoints == ()
    assert (await fork.run_cell("1 + 1")).result == "2"
    assert await seen(kept), "the fork is alive"
    await fork.close()
    assert await gone(kept)


@first("turns", (20, 1000), short=1)
async def test_a_checkpoint_before_each_turn(branching, turns):
    """More than Landlock has layers. A checkpoint that replaces another one frees it."""
    async with await branching.session() as session:
        for turn in range(turns):
            await session.checkpoint("before")
            assert (await session.run_cell(f"turn = {turn}")).error is None
        async with await session.fork("before") as branch:
            assert (await branch.run_cell("turn")).result == str(turns - 2)
        assert session.checkpoints == ("before",)


@pytest.mark.long
async def test_closed_forks_leave_their_room_to_the_next_ones(branching):
    """More in each round than processes that a session may have, and no pause between two rounds."""
    async with await branching.session() as session:
        await session.checkpoint("before")
        for name in ("before", None, "before"):
            await close(await session.fork(name, n=LIMITS.processes * 2))


async def fork_when_there_is_room(session, name, n):
    """Forks that were closed are killed; the kernel counts them until they are gone, a moment later."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await session.fork(name, n=n)
            except SandboxBusyError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("maker", BRANCHING)
async def test_where_there_is_no_room_nothing_is_left_behind(maker, monkeypatch):
    allow_few_forks(monkeypatch, 2)
    async with MAKERS[maker](limits=dataclasses.replace(LIMITS, processes=8)) as made, await made.session() as session:
        await session.run_cell("x = 3")
        await session.checkpoint("here")
        with pytest.raises(SandboxBusyError, match="cannot be forked"):
            await session.fork("here", n=20)
        forks = await fork_when_there_is_room(session, "here", 4)
        assert [(await fork.run_cell("x")).result for fork in forks] == ["3"] * 4
        await close(forks)


@pytest.mark.parametrize("maker", [name for name in ISOLATED if name not in BRANCHING])
async def test_a_sandbox_without_forks_has_no_checkpoints(maker):
    async with MAKERS[maker]() as made, await made.session() as session:
        with pytest.raises(SandboxUnsupportedError, match="at the level '.*' cannot be forked: sessions fork only at"):
            await session.checkpoint("a")
        with pytest.raises(ForkNotSupportedError):
            await session.fork(n=2)
        assert session.checkpoints == ()
        assert (await session.run_cell("1 + 1")).result == "2"
