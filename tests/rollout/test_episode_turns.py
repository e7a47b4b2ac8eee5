"""One turn of an episode: resumed after aborts, cut, closed, ended by the caller's stop tokens, or empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.actors import echo
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, make_batch
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.seeds import derive_seed
from toolgym.rollout.trajectory.token_sequence import Segment
from toolgym.tools.errors import BatchError, ConfigError, EngineError

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "hi"}}\n</tool_call>'
ABORT, LENGTH, STOP = FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP


def env():
    return ToolEnv([echo], [Task(({"role": "user", "content": "q"},), id="q")], scorer=lambda text, task: 1.0)


async def play(engine, tokenizer, **config):
    config = {"seed": 3, "sampling": SamplingParams(max_new_tokens=100), **config}
    runner = Runner(env, engine, tokenizer=tokenizer, config=RunConfig(**config))
    [one] = await runner.run([Task(({"role": "user", "content": "q"},))])
    return one


def by_request(answers):
    """A script that answers by the part of the request id behind the trajectory's id."""
    return lambda prompt, request_id: answers[request_id.partition("-")[2]]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(turn_sampling, "RESUME_WAIT", (0.0, 0.0))


async def test_an_aborted_turn_goes_on_from_what_it_had(scripted, tokenizer, exact, quick):
    engine = scripted(None)
    answers = {"0": (CALL[:20], ABORT), "0-1": ("", ABORT), "0-2": (CALL[20:], STOP), "1": ("done", STOP)}

    def script(prompt, request_id):
        engine.version = str(len(engine.seen))
        return by_request(answers)(prompt, request_id)

    engine.script = script
    one = await play(engine, tokenizer)
    exact(engine, one)
    assert [turn.resumes for turn in one.turns] == [2, 0]
    assert [turn.text for turn in one.turns] == [CALL, "done"]
    assert one.turns[0].tool_calls[0].text == "hi"
    assert (one.turns[0].finish_reason, one.turns[0].truncated) == ("stop", False)
    parts = [segment for segment in one.segments if segment.is_policy]
    assert [set(part.weight_versions) for part in parts] == [{"1"}, {"3"}, {"4"}]
    batch = make_batch([one], pad_token_id=0)
    versions = batch.weight_versions[0][batch.response_mask[0].bool()].tolist()
    assert versions == [1] * len(parts[0].token_ids) + [3] * len(parts[1].token_ids) + [4] * len(parts[2].token_ids)


def routed(request_id, token_ids):
    """A payload that tells each token apart: its id, and its place in the part that it came with."""
    return {"routed_experts": np.array([[token, place] for place, token in enumerate(token_ids)]).reshape(-1, 2)}


async def test_payloads_of_a_resumed_turn_stay_with_their_tokens(scripted, tokenizer, quick):
    answers = {"0": (CALL[:20], ABORT), "0-1": ("", ABORT), "0-2": (CALL[20:], STOP), "1": ("done", STOP)}
    engine = scripted(by_request(answers))
    engine.aligned = routed
    one = await play(engine, tokenizer)
    parts = [segment for segment in one.segments if segment.is_policy]
    assert len(parts) == 3
    for part in parts:
        assert part.aligned["routed_experts"].tolist() == [[token, place] for place, token in enumerate(part.token_ids)]
    turn = Segment.merge(parts[:2])
    assert turn.aligned["routed_experts"][:, 0].tolist() == turn.token_ids.tolist()
    batch = make_batch([one], pad_token_id=0)
    values = batch.aligned["routed_experts"]
    sampled = batch.response_mask.bool()
    assert torch.equal(values[sampled][:, 0], batch.responses[sampled])
    assert (values[~sampled] == -1).all()


async def test_a_part_without_the_payload_of_the_others_is_refused_where_tensors_are_made(scripted, tokenizer, quick):
    answers = {"0": (CALL[:20], ABORT), "0-1": (CALL[20:], STOP), "1": ("done", STOP)}
    engine = scripted(by_request(answers))
    engine.aligned = lambda request_id, ids: {} if request_id.endswith("-0-1") else routed(request_id, ids)
    one = await play(engine, tokenizer)
    assert not one.failed
    with pytest.raises(BatchError, match="policy tokens of row .* have no payload 'routed_experts'"):
        make_batch([one], pad_token_id=0)
    assert make_batch([one], pad_token_id=0, aligned=()).aligned == {}


async def test_each_part_has_a_seed_of_its_own_and_the_budget_that_is_left(scripted, tokenizer):
    engine = scripted(by_request({"0": ("ab cd", ABORT), "0-1": ("ef", STOP)}))
    one = await play(engine, tokenizer)
    first, second = (engine.seen[f"{one.id}{name}"][1] for name in ("-0", "-0-1"))
    assert (first.seed, second.seed) == (derive_seed(3, 0, 0, 0), derive_seed(3, 0, 0, 0, 1))
    assert [turn.seed for turn in one.turns] == [first.seed]
    assert second.max_new_tokens == 100 - len(engine.given[f"{one.id}-0"].token_ids)
    assert second.stop_token_ids == first.stop_token_ids
    assert set(engine.affinities.values()) == {one.id}


async def test_parts_together_keep_to_the_turns_length(scripted, tokenizer, exact, quick):
    engine = scripted(lambda p, r: ("ab cd", ABORT))
    one = await play(engine, tokenizer, sampling=SamplingParams(max_new_tokens=10))
    exact(engine, one)
    assert (one.stop_reason, one.policy_tokens, one.turns[0].finish_reason) == (StopReason.LENGTH, 10, "length")
    assert one.turns[0].truncated
    assert one.turns[0].resumes > 0


async def test_resumes_are_bounded_and_wait_longer_each_time(scripted, tokenizer, monkeypatch):
    waited = []

    async def sleep(seconds):
        if seconds:  # 0 gives others their turn
            waited.append(seconds)

    monkeypatch.setattr(turn_sampling.asyncio, "sleep", sleep)
    engine = scripted(lambda p, r: ("", ABORT))
    one = await play(engine, tokenizer, limits=EpisodeLimits(max_resumes=9))
    assert (one.stop_reason, one.failed, one.policy_tokens) == (StopReason.ABORTED, False, 0)
    assert (one.turns[0].resumes, len(engine.seen)) == (9, 10)
    assert waited == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    waited.clear()
    engine = scripted(lambda p, r: ("ab", ABORT) if r.endswith("2") else ("", ABORT))
    await play(engine, tokenizer, limits=EpisodeLimits(max_resumes=4))
    assert waited == [0.05, 0.1, 0.05]  # what got further is resumed at once, and the waiting begins anew


async def test_no_resumes_where_none_are_allowed(scripted, tokenizer):
    engine = scripted(lambda p, r: ("half a tur", ABORT))
    one = await play(engine, tokenizer, limits=EpisodeLimits(max_resumes=0))
    assert (one.stop_reason, len(engine.seen), one.turns[0].truncated) == (StopReason.ABORTED, 1, True)
    with pytest.raises(ConfigError, match="max_resumes"):
        EpisodeLimits(max_resumes=-1)


async def test_an_abort_that_comes_with_the_end_of_the_turn_is_its_end(scripted, tokenizer):
    ids = [*tokenizer.encode("done", add_special_tokens=False), tokenizer.eos_token_id]
    engine = scripted(lambda p, r: (ids, ABORT))
    one = await play(engine, tokenizer)
    assert (one.stop_reason, len(engine.seen), one.turns[0].finish_reason) == (StopReason.ANSWERED, 1, "stop")


async def test_an_engine_that_fails_later_leaves_the_parts_in_the_record(scripted, tokenizer, quick):
    engine = scripted(by_request({"0": (CALL, STOP), "1": ("half", ABORT), "1-1": EngineError("died")}))
    one = await play(engine, tokenizer)
    assert (one.stop_reason, one.error.turn) == (StopReason.ENGINE_FAILED, 1)
    assert [turn.text for turn in one.turns] == [CALL, "half"]
    assert one.turns[1].truncated
    assert one.messages[-1] == {"role": "assistant", "content": "half"}
    assert one.policy_tokens == sum(turn.generated_tokens for turn in one.turns)


async def test_a_cut_turn_ends_the_episode_or_is_closed(scripted, tokenizer, exact):
    long = "word " * 30
    engine = scripted(by_request({"0": (CALL, STOP), "1": (long, STOP), "2": ("done", STOP)}))
    sampling = SamplingParams(max_new_tokens=40)
    ended = await play(engine, tokenizer, sampling=sampling)
    assert (ended.stop_reason, ended.reward, ended.turns[1].truncated) == (StopReason.LENGTH, 0.0, True)
    assert [turn.reward for turn in ended.turns] == [0.0, 0.0]  # this scorer is asked about answers alone
    closed = await play(engine, tokenizer, sampling=sampling, on_truncated_turn="close")
    exact(engine, closed)
    assert (closed.stop_reason, closed.reward) == (StopReason.ANSWERED, 1.0)  # a text without calls is an answer
    assert [turn.truncated for turn in closed.turns] == [False, True]
    assert closed.turns[1].closing_tokens == 1
    assert closed.segments[-1].token_ids.tolist() == [tokenizer.eos_token_id]
    assert closed.response_mask[-1] == 0
    rendered = tokenizer.apply_chat_template(list(closed.messages), tools=list(closed.tools), tokenize=False)
    assert rendered == closed.prompt_text + closed.response_text + "\n"


async def test_a_cut_call_that_is_whole_is_run_and_the_conversation_goes_on(scripted, tokenizer, exact):
    engine = scripted(by_request({"0": (CALL, LENGTH), "1": ("done", STOP)}))
    one = await play(engine, tokenizer, on_truncated_turn="close")
    exact(engine, one)
    assert one.turns[0].tool_calls[0].text == "hi"
    assert (one.turns[0].truncated, one.turns[0].closing_tokens, len(one.sequences)) == (True, 1, 1)
    rendered = tokenizer.apply_chat_template(list(one.messages), tools=list(one.tools), tokenize=False)
    assert rendered == one.prompt_text + one.response_text + "\n"


async def test_a_turn_is_not_closed_beyond_the_budget(scripted, tokenizer):
    engine = scripted(lambda p, r: ("word " * 30, STOP))
    limits = EpisodeLimits(max_response_tokens=20)
    one = await play(engine, tokenizer, limits=limits, on_truncated_turn="close")
    assert (one.stop_reason, len(one.response_ids), one.reward) == (StopReason.BUDGET, 20, 0.0)


async def test_an_aborted_turn_is_closed_too_where_that_is_wanted(scripted, tokenizer):
    engine = scripted(lambda p, r: ("so far", ABORT))
    one = await play(engine, tokenizer, limits=EpisodeLimits(max_resumes=0), on_truncated_turn="close")
    assert (one.stop_reason, one.reward, one.turns[0].truncated) == (StopReason.ANSWERED, 1.0, True)
    assert one.turns[0].finish_reason == "abort"


async def test_the_callers_stop_tokens_end_a_turn_and_the_template_closes_it(scripted, tokenizer, exact):
    end_of_call = tokenizer.convert_tokens_to_ids("</tool_call>")
    engine = scripted(by_request({"0": (CALL, FinishReason.STOP), "1": ("done", STOP)}))
    ids = tokenizer.encode(CALL, add_special_tokens=False)
    assert ids[-1] == end_of_call
    engine.script = by_request({"0": (ids, STOP), "1": ("done", STOP)})
    sampling = SamplingParams(max_new_tokens=100, stop_token_ids=(end_of_call,))
    one = await play(engine, tokenizer, sampling=sampling)
    exact(engine, one)
    assert [turn.truncated for turn in one.turns] == [False, False]
    assert [turn.closing_tokens for turn in one.turns] == [1, 0]
    assert one.turns[0].tool_calls[0].text == "hi"
    assert one.stop_reason is StopReason.ANSWERED


async def test_a_generation_without_a_token_is_a_legal_turn(scripted, tokenizer, exact):
    engine = scripted(by_request({"0": (CALL, STOP), "1": ([], LENGTH)}))
    one = await play(engine, tokenizer, on_truncated_turn="close")
    exact(engine, one)
    assert (one.stop_reason, one.failed, one.turns[1].text) == (StopReason.ANSWERED, False, "")
    assert (one.turns[1].generated_tokens, one.turns[1].closing_tokens) == (0, 1)


async def test_content_lists_cost_one_trajectory_and_say_why(scripted, tokenizer):
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]

    class Images(ToolEnv):
        async def reset(self, **kwargs):
            obs, info = await super().reset(**kwargs)
            return ([{"role": "user", "content": parts}], info) if self.first else (obs, info)

        async def step(self, action):
            result = await super().step(action)
            return result._replace(obs=[{**message, "content": parts} for message in result.obs])

    engine = scripted(lambda p, r: (CALL, STOP))
    task = Task(({"role": "user", "content": "q"},))
    for first in (True, False):
        made = type("Made", (Images,), {"first": first})
        config = RunConfig(sampling=SamplingParams(max_new_tokens=100))
        [one] = await Runner(lambda made=made: made([echo], [task]), engine, config=config).run([task])
        assert one.stop_reason is StopReason.PROMPT_REFUSED
        assert "image_url" in one.error.message
