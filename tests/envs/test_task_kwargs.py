"""Arguments of a task for a tool: none is dropped."""

from __future__ import annotations

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.envs.families.sql.env import SqlTool
from toolgym.tools import BaseTool, BashTool, CodeInterpreterTool, EditorTool, SearchTool, ToolSchema, tool
from toolgym.tools.base import ToolResult
from toolgym.tools.errors import UnknownArgumentError
from toolgym.tools.judge.run_tests import RunTestsTool
from toolgym.tools.library.gsm8k import Gsm8kRewardTool
from toolgym.tools.message import user
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.search.retriever import Retriever
from toolgym.tools.stateful import StatefulTool, ToolSession


class Nothing(Retriever):
    async def search(self, queries, topk):
        return [[] for _ in queries]

    async def close(self):
        pass


class Session(ToolSession):
    async def execute(self, parameters, **execute_kwargs):
        return str(execute_kwargs)


class Named(StatefulTool):
    default_schema = ToolSchema("named")

    async def open(self, *, seed=0):
        return Session()


class Open(StatefulTool):
    default_schema = ToolSchema("open")

    async def open(self, **create_kwargs):
        return Session()


class Plain(BaseTool):
    default_schema = ToolSchema("plain")

    async def execute(self, instance_id, parameters, *, speed=1):
        return ToolResult("")


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def bash():
    from toolgym.tools.sandbox.shared import SharedSandbox

    return BashTool(sandbox=SharedSandbox())


TOOLS = {
    "code_interpreter": lambda: CodeInterpreterTool(sandbox=ProcessSandbox()),
    "run_tests": lambda: RunTestsTool(sandbox=ProcessSandbox()),
    "calc_gsm8k_reward": Gsm8kRewardTool,
    "search": lambda: SearchTool(retriever=Nothing()),
    "double": lambda: double,
    "named": Named,
    "plain": Plain,
    "bash": bash,
    "editor": lambda: EditorTool(sandbox=bash().sandbox),
    "sql": lambda: SqlTool(None, read_only=True, timeout=1, max_rows=1),
}


@pytest.mark.parametrize("call", ["create_kwargs", "execute_kwargs", "release_kwargs", "calc_reward_kwargs"])
@pytest.mark.parametrize("name", TOOLS)
async def test_an_unknown_argument_is_refused_by_name(name, call):
    if (name, call) in (("named", "execute_kwargs"), ("named", "calc_reward_kwargs")):
        pytest.skip("its session takes any")
    env = ToolEnv([TOOLS[name]()], [Task((user("x"),), tools_kwargs={name: {call: {"tipo": 1}}})])
    with pytest.raises(UnknownArgumentError, match=f"the tool '{name}' has no {call} 'tipo'"):
        await env.reset()


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("named", {"create_kwargs": {"sed": 1}}, "no create_kwargs 'sed', did you mean 'seed'. it takes: seed"),
        ("plain", {"execute_kwargs": {"sped": 1}}, "no execute_kwargs 'sped', did you mean 'speed'"),
        ("plain", {"create_kwarg": {"a": 1}}, "have 'create_kwarg', did you mean 'create_kwargs'"),
        ("double", {"create_kwargs": {"a": 1}}, "no create_kwargs 'a'; it takes none"),
    ],
)
async def test_the_error_has_the_names_that_are_known(name, kwargs, text):
    env = ToolEnv([TOOLS[name]()], [Task((user("x"),), tools_kwargs={name: kwargs})])
    with pytest.raises(UnknownArgumentError, match=text):
        await env.reset()


async def test_a_tool_that_takes_any_argument_gets_it():
    anything = {"create_kwargs": {"a": 1}, "execute_kwargs": {"b": 2}}
    verl = {"create_kwargs": {"ground_truth": "a", "question": "q", "data_source": "nq"}, "execute_kwargs": None}
    task = Task((user("x"),), tools_kwargs={"open": anything, "search": verl})
    async with ToolEnv([Open(), SearchTool(retriever=Nothing())], [task]) as env:
        await env.reset()


async def test_a_tool_checks_its_arguments_without_an_env():
    with pytest.raises(UnknownArgumentError, match="no create_kwargs 'sed'"):
        await Named().create(sed=1)
    with pytest.raises(UnknownArgumentError, match="no create_kwargs 'a'"):
        await double.tool.create(a=1)
