"""A policy learns while its rollout goes on: fully asynchronous GRPO in plain PyTorch, on a CPU, in some minutes.

    python examples/learn_async.py --seed 0
    python examples/learn_async.py --seed 0 --max-staleness 0

The second line is the synchronous training by the same program, to compare with. The learner has a module of its own
and computes in a thread, while the engine samples the next groups from the last weights that it was sent. A new version
reaches it in mid-episode: each token has the log-prob and the version that it was sampled with, and the ratio in the
loss is taken to that log-prob. `docs/async_training.md` explains the queue, `learn_plain_torch.py` the loss's rows.
"""

import argparse
import asyncio
import time

import torch
from learn_plain_torch import ENV, evaluate
from transformers import AutoModelForCausalLM

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import (
    RolloutQueue,
    RunConfig,
    Runner,
    SamplingParams,
    group_advantages,
    load_tokenizer,
    make_batch,
    tiny_policy_path,
)
from toolgym.rollout.batch import pack_tree
from toolgym.rollout.engines import TransformersEngine


def learn(model, optimizer, batch, advantages, clip=0.2):
    """Take one step of the optimizer: the clipped policy loss, a mean over all tokens of the policy."""
    for part in batch.micro_batches(max_tokens=2048, count="tree"):
        tree = pack_tree(part.batch, advantages[part.rows])  # a group has its prompt once
        logits = model(tree.input_ids[None], attention_mask=tree.additive_mask(), position_ids=tree.position_ids[None])
        packed, log_probs = tree.packed, tree.token_log_probs(logits.logits[0])
        ratio = ((log_probs - packed.rollout_log_probs) * packed.response_mask).exp()  # to the version that sampled it
        gain = torch.min(ratio * packed.advantages, ratio.clamp(1 - clip, 1 + clip) * packed.advantages)
        loss = -(gain * packed.response_mask).sum() / batch.response_mask.sum()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def versions(trajectory):
    """How many versions of the weights sampled the tokens of an episode."""
    return len({version for one in trajectory.sequences for version in one.weight_versions if version is not None})


async def main(seed, steps, groups, group_size, max_staleness, learning_rate, tasks, samples):
    """Train, and print success before and after."""
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path())
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    config = RunConfig(group_size=group_size, seed=seed, sampling=SamplingParams(max_new_tokens=64))
    async with TransformersEngine(tiny_policy_path()) as engine:
        engine.tokenizer = load_tokenizer(tiny_policy_path())
        print("before:", await evaluate(engine, tasks, samples), flush=True)
        started = time.monotonic()
        played = ArithmeticTasks().take(2 * steps * groups, seed=seed)  # more than are needed: some may be dropped
        runner = Runner(ENV, engine, config=config)
        async with RolloutQueue(runner, played, batch_size=groups, max_staleness=max_staleness) as queue:
            for step in range(steps):
                trajectories = await anext(queue)
                batch = make_batch(trajectories, pad_token_id=engine.tokenizer.pad_token_id)
                advantages = batch.per_row(trajectories, group_advantages(trajectories))
                await asyncio.to_thread(learn, model, optimizer, batch, advantages)  # the rollout goes on meanwhile
                schedule.step()
                staleness = max(map(queue.staleness, trajectories))
                mixed = sum(versions(one) > 1 for one in trajectories)
                await queue.update_weights(model.state_dict(), version=str(step + 1))
                print(
                    f"step {step + 1}: mean reward {batch.rewards.mean():.3f}, staleness at most {staleness}, "
                    f"{mixed} of {len(trajectories)} episodes with several versions",
                    flush=True,
                )
            figures = queue.metrics()
        print(
            f"{steps} steps of {groups * group_size} episodes took {time.monotonic() - started:.0f} s; the trainer "
            f"waited {figures['queue/wait_seconds']:.0f} s, {figures['queue/groups_dropped']:.0f} groups were dropped"
        )
        print("after: ", await evaluate(engine, tasks, samples))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="tasks of a step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes of a task")
    parser.add_argument("--max-staleness", type=int, default=2, help="versions; 0 makes it synchronous")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks to evaluate on")
    parser.add_argument("--samples", type=int, default=4, help="sampled episodes of each of them")
    asyncio.run(main(**vars(parser.parse_args())))
