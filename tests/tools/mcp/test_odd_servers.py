"""Servers that break the rules of MCP: the policy reads their answers, and only silence counts as a failure."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

import toolgym
from tests.tools.mcp.raw_server import ANSWERS, ERRORS
from toolgym.envs import Task
from toolgym.tools.errors import UnknownNameError
from toolgym.tools.mcp.tolerant import repair_tool_list, repair_tool_result
from toolgym.tools.message import assistant, tool_call

SERVER = [sys.executable, str(Path(__file__).with_name("raw_server.py"))]
TASKS = [Task(({"role": "user", "content": "Try them all."},), ground_truth=5)]

READ = {
    "unknown_block": 'before\n[hologram: {"data": 1}]',
    "text_of_unknown_block": "read me",
    "no_content": "",
    "text_content": "only a text",
    "null_content": '{"n": 7}',
    "list_as_structure": "[1, 2]",
    "unfit_structure": "before",
    "no_structure": "before",
    "bad_flag": "before",
    "bad_annotations": "before",
    "quota": "quota exceeded",
    "internal": 'division by zero\n{"line": 7}',
    "request": "Request rejected\nthe branch is protected",
}


@pytest.fixture
async def env():
    env = toolgym.make("MCP-v0", server=SERVER, tasks=TASKS, tool_timeout=30.0, max_turns=100)
    await env.reset()
    yield env
    await env.close()


async def record_of(env, name, **arguments):
    step = await env.step(assistant("", [tool_call(name, arguments)]))
    return step.info["tool_calls"][0]


async def test_the_policy_reads_every_answer(env):
    assert READ.keys() == ANSWERS.keys() | ERRORS.keys()
    for name, text in READ.items():
        record = await record_of(env, name)
        assert (name, record.text) == (name, text)
        assert not record.infra_failure
        assert record.status == ("error" if name in ERRORS else "ok")


async def test_odd_schemas_take_no_other_tool_away(env):
    assert {"tuple", "pattern", "dangling", "empty", "capitals", "no_schema", "bad_description"} <= env.tools.keys()
    for name, arguments in [
        ("tuple", {"at": [1, 2]}),
        ("pattern", {"word": "Zoë"}),
        ("dangling", {"x": 1}),
        ("empty", {"anything": 1}),
        ("capitals", {"x": "1"}),
        ("no_schema", {}),
    ]:
        assert (await record_of(env, name, **arguments)).text.startswith(f"called {name} {{")
    assert (await record_of(env, "tuple", at=["a"])).status == "wrong_arguments"
    assert (await record_of(env, "pattern", word="7")).status == "wrong_arguments"


async def test_a_crash_and_silence_are_failures_of_the_infrastructure():
    env = toolgym.make("MCP-v0", server=SERVER, tasks=TASKS, tool_timeout=1.0, max_turns=100)
    try:
        await env.reset()
        assert (record := await record_of(env, "silent")).infra_failure
        assert (record.status, "was stopped" in record.text) == ("timeout", True)
        assert (await record_of(env, "crash")).infra_failure
    finally:
        await env.close()


async def test_only_selects_before_anything_is_checked():
    env = toolgym.make("MCP-v0", server=SERVER, tasks=TASKS, only=["no_schema"])
    try:
        await env.reset()
        assert [schema.name for schema in env.tool_schemas] == ["no_schema"]
    finally:
        await env.close()
    unknown = toolgym.make("MCP-v0", server=SERVER, tasks=TASKS, only=["no_scheme"])
    with pytest.raises(UnknownNameError, match="no_schema"):
        await unknown.reset()


def test_noise_on_standard_output_is_one_short_line_in_the_log(caplog):
    from toolgym.tools.mcp import tolerant

    tolerant._shorten_noise()
    tolerant._noise._seen.clear()
    log = logging.getLogger("mcp.client.stdio")
    with caplog.at_level("WARNING"):
        for _ in range(3):
            try:
                raise ValueError("not JSON")
            except ValueError:
                log.exception("Failed to parse JSONRPC message from server")
    (record,) = [record for record in caplog.records if record.name == log.name]
    assert "not JSON-RPC" in record.getMessage()
    assert record.exc_info is None


def test_valid_answers_are_passed_on_as_they_came():
    result = {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}], "structuredContent": {"n": 1}}
    assert repair_tool_result(result) == {**result, "isError": False}
    asked = {"resultType": "input_required", "inputRequests": {}}
    assert repair_tool_result(asked) == asked
    tool = {"name": "add", "description": "Add.", "inputSchema": {"type": "object", "properties": {"a": {}}}}
    assert repair_tool_list({"tools": [tool], "nextCursor": "2"}) == {"tools": [tool], "nextCursor": "2"}
