"""What forks and checkpoints of sessions must do, in every sandbox that has some."""

from __future__ import annotations

import asyncio
from typing import Any

from toolgym.testing.sandbox_base import LONG, SandboxTests, close_all
from toolgym.testing.suite import needs
from toolgym.tools.errors import (
    ConfigError,
    SessionLostError,
    UnknownNameError,
)
from toolgym.tools.sandbox.base import Sandbox, Session

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


LOOK = "x, open('f').read()"


class ForkSuite(SandboxTests):
    """What `Session.fork` and `Session.checkpoint` must do. Needs the fixture `sandbox`."""

    @needs("sessions", "forks")
    async def test_a_fork_takes_the_state_along(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.run_cell(
                "import math, os\nx = [1, 2]\ndef f(): return len(x)\nopen('a.txt', 'w').write('one')"
            )
            await session.run_cell(
                "os.mkdir('d')\nos.chdir('d')\nopen('b.txt', 'w').write('two')\nh = open('b.txt')\nh.read(1)"
            )
            async with await asyncio.wait_for(session.fork(), LONG) as other:
                assert other.id != session.id
                result = await other.run_cell(
                    "f(), math.floor(1.5), open('b.txt').read(), open('../a.txt').read(), h.read()"
                )
                assert result.result == "(2, 1, 'two', 'one', 'wo')"
                assert (await other.run_cell("os.path.basename(os.getcwd())")).result == "'d'"

    @needs("sessions", "forks")
    async def test_a_fork_and_its_origin_go_on_independently(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.run_cell("x = [1]\nopen('a.txt', 'w').write('before')")
            other = await asyncio.wait_for(session.fork(), LONG)
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
            await session.run_cell("import os; os._exit(0)")
            assert (await other.run_cell("x")).result == "[1, 3]"
            await other.close()

    @needs("sessions", "forks")
    async def test_a_tree_of_forks(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as root:
            await root.run_cell("path = []")
            level = [root]
            for depth in range(3):
                grown = []
                for parent in level:
                    for side in "ab":
                        child = await asyncio.wait_for(parent.fork(), LONG)
                        await child.run_cell(f"path.append({side + str(depth)!r})")
                        grown.append(child)
                level = grown
            found = [(await leaf.run_cell("'-'.join(path)")).result for leaf in level]
            assert len(set(found)) == 8
            assert "'b0-a1-b2'" in found
            assert (await root.run_cell("path")).result == "[]"
            for leaf in level:
                await leaf.close()

    @needs("sessions", "forks")
    async def test_a_fork_of_a_checkpoint_has_the_state_of_then(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.run_cell("import math\nx = [1]\nopen('f', 'w').write('old')")
            await session.checkpoint("before")
            await session.run_cell("x.append(2)\nopen('f', 'w').write('new')")
            async with await session.fork("before") as then, await session.fork() as now:
                assert (await then.run_cell(LOOK)).result == "([1], 'old')"
                assert (await now.run_cell(LOOK)).result == "([1, 2], 'new')"
                assert (await then.run_cell("math.floor(2.5)")).result == "2"
                assert then.checkpoints == now.checkpoints == ()
            assert (await session.run_cell(LOOK)).result == "([1, 2], 'new')"

    @needs("sessions", "forks")
    async def test_forks_of_a_checkpoint_are_independent_of_it_and_of_each_other(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.run_cell("x = [1]\nopen('f', 'w').write('old')")
            await session.checkpoint("before")
            for name in "ab":
                async with await session.fork("before") as fork:
                    await fork.run_cell(f"x.append({name!r})\nopen('f', 'a').write({name!r})")
                    assert (await fork.run_cell(LOOK)).result == f"([1, {name!r}], 'old{name}')"
            assert (await session.run_cell(LOOK)).result == "([1], 'old')"

    @needs("sessions", "forks")
    async def test_several_forks_of_the_present_state(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            await session.run_cell("x = 7")
            forks = await session.fork(n=3)
            assert [(await fork.run_cell("x")).result for fork in forks] == ["7"] * 3
            (only,) = await session.fork(n=1)
            assert (await only.run_cell("x")).result == "7"
            await close_all([*forks, only])
            wrong: Any
            for wrong in (0, -1, 1.5, True, "2"):
                with pytest.raises(ConfigError, match="n must be a whole number of at least 1"):
                    await session.fork(n=wrong)

    @needs("sessions", "forks")
    async def test_checkpoints_are_listed_replaced_and_dropped(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            assert _names(session) == ()
            for x, name in enumerate(["first", "ä / ?", "first"]):
                await session.run_cell(f"x = {x}")
                await session.checkpoint(name)
            assert _names(session) == ("ä / ?", "first")
            for name, shown in (("ä / ?", "1"), ("first", "2")):
                async with await session.fork(name) as fork:
                    assert (await fork.run_cell("x")).result == shown
            await session.drop_checkpoint("ä / ?")
            assert _names(session) == ("first",)
            for call in (session.fork, session.drop_checkpoint):
                with pytest.raises(UnknownNameError, match=r"no checkpoint 'frist', did you mean 'first'\?"):
                    await call("frist")
            wrong: Any
            for wrong in ("", ".", "..", "a\nb", "\ud800", "x" * 201, 7):
                with pytest.raises(ConfigError, match="a checkpoint's name must be"):
                    await session.checkpoint(wrong)
            assert (await session.run_cell("x")).result == "2"

    @needs("sessions", "forks")
    async def test_a_checkpoint_waits_for_the_cell_that_runs(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            cell = asyncio.create_task(session.run_cell("import time\nx = 1\ntime.sleep(0.5)\nx = 2"))
            await asyncio.sleep(0.1)
            await session.checkpoint("after")
            assert (await cell).status == "ok"
            async with await session.fork("after") as fork:
                assert (await fork.run_cell("x")).result == "2"

    @needs("sessions", "forks")
    async def test_a_checkpoint_outlives_a_cell_that_kills_the_session(self, sandbox: Sandbox) -> None:
        session = await sandbox.session()
        await session.run_cell("x = 5")
        await session.checkpoint("safe")
        assert not (await session.run_cell("import os\nos._exit(1)")).alive
        with pytest.raises(SessionLostError):
            await session.fork()
        assert _names(session) == ("safe",)
        async with await session.fork("safe") as fork:
            assert (await fork.run_cell("x")).result == "5"
        await session.drop_checkpoint("safe")
        assert _names(session) == ()
        await session.close()

    @needs("sessions", "forks")
    async def test_a_closed_session_has_no_checkpoints(self, sandbox: Sandbox) -> None:
        session = await sandbox.session()
        await session.checkpoint("a")
        await session.close()
        assert session.checkpoints == ()
        with pytest.raises(UnknownNameError):
            await session.fork("a")
        with pytest.raises(SessionLostError):
            await session.checkpoint("b")
        with pytest.raises(SessionLostError):
            await session.fork(n=2)


def _names(session: Session) -> tuple[str, ...]:
    """Return the checkpoints. (A type checker takes the attribute for what it was before.)"""
    return session.checkpoints
