"""What only the embedded engine does: weights, threads, exact sampling, failing models."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from toolgym.rollout.engines import FinishReason, Generation, PauseMode, SamplingParams, TransformersEngine
from toolgym.rollout.engines.embedded.decoding import DecodingBatch
from toolgym.rollout.engines.embedded.sampling import SamplingColumns, sample
from toolgym.rollout.engines.weights import check_weights
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError, EngineError

SHORT = SamplingParams(max_new_tokens=8)
LONG = SamplingParams(max_new_tokens=400)


def other_weights(model: torch.nn.Module, seed: int = 1) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.05 * torch.randn(value.shape, generator=source)
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def gap(model: torch.nn.Module, ids: list[int], generation: Any) -> float:
    with torch.no_grad():
        scored = model(torch.tensor([[*ids, *generation.token_ids]])).logits[0].log_softmax(-1)
    return max(
        abs(scored[len(ids) - 1 + place, token].item() - logprob)
        for place, (token, logprob) in enumerate(zip(generation.token_ids, generation.logprobs, strict=True))
    )


class Slowed:
    """A model whose steps take 10 ms more until `at_full_speed`: a long request is under way, and not soon over."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.steps = 0
        self._slow = True
        model.register_forward_pre_hook(self._before_a_step)

    def _before_a_step(self, *_: Any) -> None:
        self.steps += 1
        if self._slow:
            time.sleep(0.01)

    async def under_way(self) -> None:
        """Wait until some steps were made."""
        async with asyncio.timeout(60):
            while self.steps < 6:
                await asyncio.sleep(0.001)

    def at_full_speed(self) -> None:
        self._slow = False


# ---- weights


async def test_new_weights_take_effect_and_are_recorded_per_token(tiny_model: Qwen3ForCausalLM) -> None:
    slowed = Slowed(tiny_model)
    async with TransformersEngine(tiny_model, weight_version="w0") as engine:
        task = asyncio.create_task(engine.generate([1, 2, 3], LONG, request_id="a"))
        await slowed.under_way()
        await engine.update_weights(other_weights(tiny_model), version="w1")
        slowed.at_full_speed()
        generation = await task
        change = generation.weight_versions.index("w1")
        assert generation.weight_versions == ("w0",) * change + ("w1",) * (400 - change)
        assert 0 < change < 400
        assert engine.weight_version == "w1"
        fresh = await engine.generate([1, 2, 3], SHORT, request_id="b")
        assert fresh.weight_versions == ("w1",) * 8
        assert gap(tiny_model, [1, 2, 3], fresh) < 1e-4


async def test_weights_come_as_pairs_or_through_a_function(tiny_model: Qwen3ForCausalLM) -> None:
    async with TransformersEngine(tiny_model) as engine:
        new = other_weights(tiny_model)
        pairs = ((name, value.double()) for name, value in tuple(new.items()))
        new["lm_head.weight"] = new["model.embed_tokens.weight"]
        with pytest.raises(ConfigError, match="one tensor in the model"):
            await engine.update_weights(new | {"lm_head.weight": new["lm_head.weight"] + 1}, version="never")
        await engine.update_weights(pairs, version="1")
        await engine.update_weights(new, version="2")
        assert same(new, tiny_model.state_dict())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w | {"model.layers.0.self_attn.q_prj.weight": torch.ones(1)}, "did you mean"),
        (lambda w: {name: value for name, value in w.items() if "norm" not in name}, "lack"),
        (lambda w: w | {"model.norm.weight": torch.ones(3)}, r"shape \[64\], got \[3\]"),
        (lambda w: w | {"model.norm.weight": torch.ones(64, dtype=torch.int)}, "float32"),
        (lambda w: w | {"model.norm.weight": torch.ones(64, device="meta")}, "meta"),
        (lambda w: w | {"model.norm.weight": [1.0]}, "pairs"),
        (lambda w: [*w.items(), *w.items()], "twice"),
        (lambda w: list(w), "pairs"),
    ],
)
async def test_wrong_weights_change_nothing(tiny_model: Qwen3ForCausalLM, spoil: Any, message: str) -> None:
    before = snapshot(tiny_model)
    async with TransformersEngine(tiny_model) as engine:
        with pytest.raises(ConfigError, match=message):
            await engine.update_weights(spoil(other_weights(tiny_model)), version="1")
        assert engine.weight_version == "0"
        assert (await engine.generate([1], SHORT, request_id="a")).token_ids
    assert same(before, tiny_model.state_dict())


async def test_weights_come_from_a_folder(tiny_model_path: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.save_pretrained(tmp_path / "new")
    async with TransformersEngine(tiny_model_path) as engine:
        await engine.update_weights(tmp_path / "new", version="1")
        assert same(model.state_dict(), engine.model.state_dict())
        assert (await engine.generate([1], SHORT, request_id="a")).weight_versions == ("1",) * 8
        with pytest.raises(ConfigError, match="cannot be loaded"):
            await engine.update_weights(str(tmp_path / "absent"), version="2")
        with pytest.raises(ConfigError, match="version"):
            await engine.update_weights(tmp_path / "new", version="")
        assert engine.weight_version == "1"


async def test_a_learner_shares_the_module(tiny_model: Qwen3ForCausalLM) -> None:
    tiny_model.train()
    async with TransformersEngine(tiny_model) as engine:
        assert engine.model is tiny_model
        await engine.pause()
        optimizer = torch.optim.SGD(tiny_model.parameters(), lr=0.1)
        tiny_model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
        optimizer.step()
        await engine.notify_weights_changed("1")
        await engine.resume()
        generation = await engine.generate([4, 5], SHORT, request_id="a")
        assert generation.weight_versions == ("1",) * 8
        assert gap(tiny_model, [4, 5], generation) < 1e-4
    assert tiny_model.training


async def test_weights_can_be_updated_while_paused(tiny_model: Qwen3ForCausalLM) -> None:
    async with TransformersEngine(tiny_model) as engine:
        await engine.pause()
        await asyncio.wait_for(engine.update_weights(other_weights(tiny_model), version="1"), 60)
        await engine.resume()


async def test_a_retracted_request_goes_on_under_the_new_weights_alone(tiny_model: Qwen3ForCausalLM) -> None:
    slowed = Slowed(tiny_model)
    async with TransformersEngine(tiny_model, weight_version="w0") as engine:
        tasks = [
            asyncio.create_task(engine.generate([1, 2, number], LONG, request_id=str(number))) for number in range(3)
        ]
        await slowed.under_way()
        await engine.pause(PauseMode.RETRACT)
        slowed.at_full_speed()
        waiting = asyncio.create_task(engine.generate([5], SHORT, request_id="late"))
        await engine.update_weights(other_weights(tiny_model), version="w1")
        await engine.resume()
        for number, generation in enumerate(await asyncio.gather(*tasks)):
            change = generation.weight_versions.index("w1")
            assert 0 < change < 400
            assert generation.weight_versions == ("w0",) * change + ("w1",) * (400 - change)
            later = Generation(
                generation.token_ids[change:],
                generation.logprobs[change:],
                generation.finish_reason,
                generation.weight_versions[change:],
            )
            # Nothing of the old keys and values is left: the rest is as a plain forward pass of the new weights has it.
            assert gap(tiny_model, [1, 2, number, *generation.token_ids[:change]], later) < 1e-4
        assert (await waiting).weight_versions == ("w1",) * 8


async def test_a_pause_that_aborts_gives_partials_that_can_go_on(tiny_model: Qwen3ForCausalLM) -> None:
    slowed = Slowed(tiny_model)
    async with TransformersEngine(tiny_model, weight_version="w0", max_batch=2) as engine:
        tasks = [asyncio.create_task(engine.generate([1, number], LONG, request_id=str(number))) for number in range(3)]
        await slowed.under_way()
        await engine.pause(PauseMode.ABORT)
        slowed.at_full_speed()
        partials = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert [partial.finish_reason for partial in partials] == [FinishReason.ABORT] * 3
        assert partials[0].token_ids
        assert partials[2] == Generation((), (), FinishReason.ABORT, ())  # it was queued
        new = other_weights(tiny_model)
        await engine.update_weights(new, version="w1")
        again = asyncio.create_task(engine.generate([1, 0, *partials[0].token_ids], SHORT, request_id="0"))
        await asyncio.sleep(0.05)
        assert not again.done()
        await engine.resume()
        rest = await asyncio.wait_for(again, 60)
        assert rest.weight_versions == ("w1",) * 8
        assert gap(tiny_model, [1, 0, *partials[0].token_ids], rest) < 1e-4


async def test_a_pause_can_be_followed_by_a_harder_one(tiny_model: Qwen3ForCausalLM) -> None:
    slowed = Slowed(tiny_model)
    async with TransformersEngine(tiny_model) as engine:
        task = asyncio.create_task(engine.generate([1], LONG, request_id="a"))
        await slowed.under_way()
        await engine.pause()
        await engine.pause(PauseMode.RETRACT)
        await engine.pause(PauseMode.ABORT)
        assert (await asyncio.wait_for(task, 60)).finish_reason is FinishReason.ABORT
        with pytest.raises(ConfigError, match="'retract'"):
            await engine.pause("gently")  # type: ignore[arg-type]
        await engine.resume()


def test_a_tied_name_may_be_left_out(tiny_model: Qwen3ForCausalLM) -> None:
    weights = dict(tiny_model.state_dict())
    del weights["lm_head.weight"]
    check_weights(tiny_model, weights)


# ---- failures and threads


class Breaking(Qwen3ForCausalLM):
    """Works until it is told to break."""

    broken: str | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken == "raise":
            raise RuntimeError("no more memory")
        output = super().forward(*args, **kwargs)
        if self.broken == "nan":
            output.logits = output.logits * float("nan")
        return output


@pytest.mark.parametrize(("broken", "message"), [("raise", "no more memory"), ("nan", "NaN")])
async def test_a_model_that_fails_fails_every_request(tiny_model: Any, broken: str, message: str) -> None:
    tiny_model.__class__ = Breaking
    slowed = Slowed(tiny_model)
    async with TransformersEngine(tiny_model, max_batch=2) as engine:
        tasks = [asyncio.create_task(engine.generate([1], LONG, request_id=str(n))) for n in range(4)]
        await slowed.under_way()
        tiny_model.broken = broken
        for outcome in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
            assert isinstance(outcome, EngineError)
            assert message in str(outcome)
        with pytest.raises(EngineError, match=message):
            await engine.generate([1], SHORT, request_id="later")
        with pytest.raises(EngineError, match=message):
            await engine.pause()
        with pytest.raises(EngineError, match=message):
            await engine.update_weights(tiny_model.state_dict(), version="1")


async def test_closing_ends_the_thread(tiny_model: Qwen3ForCausalLM) -> None:
    before = set(threading.enumerate())
    engine = TransformersEngine(tiny_model)
    await asyncio.gather(engine.start(), engine.start())
    new = [thread for thread in set(threading.enumerate()) - before if thread.name == "toolgym-engine"]
    assert len(new) == 1
    await asyncio.gather(engine.close(), engine.close())
    assert not new[0].is_alive()


async def test_closing_while_paused_with_a_queue(tiny_model: Qwen3ForCausalLM) -> None:
    engine = TransformersEngine(tiny_model)
    await engine.start()
    await engine.pause()
    task = asyncio.create_task(engine.generate([1], SHORT, request_id="a"))
    await asyncio.sleep(0.01)
    await asyncio.wait_for(engine.close(), 60)
    assert (await task).finish_reason is FinishReason.ABORT


async def test_several_event_loops_share_an_engine(tiny_model: Qwen3ForCausalLM) -> None:
    async with TransformersEngine(tiny_model) as engine:

        def elsewhere(name: str) -> int:
            async def ask() -> int:
                return len((await engine.generate([1], SHORT, request_id=name)).token_ids)

            return asyncio.run(ask())

        assert await asyncio.gather(*(asyncio.to_thread(elsewhere, name) for name in "abc")) == [8, 8, 8]


async def test_global_random_states_are_untouched(tiny_model: Qwen3ForCausalLM) -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())

    before = states()
    async with TransformersEngine(tiny_model) as engine:
        await engine.generate([1], SHORT, request_id="a")
        await engine.generate([1], SamplingParams(max_new_tokens=8, seed=1, top_p=0.5), request_id="a")
    assert states() == before


# ---- models


async def test_sliding_windows_are_respected() -> None:
    config = Gemma3TextConfig(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=8, max_position_embeddings=256,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    model = Gemma3ForCausalLM(config).eval()
    async with TransformersEngine(model) as engine:
        prompts = [list(range(1, 2 + 5 * n)) for n in range(6)]
        params = SamplingParams(max_new_tokens=30)
        generations = await asyncio.gather(
            *(engine.generate(ids, params, request_id=str(n)) for n, ids in enumerate(prompts))
        )
        assert max(gap(model, ids, each) for ids, each in zip(prompts, generations, strict=True)) < 1e-4


async def test_a_model_with_recurrent_state_is_refused() -> None:
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    engine = TransformersEngine(MambaForCausalLM(config), context_length=64)
    with pytest.raises(ConfigError, match="embedded engine"):
        await engine.start()


async def test_requests_beyond_the_batch_wait_their_turn(tiny_model: Qwen3ForCausalLM) -> None:
    async with TransformersEngine(tiny_model, max_batch=3) as engine:
        generations = await asyncio.gather(*(engine.generate([n], SHORT, request_id=str(n)) for n in range(10)))
    assert all(len(each.token_ids) == 8 for each in generations)


async def test_a_path_is_loaded_by_start(tiny_model_path: Path) -> None:
    engine = TransformersEngine(tiny_model_path, dtype="float32")
    with pytest.raises(EngineError, match="start"):
        engine.vocab_size  # noqa: B018
    async with engine:
        assert (engine.vocab_size, engine.context_length) == (320, 512)
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], SHORT, request_id="a")


async def test_coming_going_and_cancelling_mix_nothing_up(tiny_model: Qwen3ForCausalLM) -> None:
    checked = undisturbed = 0

    async def one(engine: TransformersEngine, name: str) -> None:
        nonlocal checked, undisturbed
        source = random.Random(name)
        await asyncio.sleep(source.random() * 0.5)
        ids = [source.randrange(300) for _ in range(source.randint(1, 60))]
        params = SamplingParams(max_new_tokens=source.randint(1, 60), stop_token_ids=(source.randrange(300),))
        task = asyncio.create_task(engine.generate(ids, params, request_id=name))
        fate = source.random()
        undisturbed += fate >= 0.4
        if fate < 0.4:
            await asyncio.sleep(source.random() * 0.1)
            await engine.abort(name) if fate < 0.2 else task.cancel()
        try:
            generation = await task
        except asyncio.CancelledError:
            return
        if generation.token_ids:
            assert gap(tiny_model, ids, generation) < 1e-4
            checked += 1

    async with TransformersEngine(tiny_model, max_batch=16) as engine:
        await asyncio.gather(*(one(engine, str(n)) for n in range(150)))
    assert checked >= undisturbed > 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"num_threads": 0}, "num_threads"),
        ({"context_length": 1}, "context_length"),
        ({"dtype": "float32"}, "dtype"),
        ({"device": "cuda"}, "is on cpu"),
    ],
)
def test_wrong_arguments_are_refused(tiny_model: Qwen3ForCausalLM, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformersEngine(tiny_model, **arguments)


async def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="causal LM"):
        TransformersEngine(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        await TransformersEngine(tmp_path).start()


# ---- sampling, exactly

PROBS = torch.tensor([0.05, 0.4, 0.15, 0.1, 0.3])


def support(**narrowing: Any) -> dict[int, float]:
    """Share of a fine grid of uniform numbers that each id gets: its exact probability."""
    steps = 20_000
    uniforms = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    rows = [SamplingParams(max_new_tokens=1, **narrowing)]
    columns = SamplingColumns.of(rows * steps, torch.device("cpu"))
    ids, logprobs = sample(PROBS.log().repeat(steps, 1), columns, uniforms)
    if narrowing.get("temperature", 1.0) == 1.0:
        assert torch.allclose(logprobs, PROBS.log()[ids], atol=1e-6)
    return {token_id: count / steps for token_id, count in sorted(Counter(ids.tolist()).items())}


@pytest.mark.parametrize(
    ("narrowing", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 4]),
        ({"top_k": 100}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 4]),
        ({"top_p": 0.8}, [1, 2, 4]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.3}, [1, 2, 4]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.5}, [1, 4]),
    ],
)
def test_truncation_keeps_exactly_these(narrowing: Any, kept: list[int]) -> None:
    mass = sum(PROBS[index].item() for index in kept)
    found = support(**narrowing)
    assert list(found) == kept
    for index, share in found.items():
        assert share == pytest.approx(PROBS[index].item() / mass, abs=1e-4)


def test_temperature_scales_before_truncation() -> None:
    squared = PROBS**2 / (PROBS**2).sum()
    found = support(temperature=0.5)
    assert list(found.values()) == pytest.approx(squared.tolist(), abs=1e-4)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_never_give_an_impossible_id(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]])
    columns = SamplingColumns.of([SamplingParams(max_new_tokens=1)], torch.device("cpu"))
    ids, logprobs = sample(logits, columns, torch.tensor([uniform], dtype=torch.float64))
    assert ids.item() in (1, 2)
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("temperature", [0.0, 1e-7, 1e-5])
def test_tiny_temperatures_do_not_overflow(temperature: float) -> None:
    columns = SamplingColumns.of([SamplingParams(max_new_tokens=1, temperature=temperature)], torch.device("cpu"))
    ids, logprobs = sample(torch.tensor([[900.0, 1000.0, 20.0]]), columns, torch.tensor([0.9]).double())
    assert ids.item() == 1
    assert logprobs.item() == pytest.approx(0.0)


async def test_samples_follow_the_models_distribution() -> None:
    config = Qwen3Config(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=16,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2]])).logits[0, -1].softmax(-1)
    async with TransformersEngine(model) as engine:
        one = SamplingParams(max_new_tokens=1)
        generations = await asyncio.gather(*(engine.generate([1, 2], one, request_id=str(n)) for n in range(4000)))
    counts = Counter(each.token_ids[0] for each in generations)
    statistic = sum((counts[i] - 4000 * p) ** 2 / (4000 * p) for i, p in enumerate(expected.tolist()))
    assert statistic < 40  # chi-square with 7 degrees of freedom: p < 1e-6


# ---- folders that are not what they should be


def spoil(folder: Path, name: str, how: Any) -> None:
    path = folder / name
    if callable(how):
        path.write_text(how(path.read_text()))
    elif how is None:
        path.unlink()
    else:
        path.write_text(how)


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("model.safetensors", "garbage", "cannot be loaded"),
        ("model.safetensors", None, "cannot be loaded"),
        ("config.json", "garbage", "cannot be loaded"),
        ("config.json", lambda text: re.sub(r'"hidden_size": *\d+', '"hidden_size": 64', text), "other shapes"),
        ("config.json", lambda text: re.sub(r'"vocab_size": *\d+', '"vocab_size": 10', text), "cannot be loaded"),
    ],
)
async def test_a_spoilt_model_folder_is_told(tmp_path: Path, name: str, how: Any, said: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_policy_path(), folder)
    spoil(folder, name, how)
    with pytest.raises(ConfigError, match=said):
        await TransformersEngine(folder).start()


async def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_policy_path(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="lacks 1 weights, 'model.norm.weight'"):
        await TransformersEngine(folder).start()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_spoilt_tokenizer_is_told(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_policy_path(), folder)
    spoil(folder, name, "garbage")
    with pytest.raises(ConfigError, match="cannot load a tokenizer"):
        load_tokenizer(folder)
    spoil(folder, "tokenizer.json", None)
    with pytest.raises(ConfigError, match="no tokenizer.json"):
        load_tokenizer(folder)


async def test_a_start_that_is_given_up_leaves_no_thread() -> None:
    engine = TransformersEngine(tiny_policy_path())
    starting = asyncio.create_task(engine.start())
    async with asyncio.timeout(60):
        while not engine._starting.locked():
            await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    deadline = asyncio.get_running_loop().time() + 60
    while engine._starting.locked() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    assert not [one for one in threading.enumerate() if one.name == "toolgym-engine"]
    with pytest.raises(EngineError, match="closed"):
        await engine.start()


def test_the_cache_has_the_name_that_the_model_takes():
    class Renamed(torch.nn.Module):
        def forward(self, input_ids, cache=None):
            raise NotImplementedError

    class Earlier(torch.nn.Module):
        def forward(self, input_ids, past_key_values=None):
            raise NotImplementedError

    names = [DecodingBatch(model(), torch.device("cpu"))._cache_name for model in (Renamed, Earlier)]
    assert names == ["cache", "past_key_values"]
