"""A policy learns a game by playing against itself, on a CPU, in a minute or two: GRPO for two roles.

    python examples/learn_nim.py --seed 0

A small model with random weights first imitates a player that takes stones by chance, so that its moves are legal.
Then one engine plays both roles of `NimEnv`, and learns from both: each role's games of one pile are a group of their
own. Before and after, it plays as each role against a frozen copy of the player by chance, which is not trained.
"""

import argparse
import asyncio
import copy
import random
import re
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from toolgym.envs.library.nim import NimEnv, nim_task
from toolgym.rollout import (
    EnvFactory,
    RolePlan,
    RunConfig,
    SamplingParams,
    group_advantages,
    load_tokenizer,
    make_batch,
    rollout,
    tiny_policy_path,
)
from toolgym.rollout.engines import CallableEngine, TransformersEngine

SAMPLING = SamplingParams(max_new_tokens=4)
ENTROPY = 0.02
"""Weight of the entropy: without it, both players soon take one stone each time, which is always legal."""

PILES = [nim_task(pile) for pile in (5, 6, 7, 8)]


def nim():
    return NimEnv(rules="")  # what the model need not read costs no time


def small_model(tokenizer, seed):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def log_probs(model, batch):
    """Log-probs of the responses, and the entropies of what they were drawn from: float32 [rows, response] each."""
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    logits = model(batch.input_ids, **inputs, logits_to_keep=batch.responses.shape[1] + 1).logits[:, :-1]
    every = (logits / batch.temperatures[..., None]).log_softmax(-1)  # what the engine sampled from
    return every.gather(-1, batch.responses[..., None])[..., 0], -(every.exp() * every).sum(-1)


async def imitate(model, optimizer, tokenizer, steps):
    """Teach the model the moves of a player that takes any legal number of stones by chance."""

    async def by_chance(request):
        left = int(re.findall(r"(\d+) left", tokenizer.decode(request.prompt_ids))[-1])
        number = random.Random(request.params.seed).randint(1, min(3, left))
        ids = [*tokenizer.encode(str(number)), tokenizer.eos_token_id]
        return ids, [0.0] * len(ids)

    async with CallableEngine(by_chance, tokenizer=tokenizer, context_length=512, vocab_size=len(tokenizer)) as engine:
        played = await rollout(nim, engine, PILES, config=RunConfig(seed=0, group_size=32))
    batch = make_batch(played, pad_token_id=tokenizer.pad_token_id)
    for _ in range(steps):
        part = batch.select(torch.randperm(len(batch))[:64])
        loss = -(log_probs(model, part)[0] * part.response_mask).sum() / part.response_mask.sum()
        step(optimizer, model, loss)
    print(f"imitation: loss {loss.item():.3f}", flush=True)


def step(optimizer, model, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


async def evaluate(engine, opponent, games):
    """Mean reward (1 for a win, -1 for a loss) as each role, against the frozen opponent."""
    config = RunConfig(seed=1, validate=True, group_size=games, sampling=SAMPLING)
    means = []
    for role, other in (NimEnv.roles, NimEnv.roles[::-1]):
        env = EnvFactory.of(nim, roles={other: RolePlan(engine=opponent, train=False)})
        played = await rollout(env, engine, PILES, config=config)
        means.append(f"{role} {sum(each.reward for each in played) / len(played):+.3f}")
    return "mean reward as " + ", as ".join(means)


async def learn(engine, model, optimizer, number, seed, group_size):
    """One step of GRPO on games of the policy against itself."""
    config = RunConfig(seed=seed, training_step=number, group_size=group_size, sampling=SAMPLING)
    played = await rollout(nim, engine, PILES, config=config)
    usable = [each for each in played if each.usable]
    batch = make_batch(usable, pad_token_id=engine.tokenizer.pad_token_id)
    advantages = batch.per_row(usable, group_advantages(usable))[:, None]
    await engine.pause()
    learned, entropy = log_probs(model, batch)
    ratio = ((learned - batch.rollout_log_probs) * batch.response_mask).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) + ENTROPY * entropy
    step(optimizer, model, -(gain * batch.response_mask).sum() / batch.response_mask.sum())
    await engine.notify_weights_changed(str(number + 1))
    await engine.resume()
    legal = sum(each.metrics["legal"] for each in usable) / len(usable)
    print(f"step {number + 1}: {len(usable)} trajectories, {legal:.3f} of games legal", flush=True)


async def main(seed, steps, imitation_steps, group_size, learning_rate, games):
    """Train, and print the reward against the frozen opponent before and after."""
    tokenizer = load_tokenizer(tiny_policy_path())
    model = small_model(tokenizer, seed)
    await imitate(model, torch.optim.AdamW(model.parameters(), lr=3e-3), tokenizer, imitation_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    async with TransformersEngine(copy.deepcopy(model)) as opponent, TransformersEngine(model) as engine:
        opponent.tokenizer = engine.tokenizer = tokenizer
        print("before:", await evaluate(engine, opponent, games), flush=True)
        computed = time.process_time()
        for number in range(steps):
            await learn(engine, model, optimizer, number, seed, group_size)
        print(f"{steps} steps took {time.process_time() - computed:.0f} s of this process")
        print("after: ", await evaluate(engine, opponent, games))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--imitation-steps", type=int, default=200)
    parser.add_argument("--group-size", type=int, default=16, help="games of each of the 4 piles in a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--games", type=int, default=32, help="games of each pile to evaluate on")
    asyncio.run(main(**vars(parser.parse_args())))
