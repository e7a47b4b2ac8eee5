"""A policy learns to use the code interpreter: GRPO in plain PyTorch, on our batch, on a CPU or GPU, in minutes.

    python examples/learn_plain_torch.py --seed 0
    python examples/learn_plain_torch.py --seed 0 --device cuda

`learn_code_interpreter.py` does the same with TRL, and says how the starting policy was made, what the held-out tasks
are, and how success is measured. The three functions below, of about 60 lines, are the whole trainer. The engine
samples from the module that learns, so no weights are copied; in a tree the eight episodes of a task share its prompt.
"""

import argparse
import asyncio
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not keep the tools from a processor

import torch
from transformers import AutoModelForCausalLM

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import (
    RunConfig,
    SamplingParams,
    group_advantages,
    load_tokenizer,
    make_batch,
    rollout,
    tiny_policy_path,
)
from toolgym.rollout.batch import pack_tree
from toolgym.rollout.engines import TransformersEngine

ENV = "CodeInterpreter-v0"


async def evaluate(engine, tasks, samples):
    """Shares of the episodes on held-out tasks that end with the right answer: sampled and greedy."""
    shares = []
    for temperature, count in ((1.0, samples), (0.0, 1)):
        sampling = SamplingParams(max_new_tokens=64, temperature=temperature)
        config = RunConfig(seed=1, validate=True, group_size=count, sampling=sampling)
        played = await rollout(ENV, engine, ArithmeticTasks("test").take(tasks, seed=1), config=config)
        shares.append(sum(one.reward for one in played) / len(played))
    return "sampled {:.3f}, greedy {:.3f}".format(*shares)


def learn(model, batch, advantages):
    """Add the gradient of the policy loss: a mean over all tokens of the policy."""
    for part in batch.micro_batches(max_tokens=2048, count="tree"):
        tree = pack_tree(part.batch, advantages[part.rows])  # a group has its prompt once
        logits = model(tree.input_ids[None], attention_mask=tree.additive_mask(), position_ids=tree.position_ids[None])
        packed, log_probs = tree.packed, tree.token_log_probs(logits.logits[0])
        ratio = ((log_probs - packed.rollout_log_probs) * packed.response_mask).exp()  # 1, but has a gradient
        loss = -(ratio * packed.advantages * packed.response_mask).sum() / batch.response_mask.sum()
        loss.backward()


async def main(seed, steps, groups, group_size, learning_rate, tasks, samples, device):
    """Train, and print success before and after."""
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    sampling = SamplingParams(max_new_tokens=64)
    async with TransformersEngine(model) as engine:
        engine.tokenizer = load_tokenizer(tiny_policy_path())
        print("before:", await evaluate(engine, tasks, samples), flush=True)
        computed = time.process_time()
        for step in range(steps):
            config = RunConfig(group_size=group_size, seed=seed, training_step=step, sampling=sampling)
            trajectories = await rollout(ENV, engine, num_tasks=groups, config=config)
            batch = make_batch(trajectories, pad_token_id=engine.tokenizer.pad_token_id).to(device)
            await engine.pause()
            learn(model, batch, batch.per_row(trajectories, group_advantages(trajectories)))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            await engine.notify_weights_changed(str(step + 1))
            await engine.resume()
            print(f"step {step + 1}: mean reward {batch.rewards.mean():.3f}", flush=True)
        computed = time.process_time() - computed
        print(f"{steps} steps of {groups * group_size} episodes took {computed:.0f} s of this process")
        print("after: ", await evaluate(engine, tasks, samples))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="tasks of a step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes of a task")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks to evaluate on")
    parser.add_argument("--samples", type=int, default=4, help="sampled episodes of each of them")
    parser.add_argument("--device", default="cpu", help="of the model: cpu or cuda")
    asyncio.run(main(**vars(parser.parse_args())))
