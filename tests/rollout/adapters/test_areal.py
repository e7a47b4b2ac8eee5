"""`ToolgymWorkflow` as AReaL calls it: an engine of its contract, and tensors in its form.

Runs with AReaL's own classes too, where it is installed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys

import numpy as np
import pytest
import torch

from tests.rollout.adapters import areal_stand_in
from tests.rollout.adapters.golden import assert_golden, whole_row
from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from tests.rollout.adapters.test_temperatures import IDS, LOGITS, sampled_at
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import Trajectory
from toolgym.rollout.adapters.areal import to_tensors
from toolgym.rollout.tokens.context_policies import KeepToolResults
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError

ROW = {"messages": [{"role": "user", "content": "What is 2*3?"}], "answer": "6"}


@pytest.fixture(params=["shape", "areal"])
def areal(request, monkeypatch):
    if request.param == "shape":
        areal_stand_in.install(monkeypatch)
    else:
        pytest.importorskip("areal.api.io_struct", reason="AReaL is not installed")
    # the workflow's class has AReaL's as its base, whichever it is
    monkeypatch.delitem(sys.modules, "toolgym.rollout.adapters.areal.workflow", raising=False)
    yield
    sys.modules.pop("toolgym.rollout.adapters.areal.workflow", None)


class Engine:
    """AReaL's `agenerate` with a policy that a test writes; the weights change in the middle of each turn."""

    def __init__(self, tokenizer, policy=call_then_answer):
        self.tokenizer, self.policy, self.requests = tokenizer, policy, []

    async def agenerate(self, request):
        from areal.api.io_struct import ModelResponse

        self.requests.append(request)
        said = self.policy(self.tokenizer.decode(request.input_ids))
        if isinstance(said, BaseException):
            raise said
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids, whole = ids[: request.gconfig.max_new_tokens], len(ids)
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=ids,
            output_logprobs=[-0.5 - n / 64 for n in range(len(ids))],
            output_versions=[3] * 2 + [4] * (len(ids) - 2),
            stop_reason="stop" if len(ids) == whole else "length",
        )


def workflow(tokenizer, gconfig=None, **kwargs):
    from areal.api.cli_args import GenerationHyperparameters

    from toolgym.rollout.adapters.areal import ToolgymWorkflow

    given = {"max_new_tokens": 200, "max_tokens": 2048, "n_samples": 4, **(gconfig or {})}
    gconfig = GenerationHyperparameters(**given)
    return ToolgymWorkflow("CodeInterpreter-v0", gconfig=gconfig, tokenizer=tokenizer, **kwargs)


async def test_an_episode_is_one_row_of_tensors(areal, tokenizer):
    from areal.api.workflow_api import RolloutWorkflow
    from areal.utils import stats_tracker

    stats_tracker.export_all()
    engine, made = Engine(tokenizer), workflow(tokenizer)
    assert isinstance(made, RolloutWorkflow)
    row = await made.arun_episode(engine, ROW)
    first, second = (one.input_ids for one in engine.requests)
    answer = [*tokenizer.encode("#### 6"), tokenizer.eos_token_id]
    assert row["input_ids"].tolist() == [[*second, *answer]]
    called = len(tokenizer.encode(CALL.format("print(2*3)"))) + 1
    shown = len(second) - len(first) - called
    assert row["loss_mask"].tolist() == [[0] * len(first) + [1] * called + [0] * shown + [1] * len(answer)]
    assert row["versions"].tolist() == [
        [-1] * len(first) + [3] * 2 + [4] * (called - 2) + [-1] * shown + [3] * 2 + [4] * (len(answer) - 2)
    ]
    assert row["logprobs"][0, : len(first) + 2].tolist() == [0.0] * len(first) + [-0.5, -0.5 - 1 / 64]
    assert not row["logprobs"][0][row["loss_mask"][0] == 0].any()
    assert row["rewards"].tolist() == [1.0]
    assert row["attention_mask"].all()
    assert {name: one.dtype for name, one in row.items()} == {
        "input_ids": torch.int32, "logprobs": torch.float32, "loss_mask": torch.int32, "versions": torch.int32,
        "attention_mask": torch.bool, "rewards": torch.float32,
    }  # fmt: skip
    assert len({one.rid for one in engine.requests}) == 1
    assert {one.gconfig.n_samples for one in engine.requests} == {1}
    assert all(tokenizer.eos_token_id in one.gconfig.stop_token_ids for one in engine.requests)
    told = stats_tracker.export_all()
    assert [told[f"rollout/{name}"] for name in ("reward", "num_turns", "broken_off")] == [1.0, 2.0, 0.0]


async def test_what_something_broke_off_is_rejected(areal, tokenizer):
    broken = Engine(tokenizer, lambda seen: RuntimeError("no server"))
    assert await workflow(tokenizer, {"n_samples": 1}).arun_episode(broken, ROW) is None
    assert await workflow(tokenizer, several_rows=True).arun_episode(broken, ROW) is None
    late = {"max_prompt_tokens": 3}
    assert await workflow(tokenizer, {"n_samples": 1}, limits=late).arun_episode(Engine(tokenizer), ROW) is None
    with pytest.raises(
        EpisodeFailedError, match="group is left out, because of one episode: RuntimeError: no server"
    ) as raised:
        await workflow(tokenizer).arun_episode(broken, ROW)
    assert raised.value.stop_reason is StopReason.ENGINE_FAILED


async def test_the_others_of_a_group_that_is_left_out_end(areal, tokenizer):
    from areal import workflow_context

    class Half(Engine):
        """Fails for the first episode, once the second one waits; and never answers that."""

        def __init__(self, tokenizer):
            super().__init__(tokenizer)
            self.waits, self.cancelled = asyncio.Event(), asyncio.Event()

        async def agenerate(self, request):
            self.requests.append(request)
            if len(self.requests) == 1:
                await self.waits.wait()
                raise RuntimeError("no server")
            self.waits.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    engine, player = Half(tokenizer), workflow(tokenizer)
    workflow_context.set(workflow_context.WorkflowContext(task_id=7))
    with pytest.raises(EpisodeFailedError, match="no server"):
        await asyncio.gather(*(player.arun_episode(engine, ROW) for _ in range(2)))
    await asyncio.wait_for(engine.cancelled.wait(), 30)


async def test_areals_own_groups_are_whole(tokenizer):
    groups = pytest.importorskip("areal.infra.remote_inf_engine", reason="AReaL is not installed")
    from areal.api.cli_args import NormConfig
    from areal.utils.data import Normalization, concat_batch

    async def play(*answers):
        left = iter(answers)
        group = groups.GroupedRolloutWorkflow(workflow(tokenizer), 4, logging.getLogger())
        return await group.arun_episode(Engine(tokenizer, lambda seen: next(left)), ROW)

    with pytest.raises(EpisodeFailedError):
        await play("#### 6", "#### 6", RuntimeError("no server"), "#### 5")
    batch, _ = concat_batch([await play("#### 6", *["#### 5"] * 3), await play("#### 5", *["#### 6"] * 3)])
    advantages = Normalization(NormConfig(mean_level="group", std_level="group", group_size=4))(batch["rewards"])
    groups = advantages.round(decimals=3).reshape(2, 4).sort().values.tolist()  # which episode asks first is a race
    assert groups == [[-0.5, -0.5, -0.5, 1.5], [-1.5, 0.5, 0.5, 0.5]]


async def test_the_bounds_are_areals(areal, tokenizer):
    engine = Engine(tokenizer)
    row = await workflow(tokenizer, {"max_new_tokens": 9}).arun_episode(engine, ROW)
    assert int(row["loss_mask"].sum()) == 9
    assert [one.gconfig.max_new_tokens for one in engine.requests] == [9]


@pytest.mark.parametrize("gconfig", [{"use_beam_search": True}, {"ignore_eos": True}])
async def test_what_cannot_go_with_exact_tokens_is_refused(gconfig, areal, tokenizer):
    with pytest.raises(ConfigError, match=next(iter(gconfig))):
        workflow(tokenizer, gconfig)


async def test_several_sequences_are_refused_before_they_are_played(areal, tokenizer):
    for settings in ({"history": "template"}, {"context": KeepToolResults(1)}):
        with pytest.raises(ConfigError, match="AReaL without several_rows takes one row"):
            workflow(tokenizer, **settings)
        workflow(tokenizer, **settings, several_rows=True)


def policy(*ids, version="3"):
    return Segment.policy(ids, [-0.5] * len(ids), [version] * len(ids))


TWO = Trajectory(
    id="two", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(
        TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]))),
        TokenSequence(np.array([5]), (policy(1, version="4"),), "template"),
    ),
    reward=0.5, stop_reason=StopReason.ANSWERED,
)  # fmt: skip


def test_the_golden_set():
    names = ("input_ids", "loss_mask", "logprobs", "versions")

    def rows_of(tensors):
        for row, attended in enumerate(tensors["attention_mask"]):
            ids, mask, logprobs, versions = (tensors[name][row][attended] for name in names)
            yield whole_row(ids, mask, logprobs, tensors["rewards"][row], versions=versions)

    def read(trajectories):
        made = [to_tensors(one, several_rows=True) for one in trajectories]
        return [[*rows_of(tensors)] if tensors is not None else [] for tensors in made]

    assert_golden(read)


def test_several_sequences_are_rows_only_where_that_is_wanted():
    with pytest.raises(BatchError, match="trajectory two has 2 token sequences"):
        to_tensors(TWO)
    rows = to_tensors(TWO, several_rows=True)
    assert rows["input_ids"].tolist() == [[5, 6, 7, 8, 9], [5, 1, 0, 0, 0]]
    assert rows["loss_mask"].tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]
    assert rows["attention_mask"].tolist() == [[True] * 5, [True, True, False, False, False]]
    assert rows["versions"].tolist() == [[-1, -1, 3, 3, -1], [-1, 4, -1, -1, -1]]
    assert rows["rewards"].tolist() == [0.5, 0.5]


def test_rejected_and_refused():
    assert to_tensors(dataclasses.replace(TWO, stop_reason=StopReason.ENGINE_FAILED)) is None
    assert to_tensors(dataclasses.replace(TWO, stop_reason=StopReason.ABORTED)) is None
    assert to_tensors(dataclasses.replace(TWO, sequences=())) is None
    named = TokenSequence(np.array([5]), (policy(1, version="step-4"),))
    with pytest.raises(BatchError, match="trajectory two has the weight version 'step-4'"):
        to_tensors(dataclasses.replace(TWO, sequences=(named,)))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_ratios_of_its_own_loss_begin_at_one(temperature):
    """`actor.temperature` divides logits in AReaL's engines; the loss compares with what the sampler gave."""
    functional = pytest.importorskip("areal.utils.functional", reason="AReaL is not installed")
    tensors = to_tensors(sampled_at(temperature), temperature=temperature)
    labels = torch.roll(tensors["input_ids"][0].long(), -1)
    logprobs, _ = functional.gather_logprobs_entropy(LOGITS[tensors["input_ids"][0].long()], labels, temperature)
    sampled = torch.roll(tensors["logprobs"][0], -1)  # as its actor moves both
    loss, figures = functional.ppo_actor_loss_fn(
        logprobs=logprobs,
        proximal_logprobs=sampled,
        old_logprobs=sampled,
        advantages=torch.ones(len(labels)),
        eps_clip=0.2,
        loss_mask=torch.roll(tensors["loss_mask"][0], -1).bool(),
    )
    trained = torch.roll(tensors["loss_mask"][0], -1).bool()
    assert int(trained.sum()) == len(IDS)
    assert (figures["importance_weight"][trained] - 1).abs().max() < 1e-4
    assert float(loss) == pytest.approx(-1.0, abs=1e-4)
