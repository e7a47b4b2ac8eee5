"""The verdict of BFCL's own checker on an episode."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from toolgym.envs.families.bfcl import package
from toolgym.envs.families.bfcl.apis import precision_lock
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.types import ToolCallRecord

EXECUTED = frozenset({"ok", "error"})
"""Statuses of calls that were carried out; `error` is what the function itself raised."""


def calls_by_turn(outcome: Outcome) -> list[list[str]]:
    """The calls that were carried out after each of the user's turns, as BFCL writes them."""
    records = iter(outcome.tool_calls)  # in the order of their messages; ids are the policy's, and may repeat
    turns: list[list[str]] = [[]]
    for message in outcome.messages[len(outcome.task.messages) :]:
        if message["role"] == "user":
            turns.append([])
        elif message["role"] == "tool" and (record := next(records)).status in EXECUTED:
            turns[-1].append(written(record))
    return turns


def written(call: ToolCallRecord) -> str:
    """A call as Python. The checker puts a name before each word that it finds before a parenthesis, in texts too, so
    texts are written without parentheses."""
    arguments = (f"{name}={value!r}" for name, value in (call.arguments or {}).items())
    return f"{call.name}({', '.join(arguments).replace('(', chr(92) + 'x28')})"


def check(entry: Mapping[str, Any], turns: Sequence[Sequence[str]]) -> Score:
    """Let BFCL's checker replay the calls and the known ones, and compare state and results after each turn."""
    for class_name in entry["involved_classes"]:
        package.api_class(class_name)  # the checker calls the same classes
    name = f"toolgym_{uuid.uuid4().hex}"
    truth = entry["ground_truth"]
    steps = [[list(calls)] if calls else [] for calls in turns]
    uses_precision = any("logarithm(" in call for calls in (*turns, *truth) for call in calls)
    try:
        with precision_lock if uses_precision else nullcontext():
            verdict = package.checker()(steps, truth, copy.deepcopy(dict(entry)), "", name)
    except RecursionError:  # folders that the policy copied into themselves
        verdict = {"valid": False, "error_type": "multi_turn:endless_state"}
    finally:
        variables = package.executor_globals()
        for key in [variable for variable in variables if variable.startswith(name)]:
            del variables[key]
    if verdict["valid"]:
        return Score(1.0)
    return Score(0.0, {str(verdict["error_type"]).rpartition(":")[2]: 1.0})
