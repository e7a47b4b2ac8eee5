"""Trajectories as a log of Inspect, which Inspect View, Scout and Docent open: samples with their events."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from toolgym.exports.writing import FACTS, UNPARSED, Options, Tally, encodable, time_text
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Message, described
from toolgym.viewer.tokens import TokenTexts
from toolgym.viewer.turns import PlayedTurn, played_turns

try:
    from inspect_ai.log import EvalLog, EvalSample, write_eval_log
except ImportError as error:
    raise missing_extra("inspect", "A log of Inspect", error) from error

_KNOWN = ("properties", "required")


def write(trajectories: Iterable[Trajectory], path: Path, options: Options, tally: Tally) -> None:
    """Write the log: a sample for each trajectory, whose epoch is its number among those of its task, from 1.

    Inspect takes a whole log at once: time and memory grow with it.
    """
    samples: list[EvalSample] = []
    scores: dict[str, list[float]] = {"reward": [], "success": []}
    epochs: dict[str, int] = {}
    texts, first = TokenTexts(options.run, options.tokenizer), None
    for trajectory in trajectories:
        first = first or trajectory
        task = f"{trajectory.task_id or trajectory.task_index}@{trajectory.training_step}"
        task += f" {trajectory.role}" if trajectory.role != "policy" else ""
        epochs[task] = epochs.get(task, 0) + 1
        sample = {"id": task, "epoch": epochs[task], **_Sample(trajectory, options.model, texts).value()}
        samples.append(EvalSample.model_validate(encodable(sample)))
        if trajectory.in_group_statistics:
            scores["reward"].append(trajectory.reward)
            scores["success"].append(float(succeeded(trajectory)))
        tally.written += 1
        tally.lose("ids of prompts and env", bool(trajectory.sequences))
    if first is None:
        return
    spec = {
        "created": time_text(first.started_at), "task": first.env_id or "verl", "task_id": _id(first.group_id, "task"),
        "run_id": _id(first.group_id, "run"), "eval_id": _id(first.id, "eval"), "model": options.model,
        "dataset": {"name": first.source, "samples": len(epochs), "sample_ids": list(epochs)},
        "config": {"epochs": max(epochs.values())},
    }  # fmt: skip
    means = [{"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": statistics.fmean(values)}}}
             for name, values in scores.items() if values]  # fmt: skip
    results = {"total_samples": len(samples), "completed_samples": len(scores["reward"]), "scores": means}
    stats = {"started_at": samples[0].started_at, "completed_at": samples[-1].completed_at}
    log = EvalLog.model_validate({"status": "success", "eval": spec, "plan": {}, "results": results, "stats": stats})
    log.samples = samples
    with Console(stderr=True).status(f"Inspect writes {len(samples)} samples"):  # in a terminal
        write_eval_log(log, str(path), format="eval")


class _Sample:
    """The sample of one trajectory. Its ids are the same each time: Inspect joins messages that have the same one."""

    def __init__(self, trajectory: Trajectory, model: str, texts: TokenTexts) -> None:
        self._trajectory, self._model, self._texts = trajectory, model, texts
        self._messages: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._asked: dict[str, Any] = {
            "model": model, "tools": [_tool(schema["function"]) for schema in trajectory.tools], "tool_choice": "auto",
        }  # fmt: skip

    def value(self) -> dict[str, Any]:
        """All of the sample but its place in the log."""
        trajectory, error = self._trajectory, self._trajectory.error
        began, ended = trajectory.started_at, trajectory.started_at + trajectory.seconds
        head, steps = played_turns(trajectory)
        self._messages += self._converted(head)
        truth = "" if trajectory.ground_truth is None else str(plain(trajectory.ground_truth))
        shown = {"input": list(self._messages), "target": truth}
        self._add("sample_init", began, sample=shown, state={})
        # Whatever is in a span of the type "agent" would be drawn as one folded line.
        span: dict[str, Any] = {"id": _id(trajectory.id, "span"), "span_id": _id(trajectory.id, "span")}
        self._add("span_begin", began, name=trajectory.env_id or "verl", type="solver", **span)
        outputs = [self._turn(step, span["span_id"]) for step in steps]
        self._add("span_end", ended, **span)
        answer = described(trajectory.messages[-1]["content"]) if trajectory.messages else ""
        score = {"value": trajectory.reward, "answer": answer or "", "explanation": str(trajectory.stop_reason),
                 "metadata": plain(trajectory.metrics)}  # fmt: skip
        self._add("score", ended, score=score, target=truth, scorer="reward")
        failure = f"{trajectory.stop_reason} in turn {error.turn}: {error.message}" if error else ""
        return {
            **shown, "uuid": trajectory.id, "messages": self._messages, "events": self._events,
            "output": outputs[-1] if outputs else {"model": self._model}, "turn_count": len(steps),
            "model_usage": {self._model: _usage(trajectory.turns)},
            "scores": {"reward": score, "success": {"value": int(succeeded(trajectory))}},
            "error": {"message": failure, "traceback": failure, "traceback_ansi": failure} if failure else None,
            "started_at": time_text(began), "completed_at": time_text(ended), "total_time": trajectory.seconds,
            "working_time": trajectory.seconds, "metadata": {name: plain(getattr(trajectory, name)) for name in FACTS},
        }  # fmt: skip

    def _turn(self, step: PlayedTurn, span: str) -> dict[str, Any]:
        turn, context = step.turn, list(self._messages)
        self._messages += self._converted([step.message])
        message = self._messages[-1]
        choice = {"message": message, "stop_reason": "max_tokens" if turn.finish_reason == "length" else "stop"}
        # Messages are drawn as Markdown, so the exact text stands here.
        facts: dict[str, Any] = {"reward": turn.reward, "text": turn.text, "begins_context": step.begins_context}
        if step.tokens is not None:
            ids, values = step.tokens.token_ids.tolist(), step.tokens.logprobs.tolist()
            pairs = zip(map(self._texts.text, ids), values, strict=True)
            choice["logprobs"] = {"content": [{"token": text, "logprob": value} for text, value in pairs]}
            facts |= {"token_ids": ids, "weight_versions": [list(run) for run in step.tokens.version_runs]}
        output = {"model": self._model, "choices": [choice], "usage": _usage([turn]), "time": turn.engine_seconds,
                  "metadata": facts}  # fmt: skip
        self._add("model", step.began_at, step.answered_at, span_id=span, input=context, output=output,
                  config=_config({**self._trajectory.sampling, **turn.sampling}), **self._asked)  # fmt: skip
        for record in turn.tool_calls:
            problem = {"type": "parsing" if record.arguments is None else "unknown", "message": record.text}
            facts = {**plain(record.metrics), "status": record.status, "reward": record.reward}
            self._add(
                "tool", step.answered_at, step.answered_at + record.seconds, span_id=span, id=record.id,
                function=record.name or UNPARSED, arguments=plain(record.arguments or {}), result=record.text,
                failed=record.status != "ok", error=problem if record.status != "ok" else None, metadata=facts,
            )  # fmt: skip
        self._messages += self._converted(step.behind)
        return output

    def _add(self, kind: str, began: float, ended: float | None = None, **fields: Any) -> None:
        event = {"event": kind, "uuid": _id(self._trajectory.id, "event", len(self._events)),
                 "timestamp": time_text(began), "working_start": began - self._trajectory.started_at}  # fmt: skip
        lasted = {} if ended is None else {"completed": time_text(ended), "working_time": ended - began}
        self._events.append({**event, **lasted, **fields})

    def _converted(self, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
        for number, message in enumerate(messages, start=len(self._messages)):
            content: Any = message["content"] or ""
            if isinstance(content, list):  # as Inspect's `ContentText` and `ContentImage`
                content = [
                    {"type": "image", "image": part["image_url"]["url"]} if part["type"] == "image_url" else part
                    for part in content
                ]
            if message.get("reasoning_content"):
                thought = {"type": "reasoning", "reasoning": message["reasoning_content"]}
                content = [thought, {"type": "text", "text": content}]
            value = {"role": message["role"], "content": content, "id": _id(self._trajectory.id, number)}
            if message["role"] == "assistant":
                pairs = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
                calls = [{"id": id, "function": of["name"], "arguments": plain(of["arguments"])} for id, of in pairs]
                value |= {"tool_calls": calls or None, "model": self._model, "source": "generate"}
            elif message["role"] == "tool":
                value |= {"tool_call_id": message.get("tool_call_id"), "function": message.get("name") or UNPARSED}
            yield value


def _usage(turns: Sequence[Any]) -> dict[str, int]:
    sent, sampled = sum(turn.prompt_tokens for turn in turns), sum(turn.generated_tokens for turn in turns)
    cached = sum(turn.cached_tokens for turn in turns)
    return {"input_tokens": sent, "output_tokens": sampled, "total_tokens": sent + sampled,
            "input_tokens_cache_read": cached}  # fmt: skip


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    """Inspect takes of a schema its properties and the required ones."""
    parameters = {name: value for name, value in function.get("parameters", {}).items() if name in _KNOWN}
    return {"name": function["name"], "description": function.get("description", ""), "parameters": parameters}


def _config(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters under Inspect's names. Inspect has none for `min_p`, and -1 is no `top_k` of its."""
    values = {name: sampling.get(name) for name in ("temperature", "top_p", "seed")}
    top_k = sampling.get("top_k", -1)
    return {
        **values,
        **({"top_k": top_k} if top_k > 0 else {}),
        "max_tokens": sampling.get("max_new_tokens"),
        "logprobs": True,
    }


def _id(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=11).hexdigest()
