"""What the stand-ins of other projects' classes share."""

from __future__ import annotations

import json

from toolgym.envs import Task

TASK = Task(({"role": "user", "content": "What is 6 * 7?"},), ground_truth="42", id="0")


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def class_of(module, name, *bases):
    """A base class as a project has it: known by its module and name."""
    return type(name, bases, {"__module__": module})


def contents(result):
    return [one["content"] for one in result.obs]
