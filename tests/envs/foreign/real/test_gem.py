"""The real GEM: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import random

import pytest

from toolgym.envs import StopReason, wrap
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError


@pytest.fixture
def gem():
    return pytest.importorskip("gem")


async def test_gem_keeps_the_contract_and_begins_with_the_seed(gem):
    await check_env(wrap(lambda: gem.make("game:GuessTheNumber-v0-easy")), [r"\boxed{3}", r"\boxed{4}"])
    ours, theirs = wrap(lambda: gem.make("game:Sudoku-v0-easy")), gem.make("game:Sudoku-v0-easy")
    async with ours:
        await ours.reset(seed=10)
        state = random.getstate()
        obs, _ = await ours.reset(seed=11)
        assert random.getstate() == state  # the program's own generator is left alone
        first, info = theirs.reset(seed=11)
        assert first.strip() in obs[0]["content"]
        assert obs[0]["content"].endswith(info["suffix"])


async def test_gem_rolls_out(gem, exact_rollout):
    done = await exact_rollout(lambda: wrap(gem.make("game:GuessTheNumber-v0-easy")))
    assert {one.stop_reason for one in done} <= {StopReason.ANSWERED, StopReason.MAX_TURNS, StopReason.BUDGET}
    assert all(one.reward != 0 or one.stop_reason is not StopReason.ANSWERED for one in done)


async def test_gems_tools_are_texts(gem, exact_rollout, tmp_path, monkeypatch):
    from gem.tools.python_code_tool import PythonCodeTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    monkeypatch.chdir(tmp_path)  # GEM makes folders where it is
    make = lambda: ToolEnvWrapper(gem.make("game:GuessTheNumber-v0-easy"), tools=[PythonCodeTool(timeout=60)])  # noqa: E731
    async with wrap(make) as env:
        await env.reset(seed=0)
        result = await env.step("<python>print(6 * 7)</python>")
        assert "42" in result.obs[0]["content"]
    await exact_rollout(lambda: wrap(make))


async def test_gems_tasks_of_reasoning_gym(gem, exact_rollout):
    done = await exact_rollout(lambda: wrap(lambda: gem.make("rg:leg_counting")))
    assert {one.stop_reason for one in done} == {StopReason.ANSWERED}  # GEM says that they are both ended and cut
    assert [one.messages[0] for one in done][::2] == [one.messages[0] for one in done][1::2]


def test_gems_wrapper_that_restates_is_refused(gem):
    from gem.wrappers.observation_wrapper import ObservationWrapper

    with pytest.raises(ConfigError, match="ObservationWrapper"):
        wrap(ObservationWrapper(gem.make("game:GuessTheNumber-v0-easy"), include_chat_template=False))
