"""An agent file as OpenRLHF loads, calls and digests it: with its own code, where that is installed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import types

import numpy as np
import pytest
import torch

from tests.rollout.adapters import openrlhf_stand_in
from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import Trajectory
from toolgym.rollout.adapters.openrlhf import agent_executor, task_of, to_response
from toolgym.rollout.tokens.context_policies import CutToolResults, KeepToolResults
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError, UnknownArgumentError

PROMPT = "What is 2*3?"
ROW = {"prompt": [{"role": "user", "content": PROMPT}], "reward_model": {"style": "rule", "ground_truth": "6"}}


@pytest.fixture
def openrlhf(monkeypatch):
    pytest.importorskip("openrlhf.utils.agent", reason="OpenRLHF is not installed")
    openrlhf_stand_in.install(monkeypatch)


@pytest.fixture
def agent_file(tmp_path):
    """Writes an agent file as docs/trainers.md has it."""

    def write(**settings):
        text = f"agent_executor('CodeInterpreter-v0', **{settings!r})\n"
        path = tmp_path / "agent.py"
        path.write_text("from toolgym.rollout.adapters.openrlhf import agent_executor\n\nAgentExecutor = " + text)
        return str(path)

    return write


def generator(tokenizer, policy, path, rows, *, samples=2, level="token"):
    """OpenRLHF's samples generator over one of its rollout actors."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor, _load_agent_executor

    actor = RolloutRayActor.__new__(RolloutRayActor)
    actor.llm, actor.executor = openrlhf_stand_in.LLM(tokenizer, policy), _load_agent_executor(path)
    actor._mm_pad_token_ids, actor.get_num_unfinished_requests = None, lambda: 0
    space = types.SimpleNamespace
    args = space(
        rollout=space(batch_size=len(rows), n_samples_per_prompt=samples, vllm_generate_batch_size=None),
        algo=space(dynamic_filtering_enable=False, advantage=space(is_correction_level=level)),
        vllm=space(enable_sleep=False),
    )
    batch = [[""] * len(rows), [one["input"] for one in rows], [one["label"] for one in rows], [None] * len(rows)]
    made = SamplesGenerator(space(args=args), [batch], None, tokenizer, [openrlhf_stand_in.Actor(actor)])
    return made, actor.llm


def rows_of(task):
    return [{"input": json.dumps(list(task.messages)), "label": json.dumps(task.to_row())}]


@pytest.mark.parametrize("level", ["token", "off"])
def test_samples_become_its_experiences(openrlhf, agent_file, tokenizer, level):
    path = agent_file(env_kwargs={"max_turns": 4}, max_new_tokens=200)
    made, llm = generator(tokenizer, call_then_answer, path, rows_of(Task.from_row(ROW)), level=level)
    experiences, *_ = made.generate_samples(max_len=2048, max_new_tokens=1024)
    assert len(experiences) == 2
    first, second = sorted((ids for ids, _ in llm.requests), key=len)[::2]
    called = [*tokenizer.encode(CALL.format("print(2*3)")), tokenizer.eos_token_id]
    answer = [*tokenizer.encode("#### 6"), tokenizer.eos_token_id]
    shown = len(second) - len(first) - len(called)
    for one in experiences:
        assert one.sequences.tolist() == [[*second, *answer]]
        # OpenRLHF's masks and log-probabilities begin with the second token
        mask = [0] * (len(first) - 1) + [1] * len(called) + [0] * shown + [1] * len(answer)
        assert one.action_mask.tolist() == [mask]
        if level == "off":
            assert one.rollout_log_probs is None
        else:
            assert one.rollout_log_probs.shape == one.action_mask.shape
            assert not one.rollout_log_probs[one.action_mask == 0].any()
            sampled = one.rollout_log_probs[one.action_mask == 1].tolist()
            assert sampled == [-0.5 - n / 64 for n in (*range(len(called)), *range(len(answer)))]
        assert (one.rewards.item(), one.scores.item(), one.truncated.item()) == (1.0, 1.0, False)
        assert one.labels == [json.dumps(ROW)]
        assert {name: value.item() for name, value in one.info.items()} == {
            "response_clip_ratio": False, "reward": 1.0, "score": 1.0, "turns": 2.0, "tool_calls": 1.0,
        }  # fmt: skip
    from openrlhf.trainer.ppo_utils.experience import Experience, split_experience_batch

    batch = Experience.concat_experiences(experiences, tokenizer.pad_token_id)
    assert batch.action_mask.shape[0] == len(split_experience_batch(batch)) == 2
    assert all(params.max_tokens == 200 for _, params in llm.requests)
    assert all(tokenizer.eos_token_id in params.stop_token_ids for _, params in llm.requests)


def test_its_loss_trains_the_policys_tokens_alone(openrlhf, agent_file, tokenizer):
    from openrlhf.models.loss import PolicyLoss

    made, _ = generator(tokenizer, call_then_answer, agent_file(), rows_of(Task.from_row(ROW)))
    [one, _], *_ = made.generate_samples(max_len=2048, max_new_tokens=1024)
    logprobs = one.rollout_log_probs.clone().requires_grad_()
    loss, *_ = PolicyLoss(is_correction_level="token")(
        logprobs, logprobs.detach(), torch.ones_like(logprobs), one.action_mask, one.rollout_log_probs
    )
    loss.backward()
    assert torch.equal(logprobs.grad != 0, one.action_mask == 1)


def test_its_bounds_hold(openrlhf, agent_file, tokenizer):
    path = agent_file()
    made, llm = generator(tokenizer, call_then_answer, path, [{"input": PROMPT, "label": "6"}], samples=1)
    [cut], *_ = made.generate_samples(max_len=2048, max_new_tokens=9)
    assert (int(cut.action_mask.sum()), cut.truncated.item(), cut.rewards.item()) == (9, True, 0.0)
    prompt = len(llm.requests[0][0])
    made, _ = generator(tokenizer, call_then_answer, path, [{"input": PROMPT, "label": "6"}], samples=1)
    [cut], *_ = made.generate_samples(max_len=prompt + 12)
    assert (cut.sequences.shape[1], cut.truncated.item()) == (prompt + 12, True)


def test_what_breaks_an_episode_off_is_played_again(openrlhf, agent_file, tokenizer):
    calls = itertools.count()

    def shaky(seen):
        return RuntimeError("no memory") if next(calls) == 1 else call_then_answer(seen)

    path = agent_file()
    made, llm = generator(tokenizer, shaky, path, rows_of(Task.from_row(ROW)), samples=1)
    [one], *_ = made.generate_samples(max_len=2048, max_new_tokens=1024)
    assert (one.rewards.item(), len(llm.requests)) == (1.0, 4)
    made, llm = generator(tokenizer, lambda seen: RuntimeError("no memory"), path, rows_of(Task.from_row(ROW)))
    with pytest.raises(EpisodeFailedError, match=r"cannot be played \(engine_failed\).*no memory"):
        made.generate_samples(max_len=2048, max_new_tokens=1024)
    made, llm = generator(tokenizer, call_then_answer, path, [{"input": PROMPT, "label": "6"}], samples=1)
    with pytest.raises(EpisodeFailedError, match="prompt_refused"):
        made.generate_samples(max_len=30)
    assert not llm.requests


def test_a_sample_is_a_task(tokenizer):
    whole = Task.from_row({**ROW, "extra_info": {"index": 7}})
    assert task_of("shown elsewhere", json.dumps(whole.to_row()), tokenizer) == whole
    same = Task.from_row(ROW)
    for prompt in (PROMPT, json.dumps(ROW["prompt"]), ROW["prompt"]):
        for label in ("6", json.dumps(ROW["reward_model"]), ROW["reward_model"]):
            task = task_of(prompt, label, tokenizer)
            assert (task.messages, task.ground_truth) == (same.messages, "6")
    assert task_of("[1, 2] has which sum?", "[3]", tokenizer).ground_truth == "[3]"
    assert task_of("[1, 2]", "3", tokenizer).messages[0]["content"] == "[1, 2]"
    with pytest.raises(ConfigError, match="apply_chat_template"):
        task_of(f"{tokenizer.eos_token}{PROMPT}", "6", tokenizer)
    with pytest.raises(ConfigError, match="prompt"):
        task_of(None, "6", tokenizer)


def policy(*ids):
    return Segment.policy(ids, [-0.5] * len(ids), ["0"] * len(ids))


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]), policy(1))),),
    reward=0.5, stop_reason=StopReason.MAX_TURNS,
)  # fmt: skip


def test_a_trajectory_is_a_response():
    made = to_response(ONE, prompt="p", label="l")
    assert made["observation_tokens"] == [5, 6, 7, 8, 9, 1]
    assert made["action_ranges"] == [(2, 4), (5, 6)]
    assert made["rollout_log_probs"] == [0.0, 0.0, -0.5, -0.5, 0.0, -0.5]
    assert (made["reward"], made["truncated"], made["prompt"], made["label"]) == (0.5, True, "p", "l")
    assert to_response(ONE, logprobs=False)["rollout_log_probs"] is None
    two = (*ONE.sequences, TokenSequence(np.array([5]), (policy(1),), "template"))
    for other in (
        {"sequences": two}, {"sequences": ()}, {"stop_reason": StopReason.ENGINE_FAILED},
        {"stop_reason": StopReason.ABORTED},
    ):  # fmt: skip
        with pytest.raises(BatchError, match="trajectory one"):
            to_response(dataclasses.replace(ONE, **other))


def test_what_openrlhf_has_no_row_for_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "openrlhf.utils.agent", None)
    with pytest.raises(MissingExtraError, match="openrlhf"):
        agent_executor("CodeInterpreter-v0")
    monkeypatch.setitem(sys.modules, "openrlhf", types.ModuleType("openrlhf"))
    monkeypatch.setitem(sys.modules, "openrlhf.utils", types.ModuleType("openrlhf.utils"))
    monkeypatch.setitem(sys.modules, "openrlhf.utils.agent", types.SimpleNamespace(AgentExecutorBase=object))
    with pytest.raises(ConfigError, match="history"):
        agent_executor("CodeInterpreter-v0", history="template")
    with pytest.raises(ConfigError, match="OpenRLHF takes one row for each episode.*context=.KeepToolResults"):
        agent_executor("CodeInterpreter-v0", context=[CutToolResults(64), KeepToolResults(1)])
    agent_executor("CodeInterpreter-v0", context=CutToolResults(64))
    with pytest.raises(ConfigError, match="attempts"):
        agent_executor("CodeInterpreter-v0", attempts=0)
    with pytest.raises(UnknownArgumentError, match="max_new_tokens"):
        agent_executor("CodeInterpreter-v0", max_new_token=9)
