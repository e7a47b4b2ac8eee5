"""Roll out a policy in an env, and make a batch of it.

Run as `python examples/rollout.py`. Five concepts of toolgym are all that it takes:

1. an env id, which names the env and brings tasks of its own;
2. `open_engine`, which opens a policy and carries its tokenizer;
3. `RunConfig`, which says how to play;
4. `rollout`, which gives the trajectories;
5. `make_batch`, which makes masked token tensors from them.
"""

from __future__ import annotations

import asyncio

from toolgym.rollout import RunConfig, make_batch, open_engine, rollout


async def main() -> None:
    async with open_engine("tiny") as engine:  # or an SGLang server's URL, or a model folder
        trajectories = await rollout("CodeInterpreter-v0", engine, num_tasks=8, config=RunConfig(group_size=4, seed=0))
    batch = make_batch(trajectories, pad_token_id=engine.tokenizer.pad_token_id)
    print(f"{len(trajectories)} trajectories, mean reward {batch.rewards.mean():.2f}")
    print(f"response_mask {list(batch.response_mask.shape)}, {int(batch.response_mask.sum())} of the policy")


if __name__ == "__main__":
    asyncio.run(main())
