"""The real SGLang: each token stands on the weights that its version names, also with two clients and a full queue."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rollout.engines.test_real_sglang import gap, load
from toolgym.rollout.engines import Generation, PauseMode, SamplingParams, SGLangServer
from toolgym.rollout.models.tiny import tiny_policy_path

pytestmark = pytest.mark.sglang

CLOSE = 1e-3
PREFIX = [random.Random(5).randrange(3, 250) for _ in range(200)]
"""What all prompts share, as a system prompt: the old weights' keys and values of it are in the cache."""


@pytest.fixture(scope="module")
def url(farm: Any) -> str:
    """A server that generates four requests at once, so that others wait inside of it."""
    return str(farm.server_of(Path(tiny_policy_path()), "--max-running-requests", "4"))


@pytest.fixture
async def trainer(url: str) -> AsyncIterator[SGLangServer]:
    async with SGLangServer(url) as engine:
        yield engine
        if engine.paused is not None:
            await engine.resume()


def changed(model: Any, seed: int) -> Any:
    """A copy with other weights."""
    other = copy.deepcopy(model)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=source))
    return other


async def update(engine: SGLangServer, model: Any, version: str, mode: PauseMode | None, **options: Any) -> None:
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    if mode is not None:
        await engine.pause(mode)
    await engine.update_weights_from_tensors(weights, version=version, **options)
    if mode is not None:
        await engine.resume()


async def ask(engine: SGLangServer, number: int, tokens: int = 24) -> tuple[list[int], Generation]:
    ids = [*PREFIX, 3 + number, *range(10, 15)]
    params = SamplingParams(max_new_tokens=tokens)
    return ids, await engine.generate(ids, params, request_id=str(number), affinity=str(number))


async def test_in_place_a_client_that_did_not_update(url: str, trainer: SGLangServer) -> None:
    first = load(trainer.info.model_path)
    second = changed(first, 1)
    await update(trainer, first, "two clients 0", PauseMode.RETRACT)
    async with SGLangServer(url) as player:
        await asyncio.gather(*(ask(player, n) for n in range(4)))
        await update(trainer, second, "two clients 1", PauseMode.IN_PLACE)
        for _ in range(2):
            for ids, generation in await asyncio.gather(*(ask(player, n) for n in range(4, 8))):
                assert set(generation.weight_versions) == {"two clients 1"}
                assert gap(second, ids, generation) < CLOSE
        assert generation.cached_tokens > 190  # the second time on what the new weights computed
        assert player.weight_version == "two clients 1"


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
async def test_requests_that_wait_inside_of_sglang(trainer: SGLangServer, mode: PauseMode) -> None:
    first = load(trainer.info.model_path)
    second = changed(first, 2)
    old, new = f"queue {mode} 0", f"queue {mode} 1"
    await update(trainer, first, old, PauseMode.RETRACT)
    await ask(trainer, 100)
    asking = [asyncio.create_task(ask(trainer, n, 120)) for n in range(16)]
    while not ((busy := await trainer.load()) and busy.queued >= 8 and busy.running):
        await asyncio.sleep(0.01)
        assert not all(task.done() for task in asking)
    await update(trainer, second, new, mode)
    begun_after = 0
    for ids, generation in await asyncio.gather(*asking):
        if generation.weight_versions[0] == new:
            begun_after += 1
            assert gap(second, ids, generation) < CLOSE
        elif set(generation.weight_versions) == {old}:
            assert gap(first, ids, generation) < CLOSE
    assert begun_after >= 8


async def test_in_place_a_name_that_comes_twice(url: str, trainer: SGLangServer) -> None:
    model = load(trainer.info.model_path)
    for seed in (3, 4):
        model = changed(model, seed)
        await update(trainer, model, "step 1", PauseMode.IN_PLACE)
        ids, generation = await ask(trainer, seed)
        assert set(generation.weight_versions) == {"step 1"}
        assert gap(model, ids, generation) < CLOSE
    async with SGLangServer(url) as restarted:  # a trainer that begins again, against the same server
        assert restarted.weight_version == "step 1"
        model = changed(model, 5)
        await update(restarted, model, "step 1", PauseMode.IN_PLACE)
        ids, generation = await ask(restarted, 5)
        assert gap(model, ids, generation) < CLOSE


async def test_an_update_in_several_buckets_without_a_pause(url: str, trainer: SGLangServer) -> None:
    first = load(trainer.info.model_path)
    models = {"buckets 0": first, "buckets 1": changed(first, 6)}
    await update(trainer, first, "buckets 0", PauseMode.RETRACT)
    answers: list[tuple[list[int], Generation]] = []
    async with SGLangServer(url) as player:
        stop = asyncio.Event()

        async def play(number: int) -> None:
            while not stop.is_set():
                answers.append(await ask(player, number, 12))

        playing = [asyncio.create_task(play(n)) for n in range(6)]
        while len(answers) < 6:
            await asyncio.sleep(0.01)
        await update(trainer, models["buckets 1"], "buckets 1", None, bucket_bytes=150_000)
        before = len(answers)
        while len(answers) < before + 12:
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*playing)
    assert {version for _, one in answers for version in one.weight_versions} == set(models)
    for ids, generation in answers:
        if len(set(generation.weight_versions)) == 1:
            assert gap(models[generation.weight_versions[0]], ids, generation) < CLOSE
