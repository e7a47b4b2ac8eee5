"""`Gsm8kRewardTool`: what an answer earns, and what a check costs that did not improve."""

from __future__ import annotations

import pytest
import yaml

from toolgym.tools import from_config
from toolgym.tools.errors import ConfigError
from toolgym.tools.library.gsm8k import Gsm8kRewardTool

VERLS_FILE = """
tools:
  - class_name: "toolgym.tools.library.gsm8k.Gsm8kRewardTool"
    config:
      type: native
    tool_schema:
      type: "function"
      function:
        name: "calc_gsm8k_reward"
        description: "A tool for calculating the reward of gsm8k."
        parameters:
          type: "object"
          properties:
            answer:
              type: "string"
              description: "The model's answer, must be a digits"
          required: ["answer"]
"""


async def checks(tool, instance, *answers):
    results = [await tool.execute(instance, {"answer": answer}) for answer in answers]
    return [(result.metrics["score"], result.reward) for result in results]


async def test_a_check_costs_unless_it_improves_and_each_episode_remembers_its_own():
    tool = Gsm8kRewardTool()
    one, two = await tool.create(ground_truth="72"), await tool.create(ground_truth="72")
    assert await checks(tool, one, "71", "72", "72.0") == [(0.0, -0.05), (1.0, 0.0), (1.0, -0.05)]
    assert await checks(tool, one, "71") == [(0.0, -0.05)]
    assert await checks(tool, two, "#### 72") == [(1.0, 0.0)]
    assert await tool.calc_reward(one) == 0.0


async def test_a_fork_remembers_and_goes_its_own_way():
    tool = Gsm8kRewardTool()
    instance = await tool.create(ground_truth=72)
    twin = await tool.fork(instance)
    assert await checks(tool, instance, "72") == [(1.0, 0.0)]
    assert await checks(tool, twin, "72") == [(1.0, 0.0)]
    assert await checks(tool, await tool.fork(instance), "72") == [(1.0, -0.05)]


@pytest.mark.parametrize("truth", ["72", 72, "She has 6*12=<<6*12=72>>72.\n#### 72", ["71", "72"]])
async def test_ground_truths(truth):
    tool = Gsm8kRewardTool()
    assert await checks(tool, await tool.create(ground_truth=truth), "$72", "seventy") == [(1.0, 0.0), (0.0, -0.05)]


async def test_a_tool_file_of_verls_loads_with_the_class_name_changed():
    [tool] = from_config(yaml.safe_load(VERLS_FILE))
    result = await tool.execute(await tool.create(ground_truth="72"), {"answer": "72"})
    assert (tool.name, result.text, result.reward) == ("calc_gsm8k_reward", "The answer '72' earns 1.", 0.0)


async def test_the_penalty_is_an_option():
    tool = Gsm8kRewardTool({"step_penalty": 0.5})
    assert await checks(tool, await tool.create(ground_truth="1"), "2") == [(0.0, -0.5)]


@pytest.mark.parametrize(
    ("truth", "said"), [({}, "needs the ground truth"), ({"ground_truth": {"target": 1}}, "target")]
)
async def test_a_ground_truth_that_is_none_is_the_users_error(truth, said):
    with pytest.raises(ConfigError, match=said):
        await Gsm8kRewardTool().create(**truth)


@pytest.mark.parametrize("config", [{"step_penalty": -1}, {"step_penalty": float("inf")}, {"penalty": 1}])
def test_options_that_are_none_are_refused(config):
    with pytest.raises(ConfigError, match="GSM8K reward"):
        Gsm8kRewardTool(config)


def test_a_schema_without_the_answer_is_refused():
    schema = {"type": "function", "function": {"name": "x", "description": "", "parameters": {"type": "object"}}}
    with pytest.raises(ConfigError, match="'answer'"):
        Gsm8kRewardTool(tool_schema=schema)
