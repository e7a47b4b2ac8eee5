"""The suite of all tools, on ours and on the example of an own one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import MappingProxyType

import pytest
import pytest_asyncio

from toolgym.testing import ConformanceError, ToolSuite, check_tool
from toolgym.tools import BaseTool, CodeInterpreterTool, StatefulTool, ToolResult, ToolSchema, ToolSession, tool
from toolgym.tools.errors import ConfigError, ForkNotSupportedError
from toolgym.tools.sandbox.local import probe

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_tool.py"


@tool
def double(number: int, by: int = 2) -> str:
    """Multiply.

    Args:
        number: what to multiply
        by: with what
    """
    return str(number * by)


class TestFunction(ToolSuite):
    arguments = MappingProxyType({"number": 3})
    forks = True

    @pytest.fixture
    def tool(self):
        return double


class TestExample(ToolSuite):
    arguments = MappingProxyType({"note": "12 * 34 = 408"})
    create_kwargs = MappingProxyType({"notes": ["begin"]})
    forks = True

    @pytest.fixture
    def tool(self):
        spec = importlib.util.spec_from_file_location("own_tool", EXAMPLE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.NotesTool()


class TestCodeInterpreter(ToolSuite):
    arguments = MappingProxyType({"code": "x = globals().get('x', 0) + 1\nx"})
    forks = "namespaces" in probe()["levels"]
    loop_scope = "class"  # one tool, and so one sandbox, for all tests

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def tool(cls):
        made = CodeInterpreterTool()
        yield made
        await made.close()


SCHEMA = ToolSchema("count", "", {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]})


class Counter(ToolSession):
    def __init__(self, count=0):
        self.count = count

    async def execute(self, parameters, **execute_kwargs):
        self.count += parameters["by"]
        return str(self.count)

    async def fork(self):
        return Counter(self.count)


class CounterTool(StatefulTool):
    """Keeps the contract; each class below breaks it in one way."""

    default_schema = SCHEMA

    async def open(self, **create_kwargs):
        return Counter()


class Unforked(CounterTool):
    fork = BaseTool.fork


class NoTool:
    tool_schema = SCHEMA
    name = "count"


class OtherName(CounterTool):
    name = "counter"


class WrongSchema(CounterTool):
    def get_openai_tool_schema(self):
        return {"type": "function", "function": {"description": "no name"}}


class OwnIds(CounterTool):
    async def create(self, instance_id=None, **create_kwargs):
        return await super().create(None, **create_kwargs)


class OneId(BaseTool):
    default_schema = SCHEMA

    async def create(self, instance_id=None, **create_kwargs):
        return instance_id or "the one"

    async def execute(self, instance_id, parameters, **execute_kwargs):
        return ToolResult("0")


class Number(CounterTool):
    async def execute(self, instance_id, parameters, **execute_kwargs):
        return 7


class NotFinite(CounterTool):
    async def execute(self, instance_id, parameters, **execute_kwargs):
        return "text", float("nan"), {}


class NoReward(CounterTool):
    async def calc_reward(self, instance_id, **calc_reward_kwargs):
        return None


class OneCount(CounterTool):
    """All instances that are open at once share what they count."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.open_now = 0

    async def create(self, instance_id=None, **create_kwargs):
        if not self.open_now:
            self.count = 0
        self.open_now += 1
        return await super().create(instance_id)

    async def execute(self, instance_id, parameters, **execute_kwargs):
        self.count += 1
        return ToolResult(str(self.count))

    async def release(self, instance_id, **release_kwargs):
        await super().release(instance_id)
        self.open_now -= 1


class ReleasesAll(CounterTool):
    async def release(self, instance_id, **release_kwargs):
        await super().release(instance_id)
        for session in self._sessions.values():
            session.count = 0


class ForgetfulFork(CounterTool):
    async def fork(self, instance_id):
        return await self.create()


class SameFork(CounterTool):
    async def fork(self, instance_id):
        return instance_id


class SilentFork(CounterTool):
    async def fork(self, instance_id):
        raise ForkNotSupportedError("no")


BROKEN = [
    (OtherName, "name is that of the schema"),
    (WrongSchema, "OpenAI shape"),
    (OwnIds, "returns the id that it was given"),
    (OneId, "different ids"),
    (Number, "a tool must return ToolResult"),
    (NotFinite, "a finite reward"),
    (NoReward, "calc_reward of 'count' returns a finite number; got None"),
    (OneCount, "releasing an instance leaves the others|same three calls"),
    (ReleasesAll, r"leaves the others as they are; got 1"),
    (ForgetfulFork, r"goes on from the same state, by itself: \['2', '3'\]; got \['1', '2'\]"),
    (SameFork, "an id of its own"),
    (SilentFork, "names the tool 'count'; got ForkNotSupportedError"),
]


async def test_a_tool_that_keeps_the_contract_passes():
    await check_tool(CounterTool(), {"by": 1}, forks=True)
    await check_tool(double, {"number": 3})


@pytest.mark.parametrize(("broken", "said"), BROKEN)
async def test_a_broken_tool_is_told_what_is_wrong(broken, said):
    with pytest.raises(ConformanceError, match=said):
        await check_tool(broken(), {"by": 1})


async def test_what_is_no_tool_is_refused():
    with pytest.raises(ConformanceError, match="a tool is a BaseTool"):
        await check_tool(NoTool(), {"by": 1})


async def test_arguments_that_do_not_fit_are_the_callers_mistake():
    with pytest.raises(ConfigError, match="Missing required argument 'by'.*Give `arguments`"):
        await check_tool(CounterTool())


async def test_whether_it_forks_can_be_demanded():
    with pytest.raises(ForkNotSupportedError, match="'count' cannot be forked"):
        await check_tool(Unforked(), {"by": 1}, forks=True)
    await check_tool(Unforked(), {"by": 1}, forks=False)
    with pytest.raises(ConformanceError, match="fork raises ForkNotSupportedError; got"):
        await check_tool(CounterTool(), {"by": 1}, forks=False)
