"""`wrap` on objects shaped like those of skyrl-gym, which `real/test_skyrl_gym.py` has for real."""

from __future__ import annotations

import pytest

from tests.actors import call
from tests.envs.foreign.shapes import TASK, class_of, contents
from toolgym.envs import StopReason, wrap
from toolgym.tools.errors import ConfigError


class SkyRLTool:
    def __init__(self, func):
        self.func = func


class PythonGroup:
    @SkyRLTool
    def python(self, code: str) -> str:
        """Run a program.

        Args:
            code: the program
        """

    def get_tool_names(self):
        return ["python"]


class SkyRLEnv(class_of("skyrl_gym.core", "Env")):
    def __init__(self, answer):
        self.answer, self.turns, self.closed, self.tool_groups = answer, 0, 0, [PythonGroup()]

    def init(self, prompt):
        return [{"role": "system", "content": "Solve it."}, *prompt], {"rows": 1}

    def step(self, action):
        self.turns += 1
        done = "<answer>" in action
        said = "" if action.endswith("<python></python>") else action
        return {
            "observations": [{"role": "user", "content": f"saw {action}"}] if said and not done else [],
            "reward": float(f"<answer>{self.answer}" in action),
            "done": done,
            "metadata": {"tool": "python"},
            "postprocessed_action": action.strip(),
        }

    def get_metrics(self):
        return {"steps": self.turns}

    def close(self):
        self.closed += 1


async def test_skyrl_gym_plays_an_object_each_episode():
    made = []

    def make(task):
        made.append(SkyRLEnv(task.ground_truth))
        return made[-1]

    async with wrap(make, tasks=[TASK]) as env:
        obs, info = await env.reset(seed=0)
        assert [one["content"] for one in obs] == ["Solve it.", "What is 6 * 7?"]
        assert (info["env_info"], env.tool_schemas) == ({"rows": 1}, [])
        assert contents(await env.step(" 1 ")) == ["saw  1 "]
        result = await env.step("<answer>42")
        assert (result.reward, result.done, result.stop_reason) == (1.0, True, StopReason.ANSWERED)
        assert result.info["metrics"]["env/steps"] == 2.0
        assert result.info["env_info"]["postprocessed_action"] == "<answer>42"
        await env.reset(seed=0)
    assert [one.closed for one in made] == [1, 1]
    with pytest.raises(ConfigError, match="plays one episode"):
        wrap(SkyRLEnv("42"))
    with pytest.raises(ConfigError, match="begins with the prompt of a row"):
        await wrap(lambda: SkyRLEnv("42")).reset(seed=0)


async def test_skyrl_gyms_tools_take_calls():
    def write_call(one):
        return f"<python>{one.arguments['code']}</python>"

    async with wrap(lambda: SkyRLEnv("42"), tasks=[TASK], write_call=write_call) as env:
        _, info = await env.reset(seed=0)
        function = info["tools"][0]["function"]
        assert (function["name"], function["description"]) == ("python", "Run a program.")
        assert function["parameters"]["properties"] == {"code": {"type": "string", "description": "the program"}}
        result = await env.step("I run it." + call("python", code="1") + call("python", code="2"))
        assert contents(result)[0] == "saw I run it.<python>1</python>"
        assert "takes one call in a turn" in contents(result)[1]
        assert [one.status for one in result.info["tool_calls"]] == ["ok", "too_many_calls"]
        result = await env.step(call("python", code=""))
        assert contents(result) == ["[no observation]"]
        result = await env.step(call("python"))  # the env is not asked
        assert "Missing required argument 'code'" in contents(result)[0]
        assert env.foreign.turns == 2
        assert (await env.step("<answer>42")).reward == 1.0
