"""How often a policy samples a spelling that its tokenizer would not choose, by temperature.

    python benchmarks/spelling.py [--tasks 32] [--temperatures 0.7 1.0 1.3]

The tiny policy plays `CodeInterpreter-v0`. A turn is respelt where decoding and encoding its ids gives other ids:
who keeps the conversation as text would train such a turn on tokens that were not sampled. The ids of the library's
trajectories are those that were sampled, so this costs it nothing.
"""

from __future__ import annotations

import argparse
import asyncio

from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0, 1.3])
    options = parser.parse_args()
    print("| temperature | turns | respelt | share | episodes with one |\n| --- | --- | --- | --- | --- |")
    async with open_engine("tiny") as engine:
        tokenizer = engine.tokenizer

        def respelt(ids: list[int]) -> bool:
            return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids

        for temperature in options.temperatures:
            sampling = SamplingParams(max_new_tokens=128, temperature=temperature)
            config = RunConfig(group_size=4, seed=0, sampling=sampling)
            played = await rollout("CodeInterpreter-v0", engine, num_tasks=options.tasks, config=config)
            episodes = [
                [
                    respelt(segment.token_ids.tolist())
                    for sequence in trajectory.sequences
                    for segment in sequence.segments
                    if segment.is_policy
                ]
                for trajectory in played
            ]
            turns, changed = sum(map(len, episodes)), sum(map(sum, episodes))
            hit = sum(map(any, episodes)) / len(episodes)
            print(f"| {temperature} | {turns} | {changed} | {changed / turns:.1%} | {hit:.1%} |")


if __name__ == "__main__":
    asyncio.run(main())
