"""Our envs in the real GEM: its `make`, its vector env, its wrappers."""

from __future__ import annotations

import json
import sys
import types
from functools import partial

import pytest

from tests.rollout.adapters.page import program
from toolgym.envs import StopReason, ToolEnv
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools import tool
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EpisodeError, MissingExtraError, SandboxError

pytest.importorskip("gem", reason="GEM is not installed")

import gem
from gem.utils.constants import TERMINAL_STATE
from gem.wrappers.observation_wrapper import ObservationWrapper

import toolgym.rollout.adapters.gem as adapter

ID = "toolgym:CodeInterpreter-v0"
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'


@tool
def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: one of them.
        b: the other one.
    """
    return str(a * b)


OWN = {"own_tools": False, "tools": [multiply]}


@pytest.fixture
def made():
    open_envs = []

    def make(**kwargs):
        open_envs.append(gem.make(ID, **OWN, **kwargs))
        return open_envs[-1]

    yield make
    for env in open_envs:
        env.close()


def test_an_episode_in_texts(made):
    env = made(max_turns=3)
    seen, info = env.reset(seed=3)
    assert info == {"suffix": ""}
    schema = json.loads(seen.splitlines()[-3])
    assert schema["name"] == "multiply"
    assert "between <tool_call> and </tool_call>" in seen
    assert env.reset(seed=3)[0] == seen != env.reset(seed=4)[0]
    obs, reward, terminated, truncated, info = env.step(action=CALL)
    assert (obs, reward, terminated, truncated) == ("42", 0.0, False, False)
    assert set(info) == {"suffix", "metrics", "metrics_agg_mode", "use_tool"}
    obs, _, terminated, truncated, info = env.step("#### 42")
    assert (obs, terminated, truncated, info["stop_reason"]) == (TERMINAL_STATE, True, False, "answered")
    assert all(isinstance(one, int | float) for one in info["metrics"].values())


def test_the_last_turn_is_terminated_and_truncated(made):
    env = made(max_turns=1)
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step(CALL)
    assert (terminated, truncated, info["stop_reason"]) == (True, True, "max_turns")


def test_a_turn_that_was_decoded_with_its_special_tokens(made):
    env = made(end_of_turn="<|im_end|>", instructions="")
    env.reset(seed=0)
    answer = str(env._episode.env.task.ground_truth)
    assert env.step(f"#### {answer}<|im_end|><|endoftext|>")[1] == 1.0
    assert "<tool_call>" not in env.reset(seed=0)[0]


def test_its_vector_env_and_its_wrapper(made, tokenizer):
    wrapper = partial(ObservationWrapper, tokenizer=tokenizer)
    envs = gem.make_vec([ID, ID], wrappers=[wrapper], vec_kwargs=[{"seed": 5}, {"seed": 6}], **OWN)
    try:
        first, _ = envs.reset()
        task = made(seed=5).reset()[0]
        assert first[0] == f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"
        assert task not in first[1]
        seen, rewards, terminated, _, _ = envs.step({0: CALL, 1: "#### 1"})
        assert seen[0].startswith(f"{first[0]}{CALL}<|im_end|>\n")
        assert seen[0].endswith("<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
        assert (rewards.tolist(), terminated.tolist()) == ([0.0, 0.0], [False, True])
    finally:
        for env in envs.envs:
            env.unwrapped.close()


def test_the_program_of_the_page():
    exec(program("GEM and ROLL"), names := {})
    assert (names["terminated"], names["info"]["use_tool"]) == (False, True)


def test_what_breaks_is_an_error(made, monkeypatch):
    env = made()
    env.reset(seed=0)

    async def step(self, action):
        raise EpisodeFailedError(StopReason.SANDBOX_FAILED, "it is gone")

    monkeypatch.setattr(ToolEnv, "step", step)
    with pytest.raises(EpisodeFailedError, match="it is gone"):
        env.step("#### 1")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no server"), StopReason.ENV_FAILED),
        (SandboxError("gone"), StopReason.SANDBOX_FAILED),
        (DeadlineError(3, stuck=False), StopReason.ENV_TIMEOUT),
    ],
)
def test_whatever_an_env_raises_is_a_failed_episode(made, monkeypatch, error, reason):
    async def raising(self, *args, **kwargs):
        raise error

    env = made()
    with pytest.raises(EpisodeError):
        env.step("#### 1")  # before reset, which is the caller's mistake
    env.reset(seed=0)
    monkeypatch.setattr(ToolEnv, "step", raising)
    with pytest.raises(EpisodeFailedError, match=str(error)) as failed:
        env.step("#### 1")
    assert failed.value.stop_reason is reason
    monkeypatch.setattr(ToolEnv, "reset", raising)
    with pytest.raises(EpisodeFailedError, match=str(error)):
        env.reset(seed=0)


def test_a_reward_that_is_no_number_is_a_failed_episode(made, monkeypatch):
    env = made()
    env.reset(seed=0)
    step = ToolEnv.step

    async def unbounded(self, action):
        return (await step(self, action))._replace(reward=float("nan"))

    monkeypatch.setattr(ToolEnv, "step", unbounded)
    with pytest.raises(EpisodeFailedError, match="a reward that is not finite: nan"):
        env.step("#### 1")


def test_instructions_go_with_the_parser(made):
    with pytest.raises(ConfigError, match=r"instructions=\.\.\."):
        made(parser="mistral")
    assert made(parser="mistral", instructions="Call tools as Mistral does.").reset(seed=0)[0].endswith("Mistral does.")


def test_further_ids_are_registered_later(registry):
    registry.register("Further-v0", "toolgym.envs.library.code_interpreter:CodeInterpreterEnv")
    with pytest.raises(ValueError, match="not found"):
        gem.make("toolgym:Further-v0")
    adapter.register_all()
    gem.make("toolgym:Further-v0").close()
    adapter.ENV_REGISTRY.pop("toolgym:Further-v0")


def test_rolls_env_managers_by_our_name(monkeypatch):
    manager = type("TrajEnvManager", (), {})
    name = "roll.pipeline.agentic.env_manager.traj_env_manager"
    for parent in ("roll", "roll.pipeline", "roll.pipeline.agentic", "roll.pipeline.agentic.env_manager"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    module = types.ModuleType(name)
    module.TrajEnvManager = manager
    monkeypatch.setitem(sys.modules, name, module)
    assert adapter.TrajEnvManager is manager
    with pytest.raises(AttributeError, match="no attribute 'OtherManager'"):
        _ = adapter.OtherManager


def test_without_gem(monkeypatch):
    monkeypatch.setitem(sys.modules, "gem", None)
    monkeypatch.delitem(sys.modules, "toolgym.rollout.adapters.gem")
    with pytest.raises(MissingExtraError, match="needs the package 'gem-llm"):
        import toolgym.rollout.adapters.gem  # noqa: F401
