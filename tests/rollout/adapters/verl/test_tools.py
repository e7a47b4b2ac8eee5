"""The drop-ins for the tools that verl no longer has, loaded and called by verl's own code."""

from __future__ import annotations

import json
import types

import pytest

from tests.rollout.engines.http_server import serving
from toolgym.tools.errors import ConfigError

pytest.importorskip("verl")

import yaml
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import load_all_tools

MODULE = "toolgym.rollout.adapters.verl.tools"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run a program.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
        },
    },
}


class Trajectory:
    """In place of verl's `AgentData`, of which only the identity counts."""


@pytest.fixture
def loop(tmp_path):
    """verl's own tool loop with the tools of a file: `call = loop(entry, ...)`."""

    def make(*entries):
        path = tmp_path / "tools.yaml"
        path.write_text(yaml.safe_dump({"tools": list(entries)}))
        made = ToolAgentLoop.__new__(ToolAgentLoop)  # its __init__ wants a model
        made.tools = {tool.name: tool for tool in load_all_tools(str(path), None)}
        made.max_tool_response_length, made.tool_response_truncate_side = 4096, "middle"

        async def call(name, arguments, kwargs=None, agent_data=None):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            given = {name: {"create_kwargs": kwargs or {}}}
            agent_data = agent_data or types.SimpleNamespace()
            return await made._call_tool(FunctionCall(name=name, arguments=text), given, agent_data)

        call.tools = made.tools
        return call

    return make


FORMER = {
    "gsm8k_tool.Gsm8kTool": {},
    "sandbox_fusion_tools.SandboxFusionTool": {},
    "search_tool.SearchTool": {"retrieval_service_url": "http://127.0.0.1:1/retrieve"},
}


@pytest.mark.parametrize("name", FORMER)
def test_a_tool_file_of_verl_0_8_loads_ours(loop, name):
    call = loop({"class_name": f"verl.tools.{name}", "config": {"type": "native", **FORMER[name]}})
    [tool] = call.tools.values()
    assert f"{type(tool).__module__}.{type(tool).__name__}" == f"{MODULE}.Verl{name.partition('.')[2]}"


async def test_programs_run_by_a_tool_file_of_verl_s(loop):
    config = {"type": "native", "num_workers": 2, "rate_limit": 2, "default_timeout": 20}
    entry = {"class_name": f"{MODULE}.VerlSandboxFusionTool", "config": config, "tool_schema": SCHEMA}
    call = loop(entry)
    response, reward, metrics = await call("python", {"code": "print(6 * 7)"})
    assert (response.text, reward, metrics["status"]) == ("42", 0.0, "ok")
    response, _, metrics = await call("python", {"code": "1 / 0"})
    assert "ZeroDivisionError" in response.text  # verl's former tool hid it
    response, reward, metrics = await call("python", {"program": "print(1)"})
    assert "Wrong arguments for tool 'python'" in response.text
    assert metrics == {"status": "wrong_arguments"}


SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the web for relevant information based on the given query.",
        "parameters": {
            "type": "object",
            "properties": {"query_list": {"type": "array", "description": "A list of fully-formed semantic queries."}},
            "required": ["query_list"],
        },
    },
}


async def test_queries_are_searched_for_by_a_tool_file_of_verl_s(loop):
    from aiohttp import web

    async def retrieve(request):
        queries = (await request.json())["queries"]
        if "gone" in queries:
            return web.Response(status=422)
        document = {"document": {"contents": '"Title"\ntext'}, "score": 0.5}
        return web.json_response({"result": [[document] for _ in queries]})

    async with serving({"POST /retrieve": retrieve}) as url:
        config = {"retrieval_service_url": f"{url}/retrieve", "num_workers": 120, "rate_limit": 120, "timeout": 30}
        entry = {
            "class_name": f"{MODULE}.VerlSearchTool",
            "config": {**config, "type": "native"},
            "tool_schema": SEARCH,
        }
        call = loop(entry)
        response, reward, metrics = await call("search", {"query_list": ["a", "b"]})
        one = 'Doc 1 (Title: "Title")\ntext'  # verl's former tool gave the model this very text
        assert json.loads(response.text) == {"result": f"{one}\n---\n{one}"}
        assert (reward, metrics["status"], metrics["total_results"]) == (0.0, "ok", 2)
        response, _, metrics = await call("search", {"query_list": ["gone"]})
        assert url not in response.text
        assert metrics["infra_failure"]
        response, _, metrics = await call("search", {"query_list": "a"})
        assert "Wrong arguments for tool 'search'" in response.text
        await call.tools["search"].close()


async def test_without_a_schema_the_tool_has_its_own(loop):
    call = loop({"class_name": f"{MODULE}.VerlSandboxFusionTool", "config": {"type": "native"}})
    response, _, _ = await call("python", {"code": "1"})
    assert response.text == "Unknown function 'python'. Available tools: ['code_interpreter']"


def test_an_unknown_option_is_refused(loop):
    with pytest.raises(ConfigError, match="default_timeout"):
        loop({"class_name": f"{MODULE}.VerlSandboxFusionTool", "config": {"type": "native", "default_timout": 3}})


async def test_answers_are_scored_against_the_row_s_truth_for_a_whole_trajectory(loop):
    call = loop({"class_name": f"{MODULE}.VerlGsm8kTool", "config": {"type": "native"}})
    truth, one = {"ground_truth": "42"}, Trajectory()
    answers = [("41", 0.0), ("41", -0.05), ("#### 42", 0.0), ("42.0", -0.05)]
    for answer, expected in answers:
        response, reward, metrics = await call("calc_gsm8k_reward", {"answer": answer}, truth, one)
        right = 0.0 if answer == "41" else 1.0
        assert (reward, metrics["score"]) == (expected, right)
        assert response.text == f"The answer {answer!r} earns {right:g}."
    _, reward, _ = await call("calc_gsm8k_reward", {"answer": "41"}, truth, Trajectory())
    assert reward == 0.0  # another trajectory's first


async def test_an_answer_of_another_kind_is_told_to_the_model(loop):
    call = loop({"class_name": f"{MODULE}.VerlGsm8kTool", "config": {"type": "native"}})
    response, reward, _ = await call("calc_gsm8k_reward", {"answer": 42}, {"ground_truth": "42"}, Trajectory())
    assert "Wrong arguments" in response.text
    assert reward == -0.05


async def test_the_four_calls_of_the_life_of_a_tool(loop):
    from toolgym.rollout.adapters.verl.tools import VerlGsm8kTool

    tool = VerlGsm8kTool({"type": "native"})
    instance, _ = await tool.create(ground_truth="7")
    await tool.execute(instance, {"answer": "8"})
    assert await tool.calc_reward(instance) == 0.0
    await tool.execute(instance, {"answer": "7"})
    assert await tool.calc_reward(instance) == 1.0
    await tool.release(instance)
    assert (tool._truths, tool._best) == ({}, {})
