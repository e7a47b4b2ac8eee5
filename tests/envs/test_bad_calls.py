"""What counts as a malformed call, and what it costs; and how turns of other formats become messages."""

from __future__ import annotations

import json
from functools import partial

import pytest

from toolgym.envs import BadCallPolicy, StopReason, Task, ToolEnv
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.schema import CallProblem

TASK = Task(({"role": "user", "content": "go"},), ground_truth="1", id="t")


@tool
def add(a: int, b: int = 0) -> str:
    """Add."""
    return str(a + b)


def make(policy=None, **kwargs):
    return ToolEnv([add], [TASK], **({"bad_calls": policy} if policy else {}), **kwargs)


def call(name="add", **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


GOOD = call(a=1)
BAD = {
    "malformed_json": "<tool_call>{oops}</tool_call>",
    "not_a_call": '<tool_call>{"name": "add"}</tool_call>',
    "unclosed_tag": "<tool_call>",
    "open_thinking": f"<think>{GOOD}",
    "call_in_thinking": f"<think>{GOOD}</think>",
    "unknown_tool": call("sub"),
    "wrong_arguments": call(a="x"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_every_kind_counts_and_is_fed_back(kind):
    async with make(BadCallPolicy(penalty=0.5)) as env:
        await env.reset()
        result = await env.step(BAD[kind])
        assert not result.done
        assert [record.status for record in result.info["tool_calls"]] == [kind]
        assert result.obs[0]["content"]
        assert result.reward == -0.5
        assert result.info["metrics"] == {"turn": 1, "bad_calls": 1, "reward/bad_calls": -0.5}


async def test_calls_beyond_the_limit_count_and_those_that_ran_do_not():
    async with make(BadCallPolicy(penalty=0.5), max_parallel_calls=1) as env:
        await env.reset()
        result = await env.step(GOOD + GOOD)
        assert [record.status for record in result.info["tool_calls"]] == ["ok", "too_many_calls"]
        assert result.reward == -0.5


async def test_by_default_a_malformed_call_costs_its_turn_only():
    async with make() as env:
        await env.reset()
        result = await env.step(BAD["malformed_json"] * 20)
        assert (result.done, result.reward) == (False, 0.0)
        assert result.info["metrics"] == {"turn": 1, "bad_calls": 20}


async def test_the_penalty_has_a_cap_for_the_episode_and_starts_anew_with_the_next():
    async with make(BadCallPolicy(penalty=0.25, max_penalty=0.6), scorer=lambda text, task: 1.0) as env:
        for _ in range(2):
            await env.reset()
            rewards = [(await env.step(BAD["unknown_tool"] * 2 + GOOD)).reward for _ in range(3)]
            assert rewards == [-0.5, pytest.approx(-0.1), 0.0]
            last = await env.step("done")
            assert last.reward == 1.0
            assert last.info["metrics"]["reward/bad_calls"] == -0.6


async def test_the_episode_stops_after_so_many_and_the_last_ones_still_cost():
    async with make(BadCallPolicy(penalty=1.0, stop_after=2)) as env:
        await env.reset()
        assert not (await env.step(BAD["unknown_tool"])).done
        last = await env.step(BAD["unknown_tool"])
        assert (last.terminated, last.info["stop_reason"]) == (True, StopReason.TOO_MANY_BAD_CALLS)
        assert last.reward == -1.0
        assert last.info["metrics"]["reward/bad_calls"] == -2.0


async def test_malformed_calls_of_the_last_turn_cost_too():
    async with make(BadCallPolicy(penalty=1.0), max_turns=1) as env:
        await env.reset()
        last = await env.step(BAD["unknown_tool"])
        assert (last.info["stop_reason"], last.reward) == (StopReason.MAX_TURNS, -1.0)


async def test_kinds_can_be_left_out():
    policy = BadCallPolicy(penalty=1.0, stop_after=1, counts=frozenset({"unknown_tool"}))
    async with make(policy) as env:
        await env.reset()
        result = await env.step(BAD["wrong_arguments"])
        assert (result.done, result.reward, result.info["metrics"]["bad_calls"]) == (False, 0.0, 0)
        assert (await env.step(BAD["unknown_tool"])).done


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"penalty": -1}, "penalty must be"),
        ({"penalty": float("nan")}, "penalty must be"),
        ({"max_penalty": -1}, "max_penalty must be"),
        ({"stop_after": 0}, "stop_after must be"),
        ({"counts": {"typo"}}, "'typo' is not a valid CallProblem. Known: malformed_json, "),
    ],
)
def test_values_out_of_range_are_named(kwargs, said):
    with pytest.raises(ConfigError, match=said):
        BadCallPolicy(**kwargs)


def test_all_kinds_count_by_default():
    assert BadCallPolicy().counts == set(CallProblem)


async def test_formats_without_types_get_them_from_the_tools():
    turn = "Hm. <tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"
    async with make(parser="qwen3_coder") as env:
        await env.reset()
        result = await env.step(turn)
        assert result.obs[0]["content"] == "2"
        assert result.info["message"]["content"] == "Hm."
        assert result.info["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 2}
        wrong = await env.step(turn.replace("2", "two"))
        assert "must be of type integer, got string" in wrong.obs[0]["content"]


async def test_ids_that_the_format_wants_reach_the_answers():
    async with make(parser="mistral") as env:
        await env.reset()
        first = await env.step('[TOOL_CALLS]add[ARGS]{"a": 1}')
        second = await env.step('[TOOL_CALLS]add[ARGS]{"a": 2}')
        assert [result.obs[0]["tool_call_id"] for result in (first, second)] == ["call00000", "call00001"]


async def test_analysis_is_kept_apart_from_the_answer_that_is_scored():
    seen = []

    def scorer(text, task):
        seen.append(text)
        return 1.0

    async with make(parser="gpt_oss", scorer=scorer) as env:
        await env.reset()
        turn = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add"
        result = await env.step(turn + '<|constrain|>json<|message|>{"a": 1}')
        assert result.obs[0]["content"] == "1"
        assert result.info["message"]["reasoning_content"] == "hm"
        last = await env.step("<|channel|>final<|message|>42")
        assert last.info["message"] == {"role": "assistant", "content": "42"}
        assert seen == ["42"]


@pytest.mark.parametrize("known", [True, False])
async def test_turns_that_begin_inside_of_thinking(known):
    async with make(parser=partial(parse_hermes, starts_open=known)) as env:
        await env.reset()
        result = await env.step(f"I could {GOOD}")
        assert [record.status for record in result.info["tool_calls"]] == ["open_thinking" if known else "ok"]
        result = await env.step(f"hm {GOOD}</think>{GOOD}")
        assert [record.status for record in result.info["tool_calls"]] == ["ok"]
