"""Trajectories as ATIF, the format that Harbor and its viewers read: a JSON file each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from toolgym.exports.writing import FACTS, UNPARSED, Options, Tally, time_text
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.errors import ToolgymError
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Content, Message, image_data
from toolgym.version import __version__
from toolgym.viewer.turns import PlayedTurn, played_turns

try:
    from atif import Trajectory as Document
except ImportError as error:
    raise missing_extra("export", "ATIF", error) from error

SCHEMA = "ATIF-v1.7"
"""The newest version of which the files use something: `trajectory_id`."""

_SOURCES = {"system": "system", "user": "user", "assistant": "agent", "tool": "system"}
_CALL_FACTS = ("status", "reward", "seconds", "infra_failure", "metrics", "retries")
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_NOTES = "A context begins anew: see `extra.begins_context` of the steps, and `prompt_token_ids` for what was sent."


def write(trajectories: Iterable[Trajectory], folder: Path, options: Options, tally: Tally) -> None:
    """Write a file for each trajectory, called by its id, into a folder.

    Raises:
        ToolgymError: a file would not be ATIF by the checks of the package `atif`.
    """
    for trajectory in trajectories:
        if not trajectory.messages and not trajectory.turns:
            tally.left_out["failed before a message, and ATIF wants a step"] += 1
            continue
        value = as_atif(trajectory, options.model, tally)
        try:
            Document.model_validate(value)
        except ValueError as error:
            raise ToolgymError(f"trajectory {trajectory.id} cannot become ATIF: {error}") from error
        name, number = re.sub(r"^\.|[^\w.@-]", "_", trajectory.id), 1
        path = folder / f"{name}.json"
        while path.exists():
            number += 1
            path = folder / f"{name}-{number}.json"
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        tally.written += 1


def as_atif(trajectory: Trajectory, model: str, tally: Tally) -> dict[str, Any]:
    """Return a trajectory as an ATIF document, and count in `tally` what it cannot hold.

    Turns that a branch has from its parent are marked as copied. Where a context begins anew, the steps go on, and
    each holds the ids that it was sent.
    """
    head, steps = played_turns(trajectory)
    entries = [_entry(message, trajectory.started_at, copied=bool(steps)) for message in head]
    for step in steps:
        entries.append(_turn_entry(step, tally, copied=step.number < (trajectory.branch_turn or 0)))
        answers = {record.id for record in step.turn.tool_calls}
        others = [message for message in step.behind if message.get("tool_call_id") not in answers]
        entries += [_entry(message, step.ended_at) for message in others]
    names = {name for sequence in trajectory.sequences for part in sequence.segments for name in part.aligned}
    tally.lose(f"payloads of tokens ({', '.join(sorted(names))})", bool(names))
    counts = [entry["metrics"] for entry in entries if "metrics" in entry]
    sums = {f"total_{name}": sum(metrics[name] for metrics in counts) for name in _COUNTS}
    agent = {
        "name": "toolgym", "version": __version__, "model_name": model, "tool_definitions": _strict(trajectory.tools),
        "extra": {"sampling": _strict(trajectory.sampling)},
    }  # fmt: skip
    return {
        "schema_version": SCHEMA, "session_id": trajectory.group_id, "trajectory_id": trajectory.id, "agent": agent,
        "steps": [{"step_id": number, **entry} for number, entry in enumerate(entries, start=1)],
        **({"notes": _NOTES} if any(step.begins_context for step in steps) else {}),
        "final_metrics": {**sums, "total_steps": len(entries), "extra": _strict(trajectory.metrics)},
        "extra": _strict({name: getattr(trajectory, name) for name in FACTS}),
    }  # fmt: skip


def _entry(message: Message, time: float, *, copied: bool = False) -> dict[str, Any]:
    """A message that is no turn. An assistant's is of the task: the policy did not say it in this episode."""
    source = _SOURCES[message["role"]]
    entry = {"source": source, "message": _content(message["content"]), "timestamp": time_text(time)}
    return {**entry, "is_copied_context": True} if copied and source == "agent" else entry


def _content(content: Content | None) -> Any:
    """A text, or ATIF's `ContentPart`s; the path of an image is its data URL."""
    if not isinstance(content, list):
        return content or ""
    return [
        {"type": "image", "source": {"media_type": image_data(url)[0], "path": url}} if url is not None else part
        for part in content
        for url in [part["image_url"]["url"] if part["type"] == "image_url" else None]
    ]


def _turn_entry(step: PlayedTurn, tally: Tally, *, copied: bool) -> dict[str, Any]:
    turn, message, tokens = step.turn, step.message, step.tokens
    counts = (turn.prompt_tokens, turn.generated_tokens, turn.cached_tokens)
    metrics: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True))
    if step.prompt_ids is not None and tokens is not None:
        ids, logprobs = step.prompt_ids.tolist(), tokens.logprobs
        metrics |= {
            "prompt_tokens": len(ids),
            "prompt_token_ids": ids,
            "completion_token_ids": tokens.token_ids.tolist(),
        }
        metrics |= {"extra": {"weight_versions": [list(run) for run in tokens.version_runs]}}
        finite = bool(np.isfinite(logprobs).all())
        metrics |= {"logprobs": logprobs.tolist()} if finite else {}
        tally.lose("log-probabilities that are no finite numbers", not finite)
    else:
        tally.lose("token ids of turns that count others than their sequence", turn.generated_tokens > 0)
    names = ("reward", "finish_reason", "truncated", "sequence", "seed", "engine_seconds", "env_seconds")
    extra = {name: getattr(turn, name) for name in names} | {"begins_context": step.begins_context or None}
    extra |= {"sampling": turn.sampling or None}
    shown = {message.get("tool_call_id"): message["content"] for message in step.behind}
    results = [
        {"source_call_id": record.id, "content": _content(shown.get(record.id, record.text))}
        for record in turn.tool_calls
    ]
    entry = {
        "source": "agent", "message": message["content"] or "", "timestamp": time_text(step.answered_at),
        "llm_call_count": 1 + turn.resumes, "metrics": metrics, "is_copied_context": copied or None,
        "extra": _strict({name: value for name, value in extra.items() if value is not None}),
        "reasoning_content": message.get("reasoning_content") or None, "tool_calls": _calls(step) or None,
        "observation": {"results": results} if results else None,
    }  # fmt: skip
    return {name: value for name, value in entry.items() if value is not None}


def _calls(step: PlayedTurn) -> list[dict[str, Any]]:
    """The calls of a turn, those that were not run, since the episode ended, included."""
    calls = [
        {
            "tool_call_id": record.id, "function_name": record.name or UNPARSED,
            "arguments": _strict(record.arguments or {}),
            "extra": _strict({name: getattr(record, name) for name in _CALL_FACTS}),
        }
        for record in step.turn.tool_calls
    ]  # fmt: skip
    return calls or [
        {"tool_call_id": call["id"], "function_name": call["function"]["name"],
         "arguments": _strict(call["function"]["arguments"])}
        for call in step.message.get("tool_calls", ())
    ]  # fmt: skip


def _strict(value: Any) -> Any:
    """A value as strict JSON, in which a number that is not finite is a text."""
    return json.loads(json.dumps(plain(value)), parse_constant=str)
