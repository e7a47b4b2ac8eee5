"""Each project's own envs, rolled out by the runner with the tiny policy; skipped where a project is not installed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading

import pytest

from toolgym.envs import ArithmeticTasks, StopReason, Task, seed_tasks, wrap
from toolgym.envs.types import EpisodeFailedError
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError

SUMS = ArithmeticTasks(split="test").take(4, seed=0)
PROMPTS = [Task(task.messages, ground_truth=task.ground_truth, id=str(n)) for n, task in enumerate(SUMS)]
CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'


def printed(code):
    """What a program of the tiny policy prints: the value of one expression."""
    try:
        return str(eval(code.strip().removeprefix("print"), {"__builtins__": {}}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------- GEM


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
    make = lambda: ToolEnvWrapper(gem.make("game:GuessTheNumber-v0-easy"), tools=[PythonCodeTool(timeout=5)])  # noqa: E731
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


# ---------------------------------------------------------------------- skyrl-gym


@pytest.fixture
def skyrl_gym():
    return pytest.importorskip("skyrl_gym")


def extras(task, **more):
    return {"reward_spec": {"ground_truth": str(task.ground_truth), "method": "rule"}, **more}


async def test_skyrl_gym_scores_and_replies(skyrl_gym):
    make = lambda task: skyrl_gym.make("gsm8k_multi_turn", extras=extras(task, max_turns=3))  # noqa: E731
    async with wrap(make, tasks=PROMPTS) as env:
        await env.reset(options={"task": PROMPTS[0]})
        result = await env.step("I think it is #### 1")
        assert "#### ANSWER" in result.obs[0]["content"]
        result = await env.step(f"#### {PROMPTS[0].ground_truth}")
        assert (result.reward, result.done, result.stop_reason) == (1.0, True, StopReason.ANSWERED)
        assert result.info["metrics"]["env/steps"] == 2
        await env.reset(options={"task": PROMPTS[0]})  # another object
        assert not (await env.step("#### 1")).done


async def test_skyrl_gym_rolls_out(skyrl_gym, exact_rollout):
    make = lambda task: skyrl_gym.make("gsm8k_multi_turn", extras=extras(task, max_turns=3))  # noqa: E731
    done = await exact_rollout(lambda: wrap(make, tasks=PROMPTS))
    assert {one.task_id for one in done} == {task.id for task in PROMPTS}


async def test_skyrl_gyms_tool_groups_are_tools(skyrl_gym, exact_rollout):
    def write_call(call):
        return f"<tool><python>{call.arguments['code']}</python></tool>"

    def make(task):
        return skyrl_gym.make("searchcode", extras=extras(task, max_turns=4))

    async with wrap(make, tasks=PROMPTS, write_call=write_call) as env:
        _, info = await env.reset(options={"task": PROMPTS[0]})
        assert [one["function"]["name"] for one in info["tools"]] == ["search", "python"]
        result = await env.step(CALL.replace("code_interpreter", "python"))
        assert result.obs == [{"role": "tool", "content": "42", "tool_call_id": "call_0", "name": "python"}]
        result = await env.step(f"<solution>#### {PROMPTS[0].ground_truth}</solution>")
        assert (result.reward, result.done) == (1.0, True)
    await exact_rollout(lambda: wrap(make, tasks=PROMPTS, write_call=write_call))


# ---------------------------------------------------------------------- aviary


@pytest.fixture
def aviary_env():
    core = pytest.importorskip("aviary.core")

    class SumsEnv(core.Environment):
        def __init__(self, task):
            self.task, self.closed = task, 0

        async def reset(self):
            def code_interpreter(code: str) -> str:
                """Run a program.

                Args:
                    code: the program
                """
                return printed(code)

            self.tools = [core.Tool.from_function(code_interpreter)]
            self.state = None
            return [core.Message(role=one["role"], content=one["content"]) for one in self.task.messages], self.tools

        async def step(self, action):
            if not isinstance(action, core.ToolRequestMessage):
                return [], float(action.content.strip() == f"#### {self.task.ground_truth}"), True, False
            return await self.exec_tool_calls(action, handle_tool_exc=True), 0.0, False, False

        async def close(self):
            self.closed += 1

    return SumsEnv


async def test_aviary_runs_the_tools(aviary_env):
    made = aviary_env(PROMPTS[0])
    async with wrap(made) as env:
        obs, info = await env.reset(seed=0)
        assert obs == list(PROMPTS[0].messages)
        assert info["tools"][0]["function"]["parameters"]["required"] == ["code"]
        result = await env.step(CALL + CALL.replace("6 * 7", "1 + 1") + CALL.replace("code_interpreter", "no"))
        assert [one["content"] for one in result.obs[:2]] == ["42", "2"]
        assert "Unknown tool 'no'" in result.obs[2]["content"]
        assert [one.status for one in result.info["tool_calls"]] == ["ok", "ok", "unknown_tool"]
        result = await env.step(f"#### {PROMPTS[0].ground_truth}")
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)
    assert made.closed == 1


async def test_aviary_rolls_out(aviary_env, exact_rollout):
    make = lambda task: aviary_env(PROMPTS[int(task.id)])  # noqa: E731
    done = await exact_rollout(lambda: wrap(make, tasks=seed_tasks(range(4))))
    assert any(record.status == "ok" for one in done for record in one.tool_calls)
    assert {one.reward for one in done} <= {0.0, 1.0}


async def test_aviarys_own_env(aviary_env):
    from aviary.core import DummyEnv

    async with wrap(DummyEnv()) as env:
        await env.reset(seed=0)
        result = await env.step("hello")
        assert "No tool calls received" in result.obs[0]["content"]
        result = await env.step('<tool_call>{"name": "print_story", "arguments": {"story": "a"}}</tool_call>')
        assert (result.reward, result.done) == (1.0, True)


# ---------------------------------------------------------------------- OpenEnv


@pytest.fixture
def openenv_classes():
    interfaces = pytest.importorskip("openenv.core.env_server.interfaces")
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.types import Action, Observation, State

    class ToolsEnv(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            server = FastMCP("sums")

            @server.tool
            def code_interpreter(code: str) -> str:
                """Run a program."""
                return printed(code)

            super().__init__(server)

        def reset(self, seed=None, episode_id=None, **kwargs):
            return Observation(metadata={"seed": seed})

        def _step_impl(self, action, timeout_s=None, **kwargs):
            return Observation()

        @property
        def state(self):
            return State()

    class CodeInterpreterAction(Action):
        """Run a program."""

        code: str

    class CodeObservation(Observation):
        output: str = ""

    class TypedEnv(interfaces.Environment[CodeInterpreterAction, CodeObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.steps = 0

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.steps = 0
            task = PROMPTS[(seed or 0) % 4]
            return CodeObservation(output=task.messages[-1]["content"])

        def step(self, action, timeout_s=None, **kwargs):
            self.steps += 1
            return CodeObservation(output=printed(action.code), reward=0.5, done=self.steps == 3)

        @property
        def state(self):
            return State(step_count=self.steps)

    return {"tools": ToolsEnv, "typed": TypedEnv, "action": CodeInterpreterAction, "observation": CodeObservation}


async def test_openenvs_mcp_tools(openenv_classes, exact_rollout):
    async with wrap(openenv_classes["tools"], tasks=PROMPTS) as env:
        await env.reset(options={"task": PROMPTS[0]})
        assert [one.name for one in env.tool_schemas] == ["code_interpreter"]
        result = await env.step(CALL)
        assert [one["content"] for one in result.obs] == ["42"]
        assert (await env.step("#### 42")).stop_reason is StopReason.ANSWERED
    done = await exact_rollout(lambda: wrap(openenv_classes["tools"], tasks=PROMPTS))
    assert any(record.status == "ok" for one in done for record in one.tool_calls)


async def test_openenvs_typed_actions(openenv_classes, exact_rollout):
    async with wrap(openenv_classes["typed"]) as env:
        obs, _ = await env.reset(seed=1)
        assert obs == [PROMPTS[1].messages[-1]]
        result = await env.step(CALL + CALL)
        assert ([one["content"] for one in result.obs], result.reward) == (["42", "42"], 1.0)
        result = await env.step(CALL + CALL)
        assert (result.reward, result.done) == (0.5, True)
    done = await exact_rollout(lambda: wrap(openenv_classes["typed"]))
    assert any(one.reward >= 0.5 for one in done)


@contextlib.contextmanager
def served(app):
    """A server of the app in a thread; gives its address."""
    import uvicorn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(600):
            if server.started:
                break
            threading.Event().wait(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


async def test_openenvs_clients(openenv_classes, exact_rollout):
    from openenv.core import GenericEnvClient
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.mcp_client import MCPToolClient

    from toolgym.tools import ToolSchema

    kinds = openenv_classes
    typed = create_fastapi_app(kinds["typed"], kinds["action"], kinds["observation"], max_concurrent_envs=16)
    with served(typed) as url:
        parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        schema = ToolSchema("code_interpreter", "Run a program.", parameters)
        async with wrap(lambda: GenericEnvClient(base_url=url), action_type=schema) as env:
            obs, _ = await env.reset(seed=1)
            assert obs == [PROMPTS[1].messages[-1]]
            result = await env.step(CALL)
            assert (result.obs[0]["content"], result.reward) == ("42", 0.5)
        async with wrap(lambda: GenericEnvClient(base_url=url).sync(), action_type=schema) as env:
            await env.reset(seed=1)
            assert (await env.step(CALL)).obs[0]["content"] == "42"
        await exact_rollout(lambda: wrap(lambda: GenericEnvClient(base_url=url), action_type=schema))
    tools = create_fastapi_app(kinds["tools"], CallToolAction, CallToolObservation, max_concurrent_envs=16)
    with served(tools) as url:
        async with wrap(lambda: MCPToolClient(base_url=url), tasks=PROMPTS) as env:
            await env.reset(options={"task": PROMPTS[0]})
            assert (await env.step(CALL)).obs[0]["content"] == "42"
        await exact_rollout(lambda: wrap(lambda: MCPToolClient(base_url=url), tasks=PROMPTS))


# ---------------------------------------------------------------------- TextArena


@pytest.fixture
def textarena():
    return pytest.importorskip("textarena")


async def test_textarena_shows_what_is_new(textarena):
    async with wrap(lambda: textarena.make("GuessTheNumber-v0")) as env:
        obs, _ = await env.reset(seed=1)
        assert "Guess The Number" in obs[0]["content"]
        number = env.foreign.state.game_state["game_number"]
        result = await env.step(f"[{number % 20 + 1}]")
        assert "The target number is" in result.obs[0]["content"]
        assert "Guess The Number" not in result.obs[0]["content"]
        assert f"[{number % 20 + 1}]" not in result.obs[0]["content"]
        result = await env.step(f"[{number}]")
        assert (result.reward, result.done) == (1.0, True)
    await check_env(wrap(lambda: textarena.make("GuessTheNumber-v0")), ["[3]", "[4]", "[5]", "none", "none"])


async def test_textarena_rolls_out(textarena, exact_rollout):
    await exact_rollout(lambda: wrap(textarena.make("GuessTheNumber-v0")))


async def test_textarenas_other_players(textarena, exact_rollout):
    seen = []

    async def opponent(text):
        seen.append(text)
        await asyncio.sleep(0)
        return text.rpartition("Available Moves: ")[2].split(",")[0].strip("' []").join("[]")

    make = lambda: textarena.make("TicTacToe-v0")  # noqa: E731
    async with wrap(make, players=2, player=1, opponents=opponent) as env:
        obs, _ = await env.reset(seed=0)  # the opponent has moved
        assert seen
        assert obs[0]["content"]
        result = await env.step("[4]")
        assert not result.done
    with pytest.raises(ConfigError, match="opponents="):
        wrap(make, players=2)
    async with wrap(make) as env:
        with pytest.raises(ConfigError, match="give players="):
            await env.reset(seed=0)
    await exact_rollout(lambda: wrap(make, players=2, opponents=opponent))


# ---------------------------------------------------------------------- tau2-bench


@pytest.fixture
def tau2():
    gym_agent = pytest.importorskip("tau2.gym.gym_agent")
    pytest.importorskip("tau2.registry")
    return gym_agent


async def test_tau2s_solo_tasks(tau2, exact_rollout):
    make = lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", solo_mode=True)  # noqa: E731
    async with wrap(make) as env:
        obs, _ = await env.reset(seed=0)
        assert obs[0]["role"] == "system"
        assert "create_task" in [one.name for one in env.tool_schemas]
        call = '{"name": "create_task", "arguments": {"user_id": "user_1", "title": "Important Meeting"}}'
        result = await env.step(f"<tool_call>{call}</tool_call>")
        assert result.obs[0]["role"] == "tool"
        assert "Important Meeting" in result.obs[0]["content"]
        result = await env.step('<tool_call>{"name": "done", "arguments": {}}</tool_call>')
        assert (result.done, result.reward) == (True, 1.0)
    await exact_rollout(lambda: wrap(make))


async def test_tau2s_users_reply_and_its_threads_end(tau2):
    model = {"user_llm": "gpt-4o", "user_llm_args": {"mock_response": "Please create the task Important Meeting."}}
    async with wrap(lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        obs, _ = await env.reset(seed=0)
        assert obs[1] == {"role": "user", "content": "Please create the task Important Meeting."}
        result = await env.step("<think>Who is it?</think>What do you want?")
        assert result.obs == [obs[1]]
        simulations = [one for one in threading.enumerate() if "_run_orchestrator" in one.name]
        assert simulations
    for one in simulations:
        one.join(20)
        assert not one.is_alive()
    model["user_llm_args"] = {"mock_response": RuntimeError("no model"), "num_retries": 0}
    async with wrap(lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        with pytest.raises(EpisodeFailedError, match="ended at once"):
            await env.reset(seed=0)


async def test_tau2s_policy_may_be_the_user(tau2):
    model = {"agent_llm": "gpt-4o", "agent_llm_args": {"mock_response": "Done!"}}
    async with wrap(lambda: tau2.UserGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        obs, _ = await env.reset(seed=0)
        assert "Important Meeting" in obs[0]["content"]
        assert obs[1]["content"] == "Hi! How can I help you today?"
        assert (await env.step("Please make a task.")).obs[0]["content"] == "Done!"
