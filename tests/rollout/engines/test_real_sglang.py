"""The real SGLang: whole rollouts, new weights by every way, and what it tells about itself."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rollout.engines.test_tokenizer_probe import byte_tokenizer
from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, make_batch, rollout
from toolgym.rollout.engines import (
    FinishReason,
    Generation,
    GenerationRequest,
    PauseMode,
    SamplingParams,
    SGLangServer,
)
from toolgym.rollout.engines.sglang.weights import join_weights_update_group
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError, EngineError

pytestmark = pytest.mark.sglang

LONG = SamplingParams(max_new_tokens=400)
SHORT = SamplingParams(max_new_tokens=24)
PROMPT = [(7 * n) % 250 for n in range(1, 101)]


@pytest.fixture
async def engine(farm: Any) -> AsyncIterator[SGLangServer]:
    async with SGLangServer(*farm.urls(1)) as server:
        yield server


def load(path: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


async def begun(engine: SGLangServer) -> None:
    """Wait until the requests that were sent before have begun: later ones are served behind them."""
    await asyncio.sleep(0.05)
    await engine.generate([1, 2, 3], SamplingParams(max_new_tokens=6), request_id="begun")


def gap(model: Any, ids: list[int], generation: Generation) -> float:
    """Largest difference between the sampler's logprobs and those of a plain forward pass."""
    with torch.no_grad():
        scored = model(torch.tensor([[*ids, *generation.token_ids]])).logits[0].log_softmax(-1)
    return max(
        abs(scored[len(ids) - 1 + place, token].item() - logprob)
        for place, (token, logprob) in enumerate(zip(generation.token_ids, generation.logprobs, strict=True))
    )


async def tolerance(engine: SGLangServer) -> float:
    (info,) = (await engine.server_info()).values()
    return 1e-3 if info["dtype"] == "float32" else 0.05


# ---- a whole rollout


class Listening(SGLangServer):
    """Keeps what goes in and comes out."""

    heard: dict[str, tuple[list[int], Generation]]

    async def _generate(self, request: GenerationRequest) -> Generation:
        generation = await super()._generate(request)
        self.heard[request.request_id] = (list(request.prompt_ids), generation)
        return generation


async def test_a_whole_rollout_is_exact_and_reuses_its_prefixes(farm: Any) -> None:
    async with Listening(*farm.urls(1)) as engine:
        engine.heard = {}
        config = RunConfig(group_size=4, sampling=SamplingParams(max_new_tokens=96), seed=3)
        done = await rollout("CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=8, config=config)
        limit = await tolerance(engine)
        model = load(engine.info.model_path)
    assert not any(one.failed for one in done)
    later_turns = 0
    for one in done:
        context = list(one.prompt_ids)
        before: list[int] = []
        number = 0
        for segment in one.segments:
            if segment.is_policy:
                sent, generation = engine.heard[f"{one.id}-{number}"]
                assert sent == context
                assert tuple(segment.token_ids) == generation.token_ids
                assert sent[: len(before)] == before
                if before:
                    later_turns += 1
                    assert generation.cached_tokens > 0.9 * len(before)
                before = [*sent, *generation.token_ids]
                number += 1
            context += segment.token_ids.tolist()
    assert later_turns >= 8
    batch = make_batch(done, pad_token_id=0)
    with torch.no_grad():
        logits = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits
    width = batch.prompts.shape[1]
    log_probs = logits[:, width - 1 : -1].float().log_softmax(-1).gather(2, batch.responses[..., None])[..., 0]
    assert ((log_probs - batch.rollout_log_probs).abs() * batch.response_mask).max() < limit


async def test_another_tokenizer_is_refused_before_the_first_episode(engine: SGLangServer) -> None:
    await engine.check_tokenizer(load_tokenizer(engine.info.tokenizer_path))
    with pytest.raises(ConfigError, match=f"is not that of the model at {engine.urls[0]}"):
        await rollout("CodeInterpreter-v0", engine, ArithmeticTasks(), num_tasks=1, tokenizer=byte_tokenizer())


# ---- weights


@pytest.fixture
async def other(engine: SGLangServer, tmp_path: Path) -> AsyncIterator[Path]:
    """A folder with other weights; the server gets its own back afterwards."""
    own, version = engine.info.model_path, engine.weight_version
    folder = tmp_path / "other"
    model = load(own)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * parameter.abs().mean() * torch.randn(parameter.shape, generator=source))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (Path(own) / name).exists():
            shutil.copy(Path(own) / name, folder)
    try:
        yield folder
    finally:
        if engine.paused is not None:
            await engine.resume()
        await engine.update_weights_from_disk(own, version=version)


def state(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in load(str(folder)).state_dict().items() if name != "lm_head.weight"}


async def test_partials_go_on_under_new_weights(engine: SGLangServer, other: Path) -> None:
    first = engine.weight_version
    old, new = load(engine.info.model_path), load(str(other))
    limit = await tolerance(engine)
    tasks = [
        asyncio.create_task(engine.generate([*PROMPT, n], LONG, request_id=str(n), affinity=str(n))) for n in range(6)
    ]
    await begun(engine)
    await engine.pause(PauseMode.ABORT)
    partials = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await engine.update_weights_from_disk(str(other), version="2")
    assert engine.weight_version == "2"
    await engine.resume()
    for n, partial in enumerate(partials):
        assert partial.finish_reason is FinishReason.ABORT
        assert 0 < len(partial.token_ids) < 400
        assert set(partial.weight_versions) == {first}
        assert gap(old, [*PROMPT, n], partial) < limit
        whole = [*PROMPT, n, *partial.token_ids]
        rest = await engine.generate(whole, SHORT, request_id=str(n), affinity=str(n))
        assert set(rest.weight_versions) == {"2"}
        assert gap(new, whole, rest) < limit
        if n == 0:
            assert rest.cached_tokens == 0  # nothing that the old weights computed


async def test_a_retracted_request_is_computed_anew(engine: SGLangServer, other: Path) -> None:
    limit = await tolerance(engine)
    task = asyncio.create_task(engine.generate(PROMPT, LONG, request_id="a"))
    await begun(engine)
    await engine.pause(PauseMode.RETRACT)
    await engine.update_weights_from_tensors(state(other), version="3", bucket_bytes=2**20)
    await engine.resume()
    generation = await asyncio.wait_for(task, 120)
    change = generation.weight_versions.index("3")
    assert 0 < change < 400
    assert generation.weight_versions[change:] == ("3",) * (400 - change)
    later = Generation(
        generation.token_ids[change:],
        generation.logprobs[change:],
        generation.finish_reason,
        generation.weight_versions[change:],
    )
    assert gap(load(str(other)), [*PROMPT, *generation.token_ids[:change]], later) < limit


async def test_a_pause_in_place_leaves_no_stale_prefix(engine: SGLangServer, other: Path) -> None:
    await engine.generate(PROMPT, SHORT, request_id="a")
    assert (await engine.generate(PROMPT, SHORT, request_id="a")).cached_tokens > 90
    task = asyncio.create_task(engine.generate(PROMPT, LONG, request_id="long"))
    await begun(engine)
    await engine.pause(PauseMode.IN_PLACE)
    await engine.update_weights_from_tensors(state(other), version="4")
    await engine.resume()
    fresh = await engine.generate(PROMPT, SHORT, request_id="b")
    assert fresh.cached_tokens == 0
    assert gap(load(str(other)), PROMPT, fresh) < await tolerance(engine)
    assert (await engine.generate(PROMPT, SHORT, request_id="b")).cached_tokens > 90
    assert {*(await asyncio.wait_for(task, 120)).weight_versions} == {engine.info.weight_version, "4"}


async def test_weights_arrive_by_broadcast(engine: SGLangServer, other: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    backend = "gloo" if (await engine.server_info())[engine.urls[0]]["device"] == "cpu" else "nccl"
    weights = state(other)

    def join() -> Any:
        return join_weights_update_group(
            "127.0.0.1", port, engine.weights_world_size, group_name="learner", backend=backend, timeout=240
        )

    group, _ = await asyncio.gather(
        asyncio.to_thread(join),
        engine.init_weights_update_group("127.0.0.1", port, group_name="learner", backend=backend),
    )

    def broadcast() -> None:
        for tensor in weights.values():
            torch.distributed.broadcast(tensor.cuda() if backend == "nccl" else tensor, src=0, group=group)

    try:
        await asyncio.gather(
            asyncio.to_thread(broadcast),
            engine.update_weights_from_distributed(
                [(name, str(value.dtype), value.shape) for name, value in weights.items()],
                version="5",
                group_name="learner",
            ),
        )
    finally:
        await engine.destroy_weights_update_group("learner")
        torch.distributed.destroy_process_group(group)
    generation = await engine.generate(PROMPT, SHORT, request_id="a")
    assert set(generation.weight_versions) == {"5"}
    assert gap(load(str(other)), PROMPT, generation) < await tolerance(engine)


async def test_weights_that_do_not_fit_are_refused_by_name(engine: SGLangServer, tmp_path: Path) -> None:
    version = engine.weight_version
    with pytest.raises(EngineError, match=f"{engine.urls[0]}/update_weights_from_disk"):
        await engine.update_weights_from_disk(str(tmp_path / "absent"), version="never")
    assert engine.weight_version == version
    assert (await engine.generate(PROMPT, SHORT, request_id="a")).weight_versions == (version,) * 24


# ---- the rest of the control plane


async def test_the_cache_can_be_flushed(engine: SGLangServer) -> None:
    await engine.generate(PROMPT, SHORT, request_id="a")
    assert (await engine.generate(PROMPT, SHORT, request_id="a")).cached_tokens > 90
    await engine.flush_cache()
    assert (await engine.generate(PROMPT, SHORT, request_id="a")).cached_tokens == 0
    task = asyncio.create_task(engine.generate(PROMPT, LONG, request_id="a"))
    await begun(engine)
    with pytest.raises(EngineError, match="flush_cache"):
        await engine.flush_cache()
    await engine.abort("a")
    await task


async def test_it_tells_what_it_does(engine: SGLangServer) -> None:
    (url,) = engine.urls
    before = (await engine.metrics())[url]
    assert any(name.startswith("sglang:") for name in before)
    await asyncio.gather(*(engine.generate(PROMPT, SHORT, request_id=str(n)) for n in range(4)))
    after = (await engine.metrics())[url]
    counted = [name for name in after if name.startswith("sglang:num_requests_total")]
    assert sum(after[name] for name in counted) - sum(before.get(name, 0.0) for name in counted) == 4
    (loads,) = (await engine.loads()).values()
    assert loads[0]["max_running_requests"] > 0
    assert (await engine.server_info())[url]["version"] == engine.info.sglang_version


async def test_memory_is_released_and_taken_again(engine: SGLangServer) -> None:
    with contextlib.suppress(EngineError):  # an earlier generation may still be leaving
        await engine.flush_cache()
    await engine.release_memory_occupation(["kv_cache"])
    await engine.resume_memory_occupation(["kv_cache"])
    assert (await engine.generate(PROMPT, SHORT, request_id="a")).token_ids


async def test_a_slow_answer_is_given_up_and_ended_there(farm: Any) -> None:
    async with SGLangServer(*farm.urls(1), request_timeout=0.3) as engine:
        with pytest.raises(EngineError, match=r"0\.3 seconds"):
            await engine.generate(PROMPT, SamplingParams(max_new_tokens=1500), request_id="a")
        for _ in range(600):
            if sum(one["num_running_reqs"] for one in (await engine.loads())[engine.urls[0]]) == 0:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("the server still runs the request")


async def test_a_rollout_goes_on_across_an_update_of_the_weights(engine: SGLangServer, other: Path) -> None:
    """Partial rollouts: what runs is aborted, the weights change, and every turn goes on from its exact ids."""
    first = engine.weight_version
    old, new = load(engine.info.model_path), load(str(other))
    config = RunConfig(group_size=4, sampling=SamplingParams(max_new_tokens=96), seed=4)
    playing = asyncio.create_task(
        rollout("CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=8, config=config)
    )
    while sum(engine.requests_in_flight.values()) < 8:
        assert not playing.done()
        await asyncio.sleep(0.01)
    await begun(engine)
    await engine.pause(PauseMode.ABORT)
    await engine.update_weights_from_disk(str(other), version="2")
    await engine.resume()
    done = await asyncio.wait_for(playing, 480)
    assert [one.error for one in done] == [None] * 32
    assert any(turn.resumes for one in done for turn in one.turns)
    mixed = [
        one
        for one in done
        if len({version for segment in one.segments if segment.is_policy for version in segment.weight_versions}) == 2
    ]
    assert mixed
    batch = make_batch(done, pad_token_id=0)
    width = batch.prompts.shape[1]
    limit = await tolerance(engine)
    policy = batch.response_mask.bool()
    for model, version in ((old, first), (new, "2")):
        with torch.no_grad():
            logits = model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
            ).logits
        log_probs = logits[:, width - 1 : -1].float().log_softmax(-1).gather(2, batch.responses[..., None])[..., 0]
        own = policy & (batch.weight_versions == batch.version_numbers[version])
        assert own.any()
        assert (log_probs - batch.rollout_log_probs)[own].abs().max() < limit
