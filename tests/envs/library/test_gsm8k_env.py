"""`GSM8K-v0`: reason, check, refine; verl's rows; the embedded problems."""

from __future__ import annotations

import json
import re

import pytest

import toolgym
from toolgym.envs import StopReason, load_tasks
from toolgym.envs.library.gsm8k import gsm8k_tasks
from toolgym.tools.errors import ConfigError
from toolgym.tools.library.gsm8k import Gsm8kRewardTool

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "system", "content": "You are a math expert."}, {"role": "user", "content": "6 * 12?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {
        "split": "train", "index": 0, "answer": "6*12=<<6*12=72>>72\n#### 72", "question": "6 * 12?",
        "need_tools_kwargs": True,
        "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}},
        "interaction_kwargs": {"query": "6 * 12?", "ground_truth": "72"},
    },
}  # fmt: skip
PLAIN = {**ROW, "extra_info": {"split": "train", "index": 1}}


def check(answer):
    return f"<tool_call>{json.dumps({'name': 'calc_gsm8k_reward', 'arguments': {'answer': answer}})}</tool_call>"


async def play(env, *actions):
    """The observation and reward of each step."""
    steps = [await env.step(action) for action in actions]
    return [(step.obs[0]["content"] if step.obs else step.stop_reason, pytest.approx(step.reward)) for step in steps]


@pytest.mark.parametrize("row", [ROW, PLAIN])
async def test_reason_check_refine_answer(row):
    async with toolgym.make("GSM8K-v0", tasks=load_tasks([row])) as env:
        await env.reset()
        assert await play(env, check("71"), check("71"), check("72"), check("72"), "#### 72") == [
            ("The answer '71' earns 0.", -0.05),
            ("The answer '71' earns 0.", -0.05),
            ("The answer '72' earns 1.", 0.0),
            ("The answer '72' earns 1.", -0.05),
            (StopReason.ANSWERED, 1.0),
        ]
        await env.reset()  # the next episode remembers nothing
        assert await play(env, check("72"), "#### 71") == [
            ("The answer '72' earns 1.", 0.0),
            (StopReason.ANSWERED, 0.0),
        ]


async def test_a_fork_goes_its_own_way():
    async with toolgym.make("GSM8K-v0", tasks=load_tasks([ROW])) as env:
        await env.reset()
        async with await env.fork() as twin:
            assert [reward for _, reward in await play(env, check("72"))] == [0.0]
            assert [reward for _, reward in await play(twin, check("72"))] == [0.0]


async def test_further_tools_and_a_tool_of_ones_own():
    own = Gsm8kRewardTool({"step_penalty": 0.5})
    options = {"code_interpreter": True, "tool_config": {"default_timeout": 5}}
    async with toolgym.make("GSM8K-v0", tasks=load_tasks([ROW]), tools=[own], **options) as env:
        assert [one.name for one in env.tool_schemas] == ["code_interpreter", "calc_gsm8k_reward"]
        await env.reset()
        assert await play(env, check("71")) == [("The answer '71' earns 0.", -0.5)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**PLAIN, "reward_model": {}}, "no ground truth"),
        ({**PLAIN, "reward_model": {"ground_truth": {"target": 1}}}, "target"),
    ],
)
async def test_a_row_that_it_cannot_use_is_the_users_error(row, said):
    async with toolgym.make("GSM8K-v0", tasks=load_tasks([row])) as env:
        with pytest.raises(ConfigError, match=said):
            await env.reset()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"tool_config": {}}, "code_interpreter=True"), ({"tools": 3}, "list of tools"), ({"step_penalty": -1}, "step_p")],
)
def test_options_that_cannot_be_used_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        toolgym.make("GSM8K-v0", **options)


@pytest.mark.parametrize("task", gsm8k_tasks().tasks, ids=lambda task: task.id)
def test_each_step_of_a_worked_solution_is_right(task):
    solution = task.extra_info["answer"]
    steps = re.findall(r"<<([0-9()*/+-]+)=(\d+)>>(\d+)", solution)
    assert len(steps) == solution.count("<<") >= 2
    for expression, value, said in steps:
        assert eval(expression) == int(value) == int(said), expression
    assert steps[-1][1] == task.ground_truth == solution.rpartition("#### ")[2]
    assert set(re.findall(r"\d+", task.messages[-1]["content"]))


def test_the_problems_are_rows_of_verls():
    tasks = gsm8k_tasks().tasks
    assert len({task.messages[-1]["content"] for task in tasks}) == 30
    assert [load_tasks([task.to_row()]).tasks[0] for task in tasks] == list(tasks)
