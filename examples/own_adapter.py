"""An adapter for a trainer of your own: it samples, an env of ours answers, and it gets rows of tokens.

Four things of toolgym: `run_episode` plays one episode with the trainer's own generation, `Trajectory.usable` says
whether it may be trained on, `group_advantages` compares the episodes of a task, and `ArithmeticTasks` are tasks.
Run it:

    python examples/own_adapter.py

Here the trainer's generation is a text; a real one sends `request.prompt_ids` to its model. An episode that something
broke off has no advantage, and no row: its reward of 0 would blame the policy.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import Trajectory, group_advantages, load_tokenizer, run_episode, tiny_policy_path

TOKENIZER = load_tokenizer(tiny_policy_path())


def policy(text: str) -> Any:
    """Return a generation that says this text in each turn; an empty one stands for a server that fails."""

    async def generate(request: Any) -> dict[str, Any]:
        if not text:
            raise ConnectionError("the server is gone")
        ids = [*TOKENIZER.encode(text), TOKENIZER.eos_token_id][: request.params.max_new_tokens]
        return {"token_ids": ids, "logprobs": [0.0] * len(ids), "weight_versions": 1}

    return generate


def rows(trajectories: list[Trajectory]) -> list[dict[str, Any]]:
    """Return a trainer's rows: ids, mask, log-probs and advantage of each token sequence of a usable trajectory."""
    return [
        {
            "prompt_ids": sequence.prompt_ids.tolist(),
            "response_ids": sequence.response_ids.tolist(),
            "response_mask": sequence.response_mask.tolist(),
            "logprobs": sequence.logprobs.tolist(),
            "advantage": advantage,
        }
        for trajectory, advantage in zip(trajectories, group_advantages(trajectories), strict=True)
        if trajectory.usable
        for sequence in trajectory.sequences
    ]


async def main() -> None:
    """Play a group of three episodes: a right answer, a wrong one, and one that the server broke off."""
    [task] = ArithmeticTasks().take(1, seed=0)
    group = [
        await run_episode("CodeInterpreter-v0", task, policy(text), tokenizer=TOKENIZER, group_id="first")
        for text in (f"#### {task.ground_truth}", "#### no idea", "")
    ]
    for row in rows(group):
        print(f"{sum(row['response_mask'])} tokens, advantage {row['advantage']:+.2f}")
    print([str(trajectory.stop_reason) for trajectory in group])


if __name__ == "__main__":
    asyncio.run(main())
