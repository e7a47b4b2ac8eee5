"""An env in a rollout of NeMo-RL's shape, and trajectories as its batches. NeMo-RL is in no package index."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest
import torch

from tests.rollout.adapters import nemo_rl_stand_in
from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory, load_tokenizer, run_episode, tiny_policy_path
from toolgym.rollout.adapters.nemo_rl import TaskProcessor, to_batch, to_message_log
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError, UnknownArgumentError

ROW = {"prompt": [{"role": "user", "content": "What is 2*3?"}], "reward_model": {"ground_truth": "6"}}
CFG = {"env": "CodeInterpreter-v0", "tokenizer": str(tiny_policy_path())}
HOME = "toolgym.rollout.adapters.nemo_rl.environment"


@pytest.fixture
def nemo_rl(monkeypatch):
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    yield nemo_rl_stand_in.install(monkeypatch)
    sys.modules.pop(HOME, None)


@pytest.fixture
async def environment(nemo_rl):
    from toolgym.rollout.adapters.nemo_rl import ToolgymEnvironment

    made = []

    def make(**cfg):
        made.append(ToolgymEnvironment({**CFG, **cfg}))
        return made[-1]

    yield make
    for one in made:
        await one.shutdown()


@pytest.fixture(scope="module")
def processor():
    return TaskProcessor("CodeInterpreter-v0")


async def test_an_episode_has_the_tokens_that_our_runner_gives_it(environment, processor, tokenizer):
    env = environment()
    data = [
        processor(ROW, None, tokenizer, 2048, 0),
        processor({"toolgym_task": json.dumps(ROW)}, None, tokenizer, None, 1),
    ]
    logs, rewards = await nemo_rl_stand_in.rollout(env, data, tokenizer, call_then_answer)
    assert rewards == [1.0, 1.0]

    async def generate(request):
        said = call_then_answer(tokenizer.decode(request.prompt_ids))
        ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        return ids, [-0.5] * len(ids)

    played = await run_episode("CodeInterpreter-v0", ROW, generate, tokenizer=tokenizer)
    ours = to_message_log(played, tokenizer)
    for log in logs:
        assert [one["role"] for one in log] == ["user", "assistant", "environment", "assistant", "environment"]
        for one, other in zip(log[:-1], ours, strict=True):
            assert one["token_ids"].tolist() == other["token_ids"].tolist()
        assert log[-1]["token_ids"].dtype == torch.int64
        assert log[-1]["content"] == "[The episode is over: answered]"
    assert len(env._episodes.sessions) == 0


async def test_what_reads_like_a_control_token_is_none(environment, processor, tokenizer):
    def policy(seen):
        return "#### 6" if "<tool_response>" in seen else CALL.format("print('<|im_' + 'end|>')")

    [log], _ = await nemo_rl_stand_in.rollout(
        environment(), [processor(ROW, None, tokenizer, None, 0)], tokenizer, policy
    )
    assert log[2]["token_ids"].tolist().count(tokenizer.eos_token_id) == 1  # the template's own
    assert "im_end|>" in log[2]["content"].replace("<|im_end|>", "", 1)


async def test_a_failed_episode_stops_the_training_or_has_the_reward_that_was_set(environment, processor, tokenizer):
    from toolgym.envs.types import EpisodeFailedError

    data = [processor(ROW, None, tokenizer, None, 0)]
    slow = lambda seen: CALL.format("import time; time.sleep(9)")  # noqa: E731
    with pytest.raises(EpisodeFailedError, match="env_timeout"):
        await nemo_rl_stand_in.rollout(environment(step_timeout=0.3), data, tokenizer, slow)
    env = environment(step_timeout=0.3, failure_reward=-1.0)
    [log], rewards = await nemo_rl_stand_in.rollout(env, data, tokenizer, slow)
    assert rewards == [-1.0]
    assert log[-1]["content"] == "[The episode is over: env_timeout]"
    assert len(env._episodes.sessions) == 0


async def test_what_does_not_fit_is_refused(environment, processor, tokenizer, nemo_rl):
    env = environment()
    with pytest.raises(ConfigError, match="assistant's turn"):
        await env.step([[{"role": "user", "content": "x"}]], [{"toolgym_task": json.dumps(ROW)}])
    with pytest.raises(ConfigError, match="toolgym_task"):
        await env.step([[{"role": "assistant", "content": "x"}]], [{"toolgym_task": "no JSON"}])
    with pytest.raises(UnknownArgumentError, match="failure_reward"):
        environment(failure_rewards=0.0)


def test_a_model_whose_calls_nemo_rl_cuts_out_is_refused(nemo_rl, processor, tokenizer):
    from toolgym.rollout.adapters.nemo_rl.environment import require_readable_calls
    from toolgym.rollout.tokens.renderer import ChatRenderer

    tools = processor._tools
    require_readable_calls(ChatRenderer(tokenizer, tools))
    special = load_tokenizer(tiny_policy_path())
    special.add_special_tokens({"additional_special_tokens": ["<tool_call>", "</tool_call>"]})
    with pytest.raises(ConfigError, match="special tokens"):
        require_readable_calls(ChatRenderer(special, tools))


def test_nemo_rl_finds_it_by_name(nemo_rl):
    from toolgym.rollout.adapters.nemo_rl import ToolgymEnvironment, register

    register("mine")
    envs, pythons = nemo_rl
    [name] = envs.values()
    module, _, attribute = name.rpartition(".")
    assert getattr(sys.modules[module], attribute) is ToolgymEnvironment
    assert (list(envs), pythons) == (["mine"], {name: "python"})


def test_without_nemo_rl_there_is_no_environment(monkeypatch):
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="NeMo-RL"):
        from toolgym.rollout.adapters.nemo_rl import ToolgymEnvironment  # noqa: F401


def test_a_row_is_a_datum(processor, tokenizer):
    made = pickle.loads(pickle.dumps(processor))(ROW, None, tokenizer, 2048, 7)
    [message] = made["message_log"]
    assert (message["role"], made["length"]) == ("user", len(message["token_ids"]))
    assert "code_interpreter" in message["content"]
    assert (made["idx"], made["task_name"], made["loss_multiplier"]) == (7, "toolgym", 1.0)
    short = processor(ROW, None, tokenizer, 30, 7)
    assert (short["length"], short["loss_multiplier"]) == (4, 0.0)


def policy(*ids):
    return Segment.policy(ids, [-0.5] * len(ids), ["0"] * len(ids))


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]), policy(1))),),
    reward=0.5, stop_reason=StopReason.MAX_TURNS,
)  # fmt: skip


def test_trajectories_are_a_batch(tokenizer):
    failed = dataclasses.replace(ONE, id="failed", stop_reason=StopReason.ENGINE_FAILED, reward=0.0)
    better = dataclasses.replace(ONE, id="better", stop_reason=StopReason.ANSWERED, reward=1.0)
    empty = dataclasses.replace(failed, id="empty", group_id="h", sequences=())
    batch = to_batch([ONE, failed, better, empty], tokenizer=tokenizer)
    assert batch["total_reward"].tolist() == [0.5, 0.75, 1.0, 0.0]
    assert batch["loss_multiplier"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert batch["truncated"].tolist() == [True, True, False, True]
    assert batch["length"].tolist() == [6, 2, 6, 2]
    first = batch["message_log"][0]
    assert [(one["role"], one["token_ids"].tolist()) for one in first] == [
        ("user", [5, 6]), ("assistant", [7, 8]), ("environment", [9]), ("assistant", [1]),
    ]  # fmt: skip
    assert [one["generation_logprobs"].tolist() for one in first if "generation_logprobs" in one] == [
        [-0.5] * 2,
        [-0.5],
    ]
    two = dataclasses.replace(ONE, sequences=(*ONE.sequences, TokenSequence(np.array([5]), (policy(1),), "template")))
    with pytest.raises(BatchError, match="trajectory one has 2 token sequences"):
        to_batch([two], tokenizer=tokenizer)
