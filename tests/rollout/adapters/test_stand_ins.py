"""Four adapters where their trainers are not installed, against the names that they use, in shape.

With the trainers' own packages: `test_tinker.py`, `test_torchrl.py`, `test_tunix.py`, `test_gem.py`.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import sys
import types

import numpy as np
import pytest
import torch

from tests.rollout.adapters.slime_router_stand_in import call_then_answer
from toolgym.envs import ArithmeticTasks
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import Trajectory, make_batch, tiny_policy_path
from toolgym.rollout.trajectory import Segment, TokenSequence

PACKAGE = "toolgym.rollout.adapters"


@pytest.fixture
def stand_in(monkeypatch):
    """Makes stand-ins of a trainer's modules, and gives the adapter's module that is loaded with them."""
    before = {}

    def load(adapter, **modules):
        for name in [one for one in sys.modules if one.startswith(f"{PACKAGE}.{adapter}")]:
            before[name] = sys.modules.pop(name)
        for name, content in modules.items():
            module = types.ModuleType(name.replace("__", "."))
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return importlib.import_module(f"{PACKAGE}.{adapter}")

    yield load
    for name in [one for one in sys.modules if one.startswith(f"{PACKAGE}.")]:
        if name.partition(f"{PACKAGE}.")[2].partition(".")[0] in ("tinker", "torchrl", "tunix", "gem"):
            del sys.modules[name]
    sys.modules.update(before)


def policy(*ids):
    return Segment.policy(ids, [-0.5] * len(ids), ["3"] * len(ids))


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]), policy(4))),), reward=1.0,
    stop_reason=StopReason.ANSWERED,
)  # fmt: skip
SHORT = dataclasses.replace(ONE, id="short", sample_index=1, sequences=(TokenSequence(np.array([5]), (policy(3),)),))


class Reasons(enum.StrEnum):
    """tinker-cookbook's."""

    COMPLETED = "completed"
    PARSE_ERROR = "parse_error"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"


class ModelInput(list):
    """Tinker's, of ids alone."""

    from_ints = classmethod(lambda cls, ids: cls(ids))
    empty = classmethod(lambda cls: cls())


def cookbook():
    def made(name, *fields):
        return dataclasses.make_dataclass(name, [(one, object, dataclasses.field(default=None)) for one in fields])

    bases = {name: type(name, (), {}) for name in ("Env", "EnvGroupBuilder", "RLDataset", "RLDatasetBuilder")}
    step = made("StepResult", "reward", "episode_done", "next_observation", "next_stop_condition", "metrics")
    kinds = types.SimpleNamespace(**bases, StopReason=Reasons, STOP_METRIC_PREFIX="stop/", StepResult=step)
    return {
        "chz": {"chz": dataclasses.dataclass, "field": dataclasses.field},
        "tinker": {"ModelInput": ModelInput},
        "tinker_cookbook": {},
        "tinker_cookbook__completers": {"TokensWithLogprobs": made("TokensWithLogprobs", "tokens", "maybe_logprobs")},
        "tinker_cookbook__rl": {"types": kinds},
        "tinker_cookbook__rl__rollout_limits": {"RolloutLimits": made("RolloutLimits", "max_trajectory_tokens")},
    }


async def test_tinkers_env_is_stepped_with_tokens(stand_in, tokenizer):
    adapter = stand_in("tinker", **cookbook())
    [task] = ArithmeticTasks().take(1, seed=0)
    task = dataclasses.replace(task, ground_truth="6")
    builder = adapter.ToolgymGroupBuilder("CodeInterpreter-v0", task, str(tiny_policy_path()), 2, 2048)
    env, left = await builder.make_envs()
    seen, stop = await env.initial_observation()
    await left.initial_observation()
    rewards, done = [], False
    while not done:
        ids = [*tokenizer.encode(call_then_answer(tokenizer.decode(seen))), tokenizer.eos_token_id]
        assert ids[-1] in stop
        before = [*seen, *ids]
        result = await env.step(ids, extra={"stop_reason": "stop"})
        seen, stop, done = result.next_observation, result.next_stop_condition, result.episode_done
        rewards.append(result.reward)
        assert done or seen[: len(before)] == before
    assert rewards == [0.0, 1.0]
    assert result.metrics["stop/completed"] == 1.0
    await builder.cleanup()
    assert left._playing.cancelled()

    def broken():
        raise RuntimeError("no sandbox")

    [env, _] = await dataclasses.replace(builder, env=broken).make_envs()
    with pytest.raises(EpisodeFailedError, match="no sandbox"):
        await env.initial_observation()


def test_torchrls_rows_are_padded_on_the_left(stand_in):
    adapter = stand_in("torchrl", tensordict={"TensorDict": lambda source, batch_size, device: source})
    made = adapter.to_tensordict(make_batch([ONE, SHORT], pad_token_id=0), torch.tensor([2.0, -1.0]))
    assert made["tokens"]["full"].tolist() == [[5, 6, 7, 8, 9, 4], [0, 0, 0, 0, 5, 3]]
    assert made["masks"]["all_assistant_mask"].int().tolist() == [[0, 0, 1, 1, 0, 1], [0] * 5 + [1]]
    assert made["log_probs"]["full"].tolist() == [[0, 0, -0.5, -0.5, 0, -0.5], [0] * 5 + [-0.5]]
    assert made["advantage"][:, :, 0].tolist() == [[0, 0, 2, 2, 0, 2], [0] * 5 + [-1]]


def test_tunixs_items_come_in_whole_groups(stand_in):
    item = dataclasses.make_dataclass("TrajectoryItem", ["pair_index", "group_id", "start_step", "traj", "metadata"])
    status = enum.Enum("TrajectoryStatus", ["SUCCEEDED", "MAX_STEPS_REACHED", "MAX_CONTEXT_LIMIT_REACHED"])
    names = ("tunix", "tunix__rl", "tunix__rl__agentic", "tunix__rl__agentic__agents")
    types_of = {"TrajectoryItem": item, "TrajectoryStatus": status}
    adapter = stand_in("tunix", **{one: {} for one in names}, tunix__rl__agentic__agents__agent_types=types_of)
    bounds = {"group_size": 2, "pad_token_id": 0, "max_prompt_length": 4, "max_response_length": 6}
    bounds["temperature"] = 1.0
    failed = dataclasses.replace(SHORT, group_id="h", stop_reason=StopReason.ENGINE_FAILED)
    first, second = adapter.to_items([ONE, SHORT, dataclasses.replace(ONE, group_id="h"), failed], **bounds)
    assert [(one.group_id, one.pair_index) for one in (first, second)] == [(0, 0), (0, 1)]
    assert first.traj["conversation_tokens"].tolist() == [7, 8, 9, 4]
    assert first.traj["conversation_masks"].tolist() == [1, 1, 0, 1]


def test_gems_env_reads_and_writes_texts(stand_in):
    registered = {}

    def register(name, entry_point, **kwargs):
        registered[name] = kwargs

    adapter = stand_in(
        "gem",
        gem={"Env": type("Env", (), {}), "register": register},
        gem__envs={},
        gem__envs__registration={"ENV_REGISTRY": registered},
        gem__utils={},
        gem__utils__constants={"TERMINAL_STATE": "the end"},
    )
    env = adapter.ToolgymGemEnv(**registered["toolgym:CodeInterpreter-v0"], end_of_turn="<|im_end|>")
    try:
        seen, _ = env.reset(seed=0)
        assert '"name": "code_interpreter"' in seen
        answer = env._episode.env.task.ground_truth
        obs, reward, terminated, truncated, info = env.step(f"#### {answer}<|im_end|>")
        assert (obs, reward, terminated, truncated) == ("the end", 1.0, True, False)
        assert info["stop_reason"] == "answered"
    finally:
        env.close()
