"""Outcomes for tests of scorers."""

from __future__ import annotations

from toolgym.envs import Outcome, StopReason, Task, ToolCallRecord
from toolgym.tools.message import assistant


def outcome(*turns, truth=None, calls=(), stop_reason=StopReason.ANSWERED, question="How many?"):
    """The outcome of an episode with these turns; the last one is the answer."""
    task = Task(({"role": "user", "content": question},), ground_truth=truth)
    messages = [one if isinstance(one, dict) else assistant(one) for one in turns]
    final = messages[-1]["content"] if messages and stop_reason is StopReason.ANSWERED else ""
    return Outcome(task, (*task.messages, *messages), len(turns), tuple(calls), final, stop_reason)


def record(name="search", status="ok", **further):
    return ToolCallRecord("call_0", name, {}, status, "", **further)
