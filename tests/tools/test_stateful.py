"""`StatefulTool`: one session per episode, closed exactly once."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.tools import StatefulTool, ToolResult, ToolSchema, ToolSession
from toolgym.tools.errors import ConfigError, EpisodeError, ForkNotSupportedError


class Note(ToolSession):
    def __init__(self, text, fail=False):
        self.text, self.closed, self.fail = text, 0, fail

    async def execute(self, parameters, **execute_kwargs):
        self.text += parameters["text"]
        return (self.text, 0.5, {"n": 1}) if execute_kwargs else self.text

    async def reward(self, **calc_reward_kwargs):
        return len(self.text)

    async def close(self):
        await asyncio.sleep(0.05)
        self.closed += 1
        if self.fail:
            raise OSError("stuck")


class NoteTool(StatefulTool):
    default_schema = ToolSchema("note")

    def __init__(self):
        super().__init__()
        self.opened = []
        self.let = asyncio.Event()
        self.let.set()

    async def open(self, **create_kwargs):
        await self.let.wait()
        self.opened.append(Note(**{"text": "", **create_kwargs}))
        return self.opened[-1]


async def test_each_instance_has_its_own_session():
    tool = NoteTool()
    one, two = await tool.create(text="a"), await tool.create("mine", text="b")
    assert two == "mine"
    assert await tool.execute(one, {"text": "x"}) == ToolResult("ax")
    assert await tool.execute(two, {"text": "y"}, loud=True) == ToolResult("by", 0.5, {"n": 1})
    assert (await tool.calc_reward(one), await tool.calc_reward(two)) == (2.0, 2.0)
    await tool.release(one)
    await tool.release(one)
    with pytest.raises(EpisodeError, match=f"no instance '{one}'"):
        await tool.execute(one, {"text": "x"})
    assert [note.closed for note in tool.opened] == [1, 0]
    await tool.close()
    await tool.close()
    assert [note.closed for note in tool.opened] == [1, 1]


async def test_an_id_in_use_is_refused_and_opens_nothing():
    tool = NoteTool()
    await tool.create("mine")
    with pytest.raises(ConfigError, match="'mine' already"):
        await tool.create("mine")
    assert len(tool.opened) == 1
    tool.let.clear()
    both = [asyncio.create_task(tool.create("late")) for _ in range(2)]
    await asyncio.sleep(0)
    tool.let.set()
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(result, ConfigError) for result in results) == [False, True]
    await tool.close()
    assert [note.closed for note in tool.opened] == [1, 1, 1]


async def test_a_create_that_is_cancelled_leaves_nothing():
    tool = NoteTool()
    tool.let.clear()
    create = asyncio.create_task(tool.create("mine"))
    await asyncio.sleep(0.01)
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    tool.let.set()
    assert tool.opened == []
    assert await tool.create("mine") == "mine"
    await tool.close()


async def test_a_release_ends_even_when_it_is_cancelled():
    tool = NoteTool()
    instance = await tool.create()
    release = asyncio.create_task(tool.release(instance))
    await asyncio.sleep(0.01)
    release.cancel()
    with pytest.raises(asyncio.CancelledError):
        await release
    assert [note.closed for note in tool.opened] == [1]


async def test_a_close_ends_all_sessions_also_when_one_fails():
    tool = NoteTool()
    for fail in (False, True, False):
        await tool.create(fail=fail)
    with pytest.raises(OSError, match="stuck"):
        await tool.close()
    assert [note.closed for note in tool.opened] == [1, 1, 1]


async def test_a_session_that_does_not_fork_is_named_by_its_tool():
    tool = NoteTool()
    instance = await tool.create()
    with pytest.raises(ForkNotSupportedError, match="the tool 'note' cannot be forked: Note does not implement fork"):
        await tool.fork(instance)
    with pytest.raises(EpisodeError):
        await tool.fork("other")
    await tool.close()
