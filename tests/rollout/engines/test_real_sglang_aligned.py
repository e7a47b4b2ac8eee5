"""The real SGLang with a tiny mixture of experts: routed experts and sampling masks, against transformers' own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from toolgym.rollout.engines import FinishReason, Generation, PauseMode, SamplingParams, SGLangServer
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError

pytestmark = pytest.mark.sglang

LAYERS, EXPERTS, PER_TOKEN = 3, 8, 2
PROMPT = [(7 * n) % 250 for n in range(1, 41)]
NARROW = SamplingParams(max_new_tokens=24, top_k=12, top_p=0.7)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture of experts with the tiny policy's tokenizer."""
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = load_tokenizer(tiny_policy_path())
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=EXPERTS,
        num_experts_per_tok=PER_TOKEN,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(4)
        model.lm_head.weight.mul_(5)  # so that top-p keeps few tokens at some places, and many at others
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_policy_path() / name, folder)
    return folder


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Any:
    return Qwen3MoeForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def url(farm: Any, model_folder: Path) -> str:
    return str(farm.server_of(model_folder, "--enable-return-routed-experts"))


@pytest.fixture
async def engine(url: str) -> AsyncIterator[SGLangServer]:
    async with SGLangServer(url, aligned=("routed_experts", "sampling_mask")) as server:
        yield server


def check(model: Any, prompt: list[int], generation: Generation, top_k: int) -> None:
    """Compare the payloads with a plain forward pass of transformers over the whole sequence."""
    count = len(generation.token_ids)
    with torch.no_grad():
        output = model(torch.tensor([[*prompt, *generation.token_ids]]), output_router_logits=True)
    gave = slice(len(prompt) - 1, len(prompt) - 1 + count)  # the positions whose logits gave the tokens
    experts = torch.stack([layer.topk(PER_TOKEN).indices for layer in output.router_logits], 1)[gave].numpy()
    routed = generation.aligned["routed_experts"]
    assert routed.dtype == np.int32
    assert routed.shape == (count, LAYERS, PER_TOKEN)
    assert np.array_equal(np.sort(routed), np.sort(experts))
    mask = generation.aligned["sampling_mask"]
    assert mask.dtype == np.int32
    assert mask.shape == (count, top_k)
    for row, token, logits in zip(mask, generation.token_ids, output.logits[0, gave], strict=True):
        kept = row[row >= 0]
        assert token in kept
        assert set(kept.tolist()) == set(logits.topk(len(kept)).indices.tolist())
        probs = logits.softmax(-1).sort(descending=True).values
        assert len(kept) == top_k or probs[: len(kept)].sum() > 0.7 - 1e-4
        assert probs[: len(kept) - 1].sum() < 0.7 + 1e-4


async def test_payloads_are_those_of_a_plain_forward_pass(engine: SGLangServer, model: Any) -> None:
    first = await engine.generate(PROMPT, NARROW, request_id="a")
    check(model, PROMPT, first, 12)
    assert len({(row >= 0).sum() for row in first.aligned["sampling_mask"]}) > 1  # top-p made some rows shorter
    # A second turn finds the first in the prefix cache.
    longer = [*PROMPT, *first.token_ids, 5, 6, 7]
    second = await engine.generate(longer, NARROW, request_id="b")
    assert second.cached_tokens > len(PROMPT)
    check(model, longer, second, 12)
    one = await engine.generate([9], NARROW, request_id="c")
    check(model, [9], one, 12)


async def test_many_requests_at_once_keep_their_own_payloads(engine: SGLangServer, model: Any) -> None:
    prompts = [[n + 1, *PROMPT[: 3 * n]] for n in range(12)]
    generations = await asyncio.gather(
        *(engine.generate(ids, NARROW, request_id=str(n)) for n, ids in enumerate(prompts))
    )
    for ids, generation in zip(prompts, generations, strict=True):
        check(model, ids, generation, 12)


async def test_the_parts_of_a_turn_that_was_aborted_stay_aligned(engine: SGLangServer, model: Any) -> None:
    params = SamplingParams(max_new_tokens=1200, top_k=12, top_p=0.7)
    task = asyncio.create_task(engine.generate(PROMPT, params, request_id="a"))
    await asyncio.sleep(0.3)
    await engine.generate([1, 2], SamplingParams(max_new_tokens=6, top_k=2), request_id="behind")  # "a" has begun
    await engine.pause(PauseMode.ABORT)
    part = await asyncio.wait_for(task, 120)
    assert part.finish_reason is FinishReason.ABORT
    assert 0 < len(part.token_ids) < 1200
    await engine.resume()
    rest = await engine.generate([*PROMPT, *part.token_ids], NARROW, request_id="a")
    whole = Generation(
        part.token_ids + rest.token_ids,
        part.logprobs + rest.logprobs,
        rest.finish_reason,
        part.weight_versions + rest.weight_versions,
        aligned={name: np.concatenate([part.aligned[name], rest.aligned[name]]) for name in part.aligned},
    )
    check(model, PROMPT, whole, 12)


async def test_an_abort_before_the_start_has_empty_payloads(engine: SGLangServer) -> None:
    await engine.pause()
    task = asyncio.create_task(engine.generate(PROMPT, NARROW, request_id="a"))
    await asyncio.sleep(0.05)
    await engine.abort("a")
    assert (await task).token_ids == ()
    await engine.resume()


async def test_greedy_and_top_k_1_keep_one_token(engine: SGLangServer) -> None:
    for params in (SamplingParams(max_new_tokens=4, temperature=0), SamplingParams(max_new_tokens=4, top_k=1)):
        generation = await engine.generate(PROMPT, params, request_id="a")
        assert generation.aligned["sampling_mask"].T.tolist() == [list(generation.token_ids)]


async def test_a_server_without_the_flag_is_refused(farm: Any) -> None:
    with pytest.raises(ConfigError, match="--enable-return-routed-experts"):
        await SGLangServer(*farm.urls(1), aligned=("routed_experts",)).start()
