"""Good trajectories as rows for TRL's SFTTrainer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from toolgym.envs.tasks.writing import json_line
from toolgym.exports.writing import Options, Tally
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.viewer.turns import played_turns

IGNORED = -100
"""Label of a token that is not trained on."""


def write(trajectories: Iterable[Trajectory], path: Path, options: Options, tally: Tally) -> None:
    """Write JSON lines: `messages` and `tools` of a trajectory, or `input_ids` and `labels` of each of its contexts.

    With `min_reward` those that earned it are written, else those that succeeded; never one that is not usable.
    """
    least = options.min_reward
    with path.open("wb") as file:
        for trajectory in trajectories:
            if not trajectory.usable:
                tally.left_out["failed, aborted, cut by the run, or nothing sampled"] += 1
            elif trajectory.reward < least if least is not None else not succeeded(trajectory):
                tally.left_out["no success" if least is None else f"reward below {least:g}"] += 1
            elif not options.ids and any(step.begins_context for step in played_turns(trajectory)[1]):
                tally.left_out["a context begins anew, so the policy did not see the conversation; take --ids"] += 1
            else:
                for row in _token_rows(trajectory) if options.ids else [_conversation(trajectory)]:
                    file.write(json_line({**row, "id": trajectory.id, "reward": trajectory.reward}))
                    tally.written += 1


def _conversation(trajectory: Trajectory) -> dict[str, Any]:
    """The tools are a JSON text: readers of tables would mix the keys of different schemas."""
    messages = [plain({**message, "content": message["content"] or ""}) for message in trajectory.messages]
    return {"messages": messages, "tools": json.dumps(plain(trajectory.tools))}


def _token_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for sequence in trajectory.sequences:
        if sequence.policy_tokens:
            prompt, ids = sequence.prompt_ids.tolist(), sequence.response_ids
            labels = np.where(sequence.response_mask == 1, ids, IGNORED).tolist()
            yield {"input_ids": prompt + ids.tolist(), "labels": [IGNORED] * len(prompt) + labels}
