"""Trajectories as verl's `rollout_data_dir` holds them: a file of JSON lines for each training step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from toolgym.envs.tasks.writing import json_line
from toolgym.exports.writing import Options, Tally
from toolgym.rollout.trajectory.distribution import distributions_of, versions_of
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.rollout.trajectory.trajectory import Trajectory, strict_json

_FACTS = ("env_id", "task_id", "source", "group_id", "sample_index", "role", "policy_tokens", "seconds", "validate")


def write(trajectories: Iterable[Trajectory], folder: Path, options: Options, tally: Tally) -> None:
    """Write `STEP.jsonl` for each step: verl's five keys, and facts of ours, each a text, a number or a boolean."""
    for trajectory in trajectories:
        step, error = trajectory.training_step, trajectory.error
        verls = {"input": trajectory.prompt_text, "output": trajectory.response_text,
                 "gts": strict_json(trajectory.ground_truth), "score": trajectory.reward, "step": step}  # fmt: skip
        ours = {"success": succeeded(trajectory), "stop_reason": trajectory.stop_reason.value,
                "failure": error.message if error else "", "num_turns": len(trajectory.turns),
                "num_tool_calls": len(trajectory.tool_calls), "parent_id": trajectory.parent or ""}  # fmt: skip
        ours |= {"distribution": "; ".join(map(str, distributions_of(trajectory))),
                 "weight_versions": ",".join(versions_of(trajectory.sequences))}  # fmt: skip
        facts = {name: getattr(trajectory, name) for name in _FACTS}
        with (folder / f"{step}.jsonl").open("ab") as file:
            file.write(json_line({**verls, "request_id": trajectory.id, **ours, **facts}))
        tally.written += 1
        tally.lose("ids, masks and log-probabilities", bool(trajectory.sequences))
        tally.lose("contexts before the last one", len(trajectory.sequences) > 1)
