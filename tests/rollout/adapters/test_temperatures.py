"""Temperatures on their way to trainers: no adapter hands on log-probabilities at another one than its trainer's."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import toolgym.rollout.adapters
from tests.rollout.adapters import slime_stand_in
from tests.rollout.adapters.test_images import AS_MESSAGES, SHARED, TEXT, tunix_module
from tests.rollout.adapters.test_skyrl import skyrl  # noqa: F401 - a fixture
from tests.rollout.adapters.test_stand_ins import cookbook, stand_in  # noqa: F401 - a fixture
from toolgym.rollout import make_batch
from toolgym.rollout.adapters import miles
from toolgym.rollout.adapters.areal import to_tensors
from toolgym.rollout.adapters.episode_settings import require_same_temperature, sampling_from
from toolgym.rollout.adapters.nemo_rl import to_batch, to_message_log
from toolgym.rollout.adapters.openrlhf import to_response
from toolgym.rollout.adapters.slime.generation import require_groups
from toolgym.rollout.adapters.slime.samples import METADATA
from toolgym.rollout.adapters.trainer_row import require_known_distribution
from toolgym.rollout.adapters.trl.rows import to_output
from toolgym.rollout.adapters.verl.rows import rows_of
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.trajectory import withhold_constrained
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.tools.errors import ConfigError

VOCABULARY = 50
LOGITS = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
"""A model for which only the token before matters."""
IDS, PROMPT = [7, 8, 9, 4], [5, 6]


def log_probs(ids, temperature):
    """Log-probabilities of all ids but the first, as a trainer computes them at its temperature."""
    path = torch.as_tensor(np.asarray(ids), dtype=torch.int64)
    each = (LOGITS[path[:-1]].double() / temperature).log_softmax(-1)
    return each.gather(1, path[1:, None])[:, 0]


def sampled_at(temperature):
    """A trajectory whose log-probabilities are those of an engine that samples at a temperature."""
    values = log_probs([*PROMPT, *IDS], temperature or 1.0)[len(PROMPT) - 1 :]
    segment = Segment.policy(IDS, values.numpy(), ["3"] * len(IDS))
    return dataclasses.replace(
        TEXT, id="t", sequences=(TokenSequence(PROMPT, (segment,)),), turns=(), sampling={"temperature": temperature}
    )


class Decoder:
    eos_token_id = 2

    def decode(self, ids, skip_special_tokens=True):
        return ""


def of_tinker(load, trajectory, temperature):
    adapter = load("tinker", **cookbook())
    for name in ("TrajectoryGroup", "Trajectory", "Transition"):
        setattr(adapter.types, name, SimpleNamespace)
    [group] = adapter.to_groups([trajectory])
    [turn] = group.trajectories_G[0].transitions
    return [*PROMPT, *turn.ac.tokens], turn.ac.maybe_logprobs


def of_torchrl(load, trajectory, temperature):
    adapter = load("torchrl", tensordict={"TensorDict": lambda source, batch_size, device: source})
    batch = adapter.to_tensordict(make_batch([trajectory], pad_token_id=0), torch.zeros(1))
    return batch["tokens"]["full"][0], batch["log_probs"]["full"][0, len(PROMPT) :]


def of_tunix(load, trajectory, temperature):
    adapter = tunix_module(load)
    bounds = {"group_size": 1, "pad_token_id": 0, "max_prompt_length": 40, "max_response_length": 40}
    [item] = adapter.to_items([trajectory], **bounds, temperature=temperature)
    return [*item.traj["prompt_tokens"], *item.traj["conversation_tokens"]], item.traj["old_logprobs"]


def of_nemo_rl(load, trajectory, temperature):
    prompt, turn, *_ = to_message_log(trajectory, Decoder(), temperature=temperature)
    assert to_batch([trajectory], tokenizer=Decoder(), temperature=temperature)["loss_multiplier"].tolist() == [1.0]
    return torch.cat([prompt["token_ids"], turn["token_ids"]]), turn["generation_logprobs"]


def of_trl(load, trajectory, temperature):
    output = to_output([trajectory], filler_id=2, temperature=temperature)
    return output["prompt_ids"][0] + output["completion_ids"][0], output["logprobs"][0]


def of_openrlhf(load, trajectory, temperature):
    response = to_response(trajectory, temperature=temperature)
    return response["observation_tokens"], response["rollout_log_probs"][len(PROMPT) :]


def of_areal(load, trajectory, temperature):
    tensors = to_tensors(trajectory, temperature=temperature)
    return tensors["input_ids"][0], tensors["logprobs"][0, len(PROMPT) :]


def of_verl(load, trajectory, temperature):
    options = {"response_length": 40, "pad_token_id": 0, "temperature": temperature}
    [row] = rows_of(trajectory, **options)
    return [*row.sequence.prompt_ids, *row.sequence.response_ids], row.sequence.logprobs


FIXED_AT_1 = {"tinker": of_tinker, "torchrl": of_torchrl}
"""Trainers whose losses take the logits as they are."""

TOLD = {
    "tunix": of_tunix,
    "nemo_rl": of_nemo_rl,
    "trl": of_trl,
    "openrlhf": of_openrlhf,
    "areal": of_areal,
    "verl": of_verl,
}
"""Trainers whose temperature the adapter is given. Those of slime and SkyRL need further stand-ins: they are below."""

OWN_LOOP = {*AS_MESSAGES, "verifiers"}
"""Trainers that sample by themselves, or get the sampling along with the tokens."""


def test_every_adapter_is_told_of_here():
    folder = Path(toolgym.rollout.adapters.__file__).parent
    names = {path.stem for path in folder.iterdir() if path.stem[:1] not in "_."}
    assert names == {*FIXED_AT_1, *TOLD, *OWN_LOOP, *SHARED, "slime", "skyrl"}


def worst_ratio(ids, values, temperature):
    learned = log_probs(ids, temperature)[len(PROMPT) - 1 :]
    return float((torch.as_tensor(np.asarray(values, np.float64)) - learned).exp().sub(1).abs().max())


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("name", [*TOLD, *FIXED_AT_1])
def test_importance_ratios_begin_at_one_or_the_adapter_refuses(name, temperature, stand_in):  # noqa: F811
    rows = {**TOLD, **FIXED_AT_1}[name]
    trains_at = temperature if name in TOLD else 1.0
    if temperature != trains_at:
        with pytest.raises(ConfigError, match="importance ratios would not begin at 1"):
            rows(stand_in, sampled_at(temperature), trains_at)
        return
    ids, values = rows(stand_in, sampled_at(temperature), trains_at)
    assert worst_ratio(ids, values, trains_at) < 1e-4


@pytest.mark.parametrize("name", TOLD)
def test_an_adapter_refuses_another_temperature_than_its_trainers(name, stand_in):  # noqa: F811
    for sampled, trained in ((0.6, 1.0), (1.0, 0.6), (0.0, 0.6)):
        with pytest.raises(ConfigError, match=f"would compute them at temperature {trained:g}"):
            TOLD[name](stand_in, sampled_at(sampled), trained)


@pytest.mark.parametrize("name", [*TOLD, *FIXED_AT_1])
def test_turns_under_a_grammar_are_refused_and_masked_turns_are_taken(name, stand_in):  # noqa: F811
    rows = {**TOLD, **FIXED_AT_1}[name]
    free = sampled_at(1.0)
    whole = dataclasses.replace(free, sampling={"temperature": 1.0, "grammar": ["regex", "a+"]})
    with pytest.raises(ConfigError, match="under a grammar.*withhold_constrained"):
        rows(stand_in, whole, 1.0)
    [segment] = free.sequence.policy_segments
    turns = tuple(Turn("", "stop", 0, 2, reward=0.0, sampling=changed) for changed in ({}, {"grammar": ["regex", "a"]}))
    mixed = dataclasses.replace(
        free, turns=turns, sequences=(TokenSequence(PROMPT, (segment[:2], Segment.env([3]), segment[2:])),)
    )
    with pytest.raises(ConfigError, match="under a grammar|grammar regex"):
        rows(stand_in, mixed, 1.0)
    [trained] = withhold_constrained([mixed])
    _, values = rows(stand_in, trained, 1.0)
    assert np.allclose(np.asarray(values)[:2], segment.logprobs[:2])


def test_tunix_has_no_default_temperature_and_divides_nothing_by_zero(stand_in):  # noqa: F811
    with pytest.raises(TypeError, match="temperature"):
        tunix_module(stand_in).to_items(
            [sampled_at(1.0)], group_size=1, pad_token_id=0, max_prompt_length=40, max_response_length=40
        )
    ids, values = of_tunix(stand_in, sampled_at(0.0), 0.0)
    assert worst_ratio(ids, values, 1.0) < 1e-4
    with pytest.raises(ConfigError, match="would compute them at temperature 1"):
        of_tunix(stand_in, sampled_at(0.6), 0.0)


def test_slime_trains_at_the_temperature_of_the_rollout(monkeypatch, tokenizer):
    from toolgym.rollout.adapters.slime import to_samples

    slime_stand_in.install(monkeypatch, tokenizer)
    [[[sample]]] = to_samples([sampled_at(0.6)], tokenizer=tokenizer, temperature=0.6)
    assert worst_ratio(sample.tokens, sample.rollout_log_probs, 0.6) < 1e-4
    with pytest.raises(ConfigError, match="slime would compute them at temperature 1"):
        to_samples([sampled_at(0.6)], tokenizer=tokenizer)


def test_skyrl_trains_at_the_temperature_of_the_rollout(skyrl):  # noqa: F811
    from toolgym.rollout.adapters.skyrl import to_generator_output

    output = to_generator_output([sampled_at(1.4)], filler_id=2, temperature=1.4)
    ids = output["prompt_token_ids"][0] + output["response_ids"][0]
    assert worst_ratio(ids, output["rollout_logprobs"][0], 1.4) < 1e-4
    with pytest.raises(ConfigError, match="SkyRL would compute them at temperature 1"):
        to_generator_output([sampled_at(1.4)], filler_id=2)


def test_verls_queue_trains_at_the_temperature_of_the_rollout():
    pytest.importorskip("transfer_queue")
    from toolgym.rollout.adapters.verl.trainer_queue import queue_rows

    options = {"response_length": 40, "pad_token_id": 0, "global_steps": 1}
    [row] = queue_rows(sampled_at(0.6), **options, temperature=0.6)
    assert worst_ratio(row.fields["input_ids"], row.fields["rollout_log_probs"], 0.6) < 1e-4
    with pytest.raises(ConfigError, match="verl would compute them at temperature 1"):
        queue_rows(sampled_at(0.6), **options)


def test_episodes_of_a_validation_may_have_any_temperature():
    checked = dataclasses.replace(sampled_at(0.0), validate=True)
    require_known_distribution(checked, "any", 0.6)
    require_known_distribution(sampled_at(0.3), "any", None)
    with pytest.raises(ConfigError, match="was sampled at temperature 0.3"):
        require_known_distribution(sampled_at(0.3), "any", 0.6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {5: -100}),
        ("min_tokens", 5),
        ("min_new_tokens", 2),
        ("ignore_eos", True),
        ("bad_words", ["no"]),
        ("allowed_token_ids", [1, 2]),
        ("n", 2),
    ],
)
def test_sampling_that_no_loss_accounts_for_is_refused(name, value):
    for values in ({name: value}, SimpleNamespace(**{name: value})):
        with pytest.raises(ConfigError, match=f"the trainer's sampling has {name}="):
            sampling_from(values, 16)


def test_sampling_that_changes_nothing_is_taken():
    values = {
        "temperature": 0.7, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0,
        "logit_bias": None, "min_tokens": 1, "min_new_tokens": 0, "ignore_eos": False, "bad_words": [],
        "allowed_token_ids": None, "n": 1,
    }  # fmt: skip
    assert sampling_from(values, 16) == SamplingParams(max_new_tokens=16, temperature=0.7)


def test_a_trainer_with_two_temperatures_is_refused():
    sampling = SamplingParams(max_new_tokens=16, temperature=0.7)
    require_same_temperature("AReaL", sampling, 0.7, "gconfig.temperature", "actor.temperature")
    require_same_temperature("AReaL", sampling, None, "gconfig.temperature", "actor.temperature")
    with pytest.raises(ConfigError, match="samples at gconfig.temperature=0.7 and .* at actor.temperature=1"):
        require_same_temperature("AReaL", sampling, 1.0, "gconfig.temperature", "actor.temperature")


def test_miles_episodes_are_sampled_at_the_temperature_of_its_training():
    def sample(**facts):
        return SimpleNamespace(metadata={METADATA: {"usable": True, **facts}})

    args = SimpleNamespace(rollout_temperature=0.8, eval_temperature=0.0)
    for temperature in (0.8, 0.0):
        miles._require_temperature(args, sample(temperature=temperature))
    miles._require_temperature(args, sample())
    with pytest.raises(ConfigError, match="was sampled at temperature 0.5, and Miles .* --rollout-temperature 0.8"):
        miles._require_temperature(args, sample(temperature=0.5))


def test_slime_is_not_left_with_groups_of_one():
    def args(**changes):
        values = {"advantage_estimator": "grpo", "rewards_normalization": True, "n_samples_per_prompt": 1}
        return SimpleNamespace(**{**values, **changes})

    with pytest.raises(ConfigError, match="--n-samples-per-prompt 1"):
        require_groups(args())
    for changes in ({"n_samples_per_prompt": 2}, {"rewards_normalization": False}, {"advantage_estimator": "ppo"}):
        require_groups(args(**changes))


def test_skyrl_is_not_left_with_groups_of_one(skyrl):  # noqa: F811
    from toolgym.rollout.adapters.skyrl.trainer import _require_groups

    def cfg(estimator, samples):
        algorithm = SimpleNamespace(advantage_estimator=estimator)
        generator = SimpleNamespace(n_samples_per_prompt=samples)
        return SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm), generator=generator)

    with pytest.raises(ConfigError, match="n_samples_per_prompt=1"):
        _require_groups(cfg("grpo", 1))
    _require_groups(cfg("grpo", 2))
    _require_groups(cfg("gae", 1))


def trl_trainer(*eos_token_ids, masks=False, **generation):
    args = SimpleNamespace(mask_truncated_completions=masks, generation_kwargs=generation)
    return SimpleNamespace(args=args, eos_token_ids=list(eos_token_ids))


@pytest.fixture(scope="module")
def base_tokenizer(tokenizer):
    """A tokenizer whose eos token is not the token that ends a turn, as many base models have it."""
    other = copy.deepcopy(tokenizer)
    other.eos_token = other.pad_token = "<|endoftext|>"
    return other


def test_trl_does_not_mask_turns_that_end_with_another_token_than_eos(tokenizer, base_tokenizer):
    pytest.importorskip("trl")
    from toolgym.rollout.adapters.trl.trainer_checks import require_known_ends

    end, eos = tokenizer.eos_token_id, base_tokenizer.eos_token_id
    require_known_ends(trl_trainer(end, masks=True), tokenizer)
    require_known_ends(trl_trainer(eos), base_tokenizer)
    require_known_ends(trl_trainer(eos, end, masks=True), base_tokenizer)  # generation_config has it
    for generation in ({}, {"eos_token_id": end}):  # what truncates does not look at generation_kwargs
        with pytest.raises(ConfigError, match=r"<\|im_end\|>.*TRL would train on nothing"):
            require_known_ends(trl_trainer(eos, masks=True, **generation), base_tokenizer)


def test_trls_own_loop_does_not_sample_past_the_end_of_a_turn(tokenizer, base_tokenizer):
    pytest.importorskip("trl")
    from toolgym.rollout.adapters.trl.spec import EnvReward
    from toolgym.rollout.adapters.trl.trainer_checks import require_known_ends

    class Trainer(SimpleNamespace):
        def _log_metric(self, name, value):
            pass

    end, eos = tokenizer.eos_token_id, base_tokenizer.eos_token_id
    for trainer in (trl_trainer(eos, end), trl_trainer(eos, eos_token_id=[end])):
        require_known_ends(trainer, base_tokenizer, samples_by_itself=True)
    with pytest.raises(ConfigError, match="sample past the end of its turn"):
        require_known_ends(trl_trainer(eos), base_tokenizer, samples_by_itself=True)
    for trainer, words in ((trl_trainer(eos), "past the end"), (trl_trainer(eos, masks=True), "train on nothing")):
        log_metric = Trainer(**vars(trainer))._log_metric
        with pytest.raises(ConfigError, match=words):
            EnvReward(base_tokenizer)([], [], environments=[], log_metric=log_metric)


def test_the_model_of_these_tests_tells_temperatures_apart():
    assert worst_ratio([*PROMPT, *IDS], sampled_at(0.6).logprobs, 1.0) > 0.1
    assert math.isclose(worst_ratio([*PROMPT, *IDS], sampled_at(0.6).logprobs, 0.6), 0.0, abs_tol=1e-9)
