"""The adapters of projects that need not be installed, on objects of the same shape as theirs.

`test_real_projects.py` has the projects themselves.
"""

from __future__ import annotations

import enum
import json
import random
import sys
import threading
import types

import pydantic
import pytest

from toolgym.envs import StopReason, Task, seed_tasks, wrap
from toolgym.envs.foreign.projects import project_of
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout import EnginePlayer, SamplingParams, open_engine
from toolgym.testing import check_env
from toolgym.tools import ToolSchema
from toolgym.tools.errors import ConfigError

TASK = Task(({"role": "user", "content": "What is 6 * 7?"},), ground_truth="42", id="0")


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def class_of(module, name, *bases):
    """A base class as a project has it: known by its module and name."""
    return type(name, bases, {"__module__": module})


def contents(result):
    return [one["content"] for one in result.obs]


def test_no_project_is_imported_to_recognise_its_objects():
    names = {
        "gem": class_of("gem.core", "Env"),
        "skyrl_gym": class_of("skyrl_gym.core", "Env"),
        "aviary": class_of("aviary.env", "Environment"),
        "openenv": class_of("openenv.core.env_client", "EnvClient"),
        "textarena": class_of("textarena.core", "Env"),
        "tau2": class_of("tau2.gym.gym_agent", "AgentGymEnv"),
    }
    before = set(sys.modules)
    for project, base in names.items():
        assert project_of(type("Mine", (base,), {})()) == project
    assert project_of(object()) is None
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & set(names)
    for module, name, told in (
        ("gem.multiagent.multi_agent_env", "MultiAgentEnv", "several agents"),
        ("aviary.env", "TaskDataset", "seed_tasks"),
    ):
        with pytest.raises(ConfigError, match=told):
            wrap(class_of(module, name)())


# ---------------------------------------------------------------------- GEM

GemBase = class_of("gem.core", "Env")


class Dice(GemBase):
    """Draws from the global generator, at `reset` and at each step, as GEM's games do."""

    __module__ = "gem.envs.game_env.dice"

    def reset(self, seed=None):
        random.seed(seed)
        self.sides = random.randint(2, 10**6)
        return f"A die of {self.sides} sides.", {"suffix": "Bet."}

    def step(self, action):
        thrown = random.randint(1, self.sides)
        return f"It shows {thrown}", 0.25, action == "stop", False, {"suffix": "Bet.", "parsed_action": action}


async def test_gem_draws_from_a_generator_of_its_own():
    await check_env(wrap(Dice), ["1", "2", "stop"])
    async with wrap(Dice) as env, wrap(Dice) as other:
        stories = []
        for one in (env, other):
            stories.append([(await one.reset(seed=3))[0]])
        for _ in range(3):
            random.seed(0)  # the program draws too
            for one, story in zip((env, other), stories, strict=True):
                story.append((await one.step("1")).obs)
        assert stories[0] == stories[1]
        assert stories[0][0][0]["content"].endswith("sides.\nBet.")
        assert stories[0][1][0]["content"].endswith("\nBet.")
        assert stories[0][1] != stories[0][2]


def test_gems_wrapper_that_restates_is_refused():
    restating = type("ObservationWrapper", (GemBase,), {"__module__": "gem.wrappers.observation_wrapper"})
    made = restating()
    made.env = Dice()
    with pytest.raises(ConfigError, match="leave that wrapper out"):
        wrap(made)


# ---------------------------------------------------------------------- skyrl-gym


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


# ---------------------------------------------------------------------- aviary


class AviaryMessage(pydantic.BaseModel):
    role: str = "user"
    content: str | None = None

    @property
    def deserialized_content(self):
        return json.loads(self.content) if self.content and self.content.startswith("[{") else self.content


class AviaryFunction(pydantic.BaseModel):
    name: str
    arguments: dict


class AviaryCall(pydantic.BaseModel):
    id: str
    function: AviaryFunction


class AviaryRequest(AviaryMessage):
    role: str = "assistant"
    tool_calls: list[AviaryCall] = []


class AviaryResponse(AviaryMessage):
    role: str = "tool"
    name: str
    tool_call_id: str


class AviaryInfo(pydantic.BaseModel):
    name: str
    description: str
    parameters: dict | None


class AviaryEnv(class_of("aviary.env", "Environment")):
    def __init__(self, number=42):
        self.number, self.closed, self.heard = number, 0, []

    async def reset(self):
        parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        tools = [
            types.SimpleNamespace(info=AviaryInfo(name="code_interpreter", description="Run.", parameters=parameters)),
            types.SimpleNamespace(info=AviaryInfo(name="stop", description="Stop.", parameters=None)),
        ]
        return [AviaryMessage(content=f"Find {self.number}.")], tools

    async def step(self, action):
        self.heard.append(action)
        if not isinstance(action, AviaryRequest):
            return [AviaryMessage(content="Call a tool.")], 0.0, False, False
        calls = action.tool_calls
        answers = [
            AviaryResponse(name=one.function.name, tool_call_id=one.id, content=str(one.function.arguments.get("code")))
            for one in calls
        ]
        if any(one.content == "picture" for one in answers):
            answers[0].content = json.dumps([{"type": "image_url", "image_url": {"url": "data:,"}}])
        stopped = any(one.function.name == "stop" for one in calls)
        return answers[::-1], 0.5 * len(calls), stopped, False

    async def close(self):
        self.closed += 1


@pytest.fixture
def aviary(monkeypatch):
    core = types.ModuleType("aviary.core")
    core.Message, core.ToolCall, core.ToolRequestMessage = AviaryMessage, AviaryCall, AviaryRequest
    monkeypatch.setitem(sys.modules, "aviary", types.ModuleType("aviary"))
    monkeypatch.setitem(sys.modules, "aviary.core", core)


async def test_aviary_gets_calls_and_answers_them_in_order(aviary):
    made = AviaryEnv()
    async with wrap(made) as env:
        obs, info = await env.reset(seed=0)
        assert obs == [{"role": "user", "content": "Find 42."}]
        assert [one["function"]["name"] for one in info["tools"]] == ["code_interpreter", "stop"]
        assert contents(await env.step("hello")) == ["Call a tool."]
        two = call("code_interpreter", code="1") + "<tool_call>{</tool_call>" + call("code_interpreter", code="2")
        result = await env.step("So: " + two)
        assert [one["tool_call_id"] for one in result.obs] == ["call_0", "call_1", "call_2"]
        assert [contents(result)[0], contents(result)[2]] == ["1", "2"]
        assert (result.reward, result.info["metrics"]["bad_calls"]) == (1.0, 1)
        assert made.heard[-1].content == "So:"
        result = await env.step(call("stop"))
        assert (result.reward, result.stop_reason) == (0.5, StopReason.ANSWERED)
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="image_url"):
            await env.step(call("code_interpreter", code="picture"))
    assert made.closed == 1


async def test_aviary_rolls_out_with_exact_tokens(aviary, exact_rollout):
    def make(task):
        return AviaryEnv(int(task.id))

    done = await exact_rollout(
        lambda: wrap(make, tasks=seed_tasks(range(4))), max_new_tokens=16, max_response_tokens=50
    )
    assert {one.messages[0]["content"] for one in done} == {f"Find {n}." for n in range(4)}
    assert all(
        [one["function"]["name"] for one in trajectory.tools] == ["code_interpreter", "stop"] for trajectory in done
    )


# ---------------------------------------------------------------------- OpenEnv


class Action(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    metadata: dict = {}


class CodeInterpreterAction(Action):
    """Run a program."""

    code: str

    @pydantic.field_validator("code")
    @classmethod
    def short(cls, code):
        if len(code) > 20:
            raise ValueError("programs have at most 20 characters")
        return code


class Observation(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    done: bool = False
    reward: float | None = None
    metadata: dict = {}


class ListToolsAction(Action):
    pass


class CallToolAction(Action):
    tool_name: str
    arguments: dict = {}


OpenEnvBase = class_of("openenv.core.env_server.interfaces", "Environment")


class TypedEnv(OpenEnvBase):
    def __init__(self):
        self.steps = self.closed = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(prompt=f"seed {seed}", metadata=kwargs)

    def step(self, action: CodeInterpreterAction, timeout_s=None):
        self.steps += 1
        return Observation(output=action.code, lines=[self.steps], reward=0.5, done=self.steps == 3)

    def close(self):
        self.closed += 1


class MCPEnvironment(OpenEnvBase):
    def reset(self):
        return Observation()

    async def step_async(self, action):
        if isinstance(action, ListToolsAction):
            schema = {"type": "object", "properties": {"code": {"type": "string"}}}
            return Observation(tools=[types.SimpleNamespace(name="run", description=None, input_schema=schema)])
        code = action.arguments.get("code")
        if code == "fail":
            return Observation(result=None, error=types.SimpleNamespace(message="it failed"))
        kind = "image" if code == "picture" else "text"
        return Observation(result={"content": [{"type": kind, "text": code}], "data": code}, error=None, reward=1.0)


class Client(class_of("openenv.core.env_client", "EnvClient")):
    def __init__(self):
        self.closed, self.actions = 0, []

    async def reset(self, **kwargs):
        return types.SimpleNamespace(observation={"text": f"seed {kwargs['seed']}"}, reward=None, done=False)

    async def step(self, action):
        self.actions.append(action)
        return types.SimpleNamespace(observation={"text": "ok"}, reward=2, done=True)

    async def close(self):
        self.closed += 1


@pytest.fixture
def openenv(monkeypatch):
    module = types.ModuleType("openenv.core.env_server.mcp_types")
    module.ListToolsAction, module.CallToolAction = ListToolsAction, CallToolAction
    for name in ("openenv", "openenv.core", "openenv.core.env_server"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


async def test_openenvs_types_of_actions_are_tools():
    made = TypedEnv()
    async with wrap(made, action_type=CodeInterpreterAction) as env:
        obs, info = await env.reset(seed=4, options={"split": "test"})
        assert obs == [{"role": "user", "content": "seed 4"}]
        assert info["env_info"] == {"split": "test"}
        assert info["tools"][0]["function"] == {
            "name": "code_interpreter",
            "description": "Run a program.",
            "parameters": {
                "additionalProperties": False,
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
                "type": "object",
            },
        }
        result = await env.step(call("code_interpreter", code="1" * 21) + call("code_interpreter", code="1"))
        assert "at most 20 characters" in contents(result)[0]
        assert json.loads(contents(result)[1]) == {"output": "1", "lines": [1]}
        assert [one.status for one in result.info["tool_calls"]] == ["error", "ok"]
        result = await env.step(call("code_interpreter", code="1") * 3)
        assert (result.reward, result.done, made.steps) == (1.0, True, 3)
    assert made.closed == 1
    async with wrap(TypedEnv, to_action=lambda turn: CodeInterpreterAction(code=turn.text)) as env:
        await env.reset(seed=0)
        assert env.tool_schemas == []
        assert "at most 20" in contents(await env.step("1" * 21))[0]
        assert (await env.step("1")).reward == 0.5
    with pytest.raises(ConfigError, match="action_type="):
        wrap(Client())


async def test_openenvs_mcp_tools_take_calls(openenv):
    async with wrap(MCPEnvironment, tasks=[TASK]) as env:
        obs, _ = await env.reset(seed=0)
        assert obs == list(TASK.messages)
        result = await env.step(call("run", code="1") + call("run", code="fail"))
        assert (contents(result), result.reward) == (["1", "it failed"], 1.0)
        assert [one.status for one in result.info["tool_calls"]] == ["ok", "error"]
        assert (await env.step("#### 42")).stop_reason is StopReason.ANSWERED
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="type 'image'"):
            await env.step(call("run", code="picture"))
    async with wrap(MCPEnvironment) as env:
        with pytest.raises(ConfigError, match="empty observation"):
            await env.reset(seed=0)


async def test_openenvs_client_is_awaited():
    made = Client()
    async with wrap(made, action_type=ToolSchema("move", "Move.")) as env:
        obs, _ = await env.reset(seed=2**40 + 3)
        assert obs[0]["content"] == "seed 3"
        result = await env.step(call("move"))
        assert (result.reward, result.done, made.actions) == (2.0, True, [{}])
    assert made.closed == 1


# ---------------------------------------------------------------------- TextArena


class Kind(enum.Enum):
    PROMPT = enum.auto()
    PLAYER_ACTION = enum.auto()
    GAME_MESSAGE = enum.auto()


class Nim(class_of("textarena.core", "Env")):
    """Players take turns to take from a heap; the one that takes the last wins."""

    def __init__(self, players=2):
        self.wanted = players

    def reset(self, num_players, seed=None):
        if num_players != self.wanted:
            raise AssertionError(f"The number of players has to be {self.wanted}")
        random.seed(seed)
        self.heap, self.rewards = random.randint(10, 99), None
        self.state = types.SimpleNamespace(current_player_id=0, role_mapping={0: "Ann", 1: "Bob"})
        self.news = {n: [(-1, f"A heap of {self.heap}.", Kind.PROMPT)] for n in range(num_players)}

    def get_observation(self):
        player = self.state.current_player_id
        news, self.news[player] = self.news[player], []
        return player, news

    def step(self, action):
        player = self.state.current_player_id
        self.heap -= 50 if action == "much" else 1
        for news in self.news.values():
            news += [(player, action, Kind.PLAYER_ACTION), (-1, f"{self.heap} left.", Kind.GAME_MESSAGE)]
        if self.heap <= 0:
            self.rewards = {n: 1 if n == player else -1 for n in self.news} if action != "odd" else None
            return True, {}
        self.state.current_player_id = (player + 1) % self.wanted
        return False, {}

    def close(self):
        return self.rewards, {n: {"turn_count": 9} for n in self.news}


class LLMObservationWrapper(class_of("textarena.core", "Env")):
    """Tells all of the past, as TextArena's agents read it."""

    def __init__(self, env):
        self.env, self.past = env, {}

    def __getattr__(self, name):
        return getattr(self.__dict__["env"], name)

    def get_observation(self):
        player, news = self.env.get_observation()
        self.past[player] = self.past.get(player, []) + [text for _, text, _ in news]
        return player, " / ".join(self.past[player])


async def test_textarenas_policy_reads_what_is_new():
    async with wrap(LLMObservationWrapper(Nim(1))) as env:
        obs, _ = await env.reset(seed=1)
        heap = env.foreign.heap
        assert contents_of(obs) == [f"[GAME] A heap of {heap}."]
        assert contents(await env.step("one")) == [f"[GAME] {heap - 1} left."]
        env.foreign.heap = 50
        result = await env.step("much")
        assert (result.reward, result.done, result.info["metrics"]["env/turn_count"]) == (1.0, True, 9.0)


def contents_of(messages):
    return [one["content"] for one in messages]


@pytest.mark.parametrize("kind", ["plain", "async", "by number"])
async def test_textarenas_other_players_are_played(kind):
    seen = []

    def plain(text):
        seen.append((text, threading.current_thread() is threading.main_thread()))
        return "much" if len(seen) == 2 else "one"

    async def later(text):
        return plain(text)

    opponents = {"plain": plain, "async": later, "by number": {0: plain}}[kind]
    async with wrap(lambda: LLMObservationWrapper(Nim()), players=2, player=1, opponents=opponents) as env:
        obs, _ = await env.reset(seed=1)
        heap = env.foreign.heap + 1
        assert contents_of(obs) == [f"[GAME] A heap of {heap}.\n[Ann] one\n[GAME] {heap - 1} left."]
        result = await env.step("one")
        assert seen[1][0] == f"A heap of {heap}. / one / {heap - 1} left. / one / {heap - 2} left."
        assert not any(on_loop for _, on_loop in seen) or kind == "async"
        while not result.done:
            result = await env.step("one")
        assert result.reward in (1.0, -1.0)


async def test_textarenas_mistakes():
    with pytest.raises(ConfigError, match="nothing plays player 1"):
        wrap(Nim, players=2)
    with pytest.raises(ConfigError, match="nothing plays player 2"):
        wrap(Nim, players=3, opponents={1: str})
    with pytest.raises(ConfigError, match="player must be one of the 2 players"):
        wrap(Nim, players=2, player=2, opponents=str)
    with pytest.raises(ConfigError, match="has to be 2; give players="):
        await wrap(Nim).reset(seed=0)
    async with wrap(Nim(), players=2, opponents=lambda text: 3) as env:
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="must return a text, got 3"):
            await env.step("one")
    async with wrap(Nim(1)) as env:
        await env.reset(seed=0)
        env.foreign.heap = 1
        with pytest.raises(EpisodeFailedError, match="no reward: None"):
            await env.step("odd")


# ---------------------------------------------------------------------- tau2-bench


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


async def test_an_engine_is_an_opponent():
    async with open_engine("tiny") as engine:
        opponent = EnginePlayer(engine, sampling=SamplingParams(max_new_tokens=4), system_prompt="Play.")
        assert isinstance(await opponent("one"), str)
        async with wrap(Nim(), players=2, player=1, opponents=opponent) as env:
            obs, _ = await env.reset(seed=1)
            assert "[Ann]" in obs[0]["content"]
        with pytest.raises(EpisodeFailedError, match="its engine's context") as failed:
            await opponent("word " * 10_000)
        assert failed.value.stop_reason is StopReason.ENGINE_FAILED
    async with wrap(Nim(), players=2, player=1, opponents=opponent) as env:
        with pytest.raises(EpisodeFailedError, match="closed") as failed:
            await env.reset(seed=1)
    assert failed.value.stop_reason is StopReason.ENGINE_FAILED
