"""The whole road with nothing faked: the tiny policy, real tools, real tensors."""

from __future__ import annotations

import asyncio
import copy
import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, SamplingParams, make_batch, read_trajectories, rollout, tiny_policy_path
from toolgym.rollout.advantages import token_rewards
from toolgym.rollout.batch import check_batch, load_batch, pack_tree, save_batch
from toolgym.rollout.engines import TransformersEngine
from toolgym.rollout.engines.base import PauseMode
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.tokens import CutToolResults, KeepToolResults
from toolgym.rollout.trajectory import TrajectoryWriter


class Listening(TransformersEngine):
    """Keeps what goes in and comes out."""

    heard: dict

    async def _generate(self, request):
        generation = await super()._generate(request)
        self.heard[request.request_id] = (list(request.prompt_ids), generation)
        return generation


async def play(num_tasks, group_size, temperature=1.0, seed=0):
    tokenizer = load_tokenizer(tiny_policy_path())
    config = RunConfig(
        group_size=group_size, sampling=SamplingParams(max_new_tokens=96, temperature=temperature), seed=seed
    )
    engine = Listening(tiny_policy_path())
    engine.heard = {}
    async with engine:
        done = await rollout(
            "CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=num_tasks, config=config
        )
    return tokenizer, engine.heard, done


@pytest.fixture(scope="module")
def played():
    return asyncio.run(play(8, 4))


def test_it_calls_the_tool_and_solves_some_but_not_all(played):
    _, _, done = played
    assert not any(one.failed for one in done)
    success = sum(one.reward for one in done) / len(done)
    called = sum(bool(one.tool_calls) for one in done) / len(done)
    assert 0.15 < success < 0.8
    assert called > 0.5
    by_status = {record.status for one in done for record in one.tool_calls}
    assert "ok" in by_status
    solved = [one for one in done if one.reward == 1.0]
    assert any(one.tool_calls for one in solved)


def test_every_generated_id_is_the_engines_own(played):
    _, heard, done = played
    requests = set(heard)
    for one in done:
        context = list(one.prompt_ids)
        number = 0
        for segment in one.segments:
            if segment.is_policy:
                sent, generation = heard[f"{one.id}-{number}"]
                requests.discard(f"{one.id}-{number}")
                assert sent == context
                assert tuple(segment.token_ids) == generation.token_ids
                assert tuple(segment.logprobs) == generation.logprobs
                number += 1
            context += segment.token_ids.tolist()
    assert requests == set()  # nothing was generated that is in no record


def test_decoding_the_whole_sequence_gives_the_templates_rendering(played):
    tokenizer, _, done = played
    odd = 0
    for one in done:
        whole = tokenizer.decode([*one.prompt_ids, *one.response_ids])
        rendered = tokenizer.apply_chat_template(list(one.messages), tools=list(one.tools), tokenize=False)
        closing = "\n" if whole.endswith("<|im_end|>") else "<|im_end|>\n"  # a turn that was cut is not closed
        assert rendered == whole + closing
        odd += any(record.status not in ("ok", "error") for record in one.tool_calls)
    assert odd  # malformed calls are among them, and are exact too


def test_the_samplers_log_probs_are_the_models(played):
    _, _, done = played
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32).eval()
    batch = make_batch(done, pad_token_id=0)
    with torch.no_grad():
        logits = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits
    width = batch.prompts.shape[1]
    log_probs = logits[:, width - 1 : -1].float().log_softmax(-1).gather(2, batch.responses[..., None])[..., 0]
    difference = (log_probs - batch.rollout_log_probs).abs() * batch.response_mask
    assert difference.max() < 1e-3


def test_a_tree_of_the_run_has_the_samplers_log_probs_and_its_rewards(played):
    _, _, done = played
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32).eval()
    batch = make_batch(done, pad_token_id=0)
    tree = pack_tree(batch.select(range(min(8, len(batch)))))
    assert len(tree) < len(tree.packed)  # a group shares its prompt at least
    with torch.no_grad():
        logits = model(
            tree.input_ids[None], attention_mask=tree.additive_mask(), position_ids=tree.position_ids[None]
        ).logits[0]
    assert (tree.token_log_probs(logits) - tree.packed.rollout_log_probs).abs().max() < 1e-3
    for one, rewards in zip(done, map(token_rewards, done), strict=True):
        given = [turn.reward for turn in one.turns if turn.reward]
        assert [value for values in rewards for value in values[values != 0]] == given


def test_files_lead_back_to_the_run(played, tmp_path):
    _, _, done = played
    with TrajectoryWriter(tmp_path / "trajectories.jsonl") as writer:
        for one in done:
            writer.write(one)
    back = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    assert back == done
    batch = make_batch(back, pad_token_id=0)
    save_batch(batch, tmp_path / "batch.safetensors")
    again = load_batch(tmp_path / "batch.safetensors")
    check_batch(again, back)


async def test_a_seed_repeats_a_run_and_greedy_needs_none():
    _, _, first = await play(2, 2, seed=5)
    _, _, second = await play(2, 2, seed=5)
    _, _, other = await play(2, 2, seed=6)
    assert [one.response_ids.tolist() for one in first] == [one.response_ids.tolist() for one in second]
    assert [one.response_ids.tolist() for one in first] != [one.response_ids.tolist() for one in other]
    _, _, greedy = await play(1, 3, temperature=0.0)
    assert len({tuple(one.response_ids) for one in greedy}) == 1


class Interrupted(Listening):
    """Aborts everything and changes the weights, after so many tokens of the run and once more later."""

    def __init__(self, model, *, changed):
        super().__init__(model)
        self.heard = {}
        self.changed = changed

    async def interrupt(self):
        for version, weights in self.changed.items():
            while sum(request.row.token_ids != [] for request in list(self._running)) < 4:
                await asyncio.sleep(0.001)
            await self.pause(PauseMode.ABORT)
            await self.update_weights(weights, version=version)
            await self.resume()


async def test_weights_that_change_in_the_middle_of_turns_leave_every_token_exact():
    models = {"": AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32).eval()}
    for version in ("1", "2"):
        models[version] = copy.deepcopy(models[""])
        generator = torch.Generator().manual_seed(int(version))
        with torch.no_grad():
            for value in models[version].parameters():
                value += 0.02 * value.abs().mean() * torch.randn(value.shape, generator=generator)
    config = RunConfig(group_size=4, sampling=SamplingParams(max_new_tokens=96), seed=1)
    changed = {version: models[version].state_dict() for version in ("1", "2")}
    async with Interrupted(tiny_policy_path(), changed=changed) as engine:
        models[engine.weight_version] = models.pop("")
        interrupting = asyncio.create_task(engine.interrupt())
        done = await rollout("CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=4, config=config)
        await asyncio.wait_for(interrupting, 60)
    assert not any(one.failed for one in done)
    resumed = [turn for one in done for turn in one.turns if turn.resumes]
    assert resumed
    assert all(turn.finish_reason != "abort" for one in done for turn in one.turns)
    within = [
        pair for one in done for pair in itertools.pairwise(one.segments) if pair[0].is_policy and pair[1].is_policy
    ]
    assert any(a.weight_versions[-1] != b.weight_versions[0] for a, b in within)

    batch = make_batch(done, pad_token_id=0)
    assert set(batch.version_numbers) == set(models)
    width = batch.prompts.shape[1]
    for version, model in models.items():
        with torch.no_grad():
            logits = model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
            ).logits
        log_probs = logits[:, width - 1 : -1].float().log_softmax(-1).gather(2, batch.responses[..., None])[..., 0]
        difference = (log_probs - batch.rollout_log_probs).abs()
        own = batch.weight_versions == batch.version_numbers[version]
        assert own.any()
        assert difference[own].max() < 1e-3
        others = batch.response_mask.bool() & ~own
        assert difference[others].max() > 1e-2  # so that the test could tell


@pytest.mark.parametrize("history", [pytest.param("append", marks=pytest.mark.matrix), "template"])
async def test_a_whole_run_with_context_policies_is_exact(history):
    config = RunConfig(
        group_size=4,
        sampling=SamplingParams(max_new_tokens=64),
        seed=2,
        history=history,
        on_truncated_turn="close",
        context=[CutToolResults(64), KeepToolResults(1)],
    )
    engine = Listening(tiny_policy_path())
    engine.heard = {}
    async with engine:
        done = await rollout("CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=12, config=config)
    assert not any(one.failed for one in done)
    sampled = 0
    for one in done:
        heard = iter([value for name, value in engine.heard.items() if name.startswith(one.id)])
        for sequence in one.sequences:
            context = list(sequence.prompt_ids)
            for segment in sequence.segments:
                if segment.is_policy:
                    sent, generation = next(heard)
                    assert (sent, generation.token_ids) == (context, tuple(segment.token_ids))
                    sampled += len(segment.token_ids)
                context += segment.token_ids.tolist()
        assert list(heard) == []
    batch = make_batch(done, pad_token_id=0)
    assert int(batch.response_mask.sum()) == sampled
    if history == "append":
        assert any(len(one.sequences) > 1 for one in done)
