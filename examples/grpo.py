"""GRPO in PyTorch: the learner's module is the one that the engine samples from. `docs/own_env.md` explains it."""

import asyncio

import torch
from transformers import AutoModelForCausalLM

from toolgym.rollout import RunConfig, group_advantages, load_tokenizer, make_batch, rollout, tiny_policy_path
from toolgym.rollout.engines import TransformersEngine


def log_probs(model, batch):
    """The learner's log-probs of the responses: float32 [rows, response]."""
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    logits = model(batch.input_ids, **inputs, logits_to_keep=batch.responses.shape[1] + 1).logits
    return batch.token_log_probs(logits)  # at the temperature of the sampling


def advantages(trajectories, batch):
    """How much better than its group each row is, in standard deviations: float32 [rows, 1]."""
    return batch.per_row(trajectories, group_advantages(trajectories))[:, None]


async def main(steps=3):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    async with TransformersEngine(model) as engine:
        engine.tokenizer = load_tokenizer(tiny_policy_path())
        for step in range(steps):
            config = RunConfig(group_size=8, seed=0, training_step=step)
            trajectories = await rollout("sums:Sums-v0", engine, num_tasks=4, config=config)
            batch = make_batch(trajectories, pad_token_id=engine.tokenizer.pad_token_id)
            await engine.pause()
            learned, sampled = log_probs(model, batch), batch.rollout_log_probs
            mask, better = batch.response_mask, advantages(trajectories, batch)
            ratio = ((learned - sampled) * mask).exp()
            loss = -(torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better) * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            await engine.notify_weights_changed(str(step + 1))
            await engine.resume()
            apart = ((learned - sampled) * mask).abs().max()
            print(f"step {step}: mean reward {batch.rewards.mean():.2f}, log-probs apart by at most {apart:.0e}")


if __name__ == "__main__":
    asyncio.run(main())
