"""`wrap` on objects shaped like those of tau2-bench, which `real/test_tau2.py` has for real."""

from __future__ import annotations

import json
import types

import pytest

from tests.actors import call
from tests.envs.foreign.shapes import class_of, contents
from toolgym.envs import StopReason, wrap
from toolgym.envs.types import EpisodeFailedError


class Tau2Env(class_of("tau2.gym.gym_agent", "AgentGymEnv")):
    def __init__(self, ends="user_stop"):
        self.ends, self.actions = ends, []
        self.tools = [types.SimpleNamespace(openai_schema={"type": "function", "function": {"name": "refund"}})]

    def reset(self, seed=None, options=None):
        return "user: I want my money back.", self.info({})

    def info(self, record):
        return {"tools": self.tools, "policy": "Be kind.", "simulation_run": json.dumps(record)}

    def step(self, action):
        self.actions.append(action)
        if action == "Bye.":
            record = {"termination_reason": self.ends} if self.ends else {}
            return "", 1.0, True, False, self.info(record)
        return ("tool: done\nat once" if action.startswith("{") else "user: Well?"), 0.0, False, False, self.info({})


async def test_tau2_takes_calls_and_talks():
    made = Tau2Env()
    async with wrap(made) as env:
        obs, info = await env.reset(seed=0)
        assert obs == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "I want my money back."},
        ]
        assert info["tools"][0]["function"]["name"] == "refund"
        result = await env.step(call("refund"))
        assert (result.obs[0]["role"], contents(result)) == ("tool", ["done\nat once"])
        assert contents(await env.step("<think>Hm.</think>It is done.")) == ["Well?"]
        result = await env.step("Bye.")
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)
        assert made.actions[1:] == ["It is done.", "Bye."]
        assert json.loads(made.actions[0]) == {"id": "call_0", "name": "refund", "arguments": {}}


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ("max_steps", StopReason.MAX_TURNS),
        ("too_many_errors", StopReason.TOO_MANY_BAD_CALLS),
        ("user_error", StopReason.ENV_FAILED),
        ("timeout", StopReason.ENV_TIMEOUT),
        (None, StopReason.ENV_FAILED),
    ],
)
async def test_tau2s_broken_simulations_are_no_reward_of_0(ends, reason):
    async with wrap(Tau2Env(ends)) as env:
        await env.reset(seed=0)
        if reason.failed:
            with pytest.raises(EpisodeFailedError) as failed:
                await env.step("Bye.")
            assert failed.value.stop_reason is reason
        else:
            assert (await env.step("Bye.")).stop_reason is reason
