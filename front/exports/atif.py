"""Trajectories as ATIF, the format that Harbor and its viewers read: a JSON file each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from toolgym.exports.steps import Step, steps_of
from toolgym.exports.writing import Options, Tally, time_text
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.errors import ToolgymError
from toolgym.tools.message import Message
from toolgym.version import __version__

SCHEMA = "ATIF-v1.7"
"""The newest version of which the files use something: `trajectory_id`."""

UNPARSED = "(unparsed)"
"""Name of a call whose own name could not be read; readers of ATIF and Inspect want one."""

_SOURCES = {"system": "system", "user": "user", "assistant": "agent", "tool": "system"}
_FACTS = (
    *("env_id", "task_id", "source", "group_id", "sample_index", "training_step", "validate", "reward", "ground_truth"),
    *("stop_reason", "error", "parent", "branch_turn", "seconds"),
)
_NOTES = "A context begins anew: see `extra.begins_context` of the steps, and `prompt_token_ids` for what was sent."


def write(trajectories: Iterable[Trajectory], folder: Path, options: Options, tally: Tally) -> None:
    """Write a file for each trajectory, called by its id.

    Raises:
        ToolgymError: a file would not be ATIF by our own checks or those of the package `atif`, if it is installed.
    """
    try:
        from atif import Trajectory as Checked
    except ImportError:
        Checked = None  # type: ignore[assignment,misc]
    for trajectory in trajectories:
        value = as_atif(trajectory, options.model, tally)
        try:
            problem = problem_of(value) or (Checked and Checked.model_validate(value) and "")
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ToolgymError(f"trajectory {trajectory.id} cannot become ATIF: {problem}")
        name, number = re.sub(r"[^\w.@-]", "_", trajectory.id), 1
        while (path := folder / f"{name}{f'-{number}' if number > 1 else ''}.json").exists():
            number += 1
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        tally.written += 1


def as_atif(trajectory: Trajectory, model: str, tally: Tally) -> dict[str, Any]:
    """Return a trajectory as an ATIF document, and count in `tally` what it cannot hold.

    Turns that a branch has from its parent are marked as copied. Where a context begins anew, the steps go on, and
    each holds the ids that it was sent.
    """
    head, steps = steps_of(trajectory)
    entries = [_entry(message, trajectory.started_at, copied=bool(steps)) for message in head]
    for step in steps:
        entries.append(_turn_entry(step, tally, copied=step.number < (trajectory.branch_turn or 0)))
        answers = {record.id for record in step.turn.tool_calls}
        others = [message for message in step.behind if message.get("tool_call_id") not in answers]
        entries += [_entry(message, step.ended_at) for message in others]
    names = {name for sequence in trajectory.sequences for part in sequence.segments for name in part.aligned}
    tally.lose(f"payloads of tokens ({', '.join(sorted(names))})", bool(names))
    counted = [entry["metrics"] for entry in entries if "metrics" in entry]
    sums = {f"total_{name}": sum(metrics[name] for metrics in counted)
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}  # fmt: skip
    return {
        "schema_version": SCHEMA,
        "session_id": trajectory.group_id,
        "trajectory_id": trajectory.id,
        "agent": {
            "name": "toolgym",
            "version": __version__,
            "model_name": model,
            "tool_definitions": [_strict(tool) for tool in trajectory.tools],
            "extra": _strict({"role": trajectory.role, "sampling": trajectory.sampling}),
        },
        "steps": [{"step_id": number, **entry} for number, entry in enumerate(entries, start=1)],
        **({"notes": _NOTES} if any(step.begins_context for step in steps) else {}),
        "final_metrics": {**sums, "total_steps": len(entries), "extra": _strict(trajectory.metrics)},
        "extra": _strict({name: getattr(trajectory, name) for name in _FACTS}),
    }


def problem_of(value: dict[str, Any]) -> str:
    """Return what is wrong with a document, of that which the package `atif` lets pass; empty if nothing is."""
    if not re.fullmatch(r"ATIF-v1\.\d", value["schema_version"]) or not value["steps"]:
        return f"it has the version {value['schema_version']!r} and {len(value['steps'])} steps"
    for step in value["steps"]:
        metrics, place = step.get("metrics", {}), f"step {step['step_id']}"
        for count, lists in (
            ("completion_tokens", ("completion_token_ids", "logprobs")), ("prompt_tokens", ("prompt_token_ids",))
        ):  # fmt: skip
            for name in lists:
                if len(metrics.get(name, ())) not in (0, metrics.get(count)):
                    return f"{place} has {metrics.get(count)} {count} and {len(metrics[name])} {name}"
        if any(not call["function_name"] or not call["tool_call_id"] for call in step.get("tool_calls", ())):
            return f"{place} has a call without a name or an id"
    return ""


def _entry(message: Message, time: float, *, copied: bool = False) -> dict[str, Any]:
    """A message that is no turn. An assistant's is of the task: the policy did not say it in this episode."""
    source = _SOURCES[message["role"]]
    entry = {"source": source, "message": message["content"] or "", "timestamp": time_text(time)}
    return {**entry, "is_copied_context": True} if copied and source == "agent" else entry


def _turn_entry(step: Step, tally: Tally, *, copied: bool) -> dict[str, Any]:
    turn, message = step.turn, step.message
    metrics = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.generated_tokens,
               "cached_tokens": turn.cached_tokens}  # fmt: skip
    more: dict[str, Any] = {}
    if step.prompt_ids is not None and step.tokens is not None:
        more = {
            "prompt_tokens": len(step.prompt_ids),
            "prompt_token_ids": step.prompt_ids.tolist(),
            "completion_token_ids": step.tokens.token_ids.tolist(),
            "extra": {"weight_versions": [list(run) for run in step.tokens.version_runs]},
        }
        finite = bool(np.isfinite(step.tokens.logprobs).all())
        more |= {"logprobs": step.tokens.logprobs.tolist()} if finite else {}
        tally.lose("log-probabilities that are no finite numbers", not finite)
    elif turn.generated_tokens:
        tally.lose("token ids of turns that count others than their sequence")
    names = ("reward", "finish_reason", "truncated", "sequence", "seed", "engine_seconds", "env_seconds")
    extra = {name: getattr(turn, name) for name in names} | {"begins_context": step.begins_context or None}
    entry = {
        "source": "agent",
        "message": message["content"] or "",
        "timestamp": time_text(step.answered_at),
        "llm_call_count": 1 + turn.resumes,
        "metrics": metrics | more,
        "extra": _strict({name: value for name, value in extra.items() if value is not None}),
        "reasoning_content": message.get("reasoning_content") or None,
        "tool_calls": _calls(step) or None,
        "is_copied_context": copied or None,
    }
    results = [{"source_call_id": record.id, "content": record.text} for record in turn.tool_calls]
    entry["observation"] = {"results": results} if results else None
    return {name: value for name, value in entry.items() if value is not None}


def _calls(step: Step) -> list[dict[str, Any]]:
    """The calls of a turn, those that were not run, since the episode ended, included."""
    if not step.turn.tool_calls:
        calls = [(call["id"], call["function"]) for call in step.message.get("tool_calls", ())]
        return [{"tool_call_id": id, "function_name": function["name"], "arguments": _strict(function["arguments"])}
                for id, function in calls]  # fmt: skip
    return [
        {
            "tool_call_id": record.id,
            "function_name": record.name or UNPARSED,
            "arguments": _strict(record.arguments or {}),
            "extra": _strict({name: value for name, value in vars(record).items()
                              if name not in ("id", "name", "arguments", "text")}),
        }
        for record in step.turn.tool_calls
    ]  # fmt: skip


def _strict(value: Any) -> Any:
    """A value as strict JSON, in which a number that is not finite is a text."""
    return json.loads(json.dumps(plain(value)), parse_constant=str)
