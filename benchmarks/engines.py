"""The embedded engine against what transformers itself offers, on one tiny random model, in one run.

Every contender gets the same prompts and generates the same number of tokens, with a logprob for each. Run:

    python benchmarks/engines.py [--requests 64] [--tokens 64] [--rounds 3] [--threads 1]

It measures overhead: the model is so small that its arithmetic hardly counts. Not measured: GPUs, and models
whose forward pass dominates, where all contenders come close to each other. The best round of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM, logging
from transformers.generation import ContinuousBatchingConfig

from toolgym.rollout.engines import SamplingParams, TransformersEngine

Prompts = list[list[int]]


def make_model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).eval()


def hf_generate(model: Qwen3ForCausalLM, prompts: Prompts, tokens: int) -> int:
    """`generate` on one static batch: all requests arrive and end together."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = output.sequences[:, width:]
        torch.stack(output.logits, 1).log_softmax(-1).gather(2, new[..., None])
    return new.numel()


def hf_continuous(model: Qwen3ForCausalLM, prompts: Prompts, tokens: int) -> int:
    """transformers' own continuous batching."""
    outputs = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            return_logprobs=True,
            num_blocks=96,
            page_size=64,
            max_batch_tokens=4096,
            max_requests_per_batch=len(prompts),
            use_cuda_graph=False,
            use_async_batching=False,
            auto_switch_to_flash=False,
        ),
        progress_bar=False,
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


async def _embedded(engine: TransformersEngine, prompts: Prompts, tokens: int, *, ragged: bool) -> int:
    source = random.Random(1)

    async def one(number: int, prompt: list[int]) -> int:
        length = tokens
        if ragged:
            length = source.randint(max(1, tokens // 8), tokens)
            await asyncio.sleep(0.005 * number)
        params = SamplingParams(max_new_tokens=length)
        return len((await engine.generate(prompt, params, request_id=str(number))).token_ids)

    return sum(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))


async def embedded_rates(
    model: Qwen3ForCausalLM, prompts: Prompts, tokens: int, rounds: int
) -> tuple[float, float, float]:
    """Tokens per second: all at once, staggered with ragged lengths, and one request alone."""
    async with TransformersEngine(model, max_batch=len(prompts)) as engine:

        async def best(prompts: Prompts, *, ragged: bool) -> float:
            rates = []
            for _ in range(rounds):
                began = time.perf_counter()
                count = await _embedded(engine, prompts, tokens, ragged=ragged)
                rates.append(count / (time.perf_counter() - began))
            return max(rates)

        return (
            await best(prompts, ragged=False),
            await best(prompts, ragged=True),
            await best(prompts[:1], ragged=False),
        )


def best_rate(run: Callable[[], int], rounds: int) -> float:
    """Tokens per second of the best round."""
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        count = run()
        rates.append(count / (time.perf_counter() - began))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()

    model = make_model()
    source = random.Random(0)
    prompts = [[source.randrange(3, 512) for _ in range(source.randint(20, 80))] for _ in range(options.requests)]
    together, staggered, alone = asyncio.run(embedded_rates(model, prompts, options.tokens, options.rounds))
    rates = {
        "TransformersEngine, all at once": together,
        "TransformersEngine, staggered and ragged": staggered,
        "TransformersEngine, one request": alone,
        "transformers generate, static batch": best_rate(
            lambda: hf_generate(model, prompts, options.tokens), options.rounds
        ),
        "transformers continuous batching": best_rate(
            lambda: hf_continuous(model, prompts, options.tokens), options.rounds
        ),
    }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.2f}M parameters, {options.requests} requests x {options.tokens} new tokens")
    for name, rate in rates.items():
        print(f"{name:42s} {rate:8.0f} tokens/s   {rate / together:5.2f} x")


if __name__ == "__main__":
    main()
