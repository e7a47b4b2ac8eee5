"""Trajectories as verifiers' traces: read back over its wire, and as prime-rl takes samples from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.rollout.adapters import sums  # noqa: F401  which registers tests/Sums-v0
from tests.rollout.adapters.slime_router_stand_in import call_then_answer
from tests.rollout.pictures import pictured, url
from toolgym.envs.types import StopReason
from toolgym.rollout import SamplingParams, Trajectory, Turn, run_episode
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.tokens import KeepToolResults
from toolgym.rollout.trajectory import Failure, Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")

from verifiers.v1.serve.delta import dump, pack, unpack  # noqa: E402

from toolgym.rollout.adapters.verifiers import to_trace  # noqa: E402

ROW = {"prompt": [{"role": "user", "content": "What is 2*3?"}], "reward_model": {"ground_truth": "6"}}


def sent(trace):
    """A trace as prime-rl gets it from an env server."""
    return vf.WireTrace.model_validate(unpack(pack(dump(trace))))


def samples(trace):
    """What prime-rl trains on (`iter_trainable_branches`): no sample of a trace that is not ok."""
    branches = [branch for branch in trace.branches if branch.trainable and any(branch.sampled_mask)]
    return [(one.token_ids, one.sampled_mask, one.logprobs) for one in branches] if trace.ok else []


def rows(trajectory):
    """The same, from the trajectory."""
    made = []
    for one in trajectory.sequences:
        before = len(one.prompt_ids)
        mask = [False] * before + one.response_mask.astype(bool).tolist()
        made.append(
            ([*one.prompt_ids.tolist(), *one.response_ids.tolist()], mask, [0.0] * before + one.logprobs.tolist())
        )
    return [row for row in made if any(row[1])]


def generating(tokenizer, policy=call_then_answer):
    async def generate(request):
        ids = [*tokenizer.encode(policy(tokenizer.decode(request.prompt_ids))), tokenizer.eos_token_id]
        return ids, [-0.5 - n / 64 for n in range(len(ids))]

    return generate


async def test_an_episode_is_one_branch_with_its_exact_tokens_and_its_messages(tokenizer):
    config = EpisodeConfig(sampling=SamplingParams(max_new_tokens=64, temperature=0.7))
    one = await run_episode("tests/Sums-v0", ROW, generating(tokenizer), tokenizer=tokenizer, config=config)
    trace = sent(to_trace(one))
    assert samples(trace) == rows(one)
    assert (trace.id, trace.reward, trace.num_turns, trace.ok) == (one.id, 1.25, 2, True)
    assert [node.message.role for node in trace.nodes] == ["user", "assistant", "tool", "assistant"]
    assert [len(node.token_ids) > 0 for node in trace.nodes] == [False, True, False, True]
    assert trace.last_reply == "#### 6"
    assert trace.tools[0].name == "code_interpreter"
    assert [call.usage.completion_tokens for call in trace.calls] == [turn.generated_tokens for turn in one.turns]
    assert [call.usage.prompt_tokens for call in trace.calls] == [turn.prompt_tokens for turn in one.turns]
    assert trace.num_total_tokens == len(one.prompt_ids) + len(one.response_ids)
    assert trace.agent.config.sampling.temperature == 0.7
    assert trace.task.data.model_extra["row"]["reward_model"]["ground_truth"] == "6"


async def test_each_sequence_is_a_branch_and_no_token_is_trained_on_twice(tokenizer):
    def thrice(seen):
        return call_then_answer(seen if seen.count("<tool_response>") > 2 or "removed" in seen else "")

    config = EpisodeConfig(sampling=SamplingParams(max_new_tokens=64), context=[KeepToolResults(1)])
    one = await run_episode("tests/Sums-v0", ROW, generating(tokenizer, thrice), tokenizer=tokenizer, config=config)
    assert len(one.sequences) > 1
    trace = sent(to_trace(one))
    assert samples(trace) == rows(one)
    assert trace.num_branches == len(rows(one))
    assert sum(sum(node.mask) for node in trace.nodes) == one.policy_tokens


def played(*segments, **changes):
    """A trajectory by hand; each segment of the policy is a turn."""
    sequence = TokenSequence(np.array([5, 6]), segments)
    turns = tuple(Turn(f"said {len(one)}", "stop", 0, len(one), reward=0.5) for one in segments if one.is_policy)
    given = {
        "id": "t", "env_id": "tests/Sums-v0", "task_id": "7", "source": "s", "group_id": "g", "task_index": 0,
        "sample_index": 0, "messages": ({"role": "user", "content": "?"},), "tools": (), "sequences": (sequence,),
        "reward": 1.0, "stop_reason": StopReason.ANSWERED, "turns": turns,
    }  # fmt: skip
    return Trajectory(**{**given, **changes})


def policy(*ids, **aligned):
    return Segment.policy(ids, [-one / 64 for one in ids], "3" * len(ids), aligned)


def test_tokens_behind_the_last_turn_and_turns_without_messages_are_kept():
    one = played(policy(10, 11), Segment.env([30]), policy(12), Segment.env([31, 32]))
    trace = sent(to_trace(one))
    assert samples(trace) == rows(one)
    assert trace.transcript == "[assistant]\nsaid 2\n\n[assistant]\nsaid 1"
    parts = replace(one, turns=one.turns[:1], sequences=played(policy(10), policy(11)).sequences)  # a resumed turn
    assert samples(sent(to_trace(parts))) == rows(parts)


def test_the_ids_that_a_sampler_kept_stand_at_their_tokens():
    kept = np.array([[10, 4, -1], [11, -1, -1]], np.int32)
    trace = sent(to_trace(played(policy(10, 11, sampling_mask=kept))))
    mask = trace.branches[0].sampling_mask
    assert mask.counts.tolist() == [0, 0, 2, 1]
    assert mask.ids.tolist() == [10, 4, 11]


@pytest.mark.parametrize(
    "changes",
    [
        {"stop_reason": StopReason.SANDBOX_FAILED, "error": Failure("SandboxError: no disk", 0)},
        {"stop_reason": StopReason.ABORTED},
    ],
)
def test_what_does_not_count_is_not_ok_and_has_no_reward(changes):
    trace = sent(to_trace(played(policy(10, 11), **changes)))
    assert (trace.ok, trace.rewards, samples(trace)) == (False, {}, [])
    assert trace.stop_condition == changes["stop_reason"].value
    assert [error.type for error in trace.errors] == (["SandboxError"] if "error" in changes else [])


def test_what_was_cut_is_truncated_and_an_episode_without_tokens_has_no_branch():
    assert to_trace(played(policy(10), stop_reason=StopReason.MAX_TURNS)).is_truncated
    assert to_trace(played(policy(10), stop_reason=StopReason.BUDGET)).is_truncated
    assert not to_trace(played(policy(10))).is_truncated
    assert sent(to_trace(played(stop_reason=StopReason.BUDGET))).branches == []


def test_turns_that_tell_of_other_tokens_are_refused():
    with pytest.raises(BatchError, match=r"trajectory t: its turns count \[1\] sampled tokens in sequence 0, not the"):
        to_trace(replace(played(policy(10, 11)), turns=(Turn("", "stop", 0, 1),)))
    with pytest.raises(ConfigError):
        to_trace("t")


def test_images_are_refused_by_name():
    with pytest.raises(BatchError, match="trajectory p has images, and without the processor .* verifiers gets none"):
        to_trace(pictured(seen=[url(1, 2)]))
