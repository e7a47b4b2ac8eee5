"""What the stand-ins of other projects' classes share."""

from __future__ import annotations

from toolgym.envs import Task

TASK = Task(({"role": "user", "content": "What is 6 * 7?"},), ground_truth="42", id="0")


def class_of(module, name, *bases):
    """A base class as a project has it: known by its module and name."""
    return type(name, bases, {"__module__": module})


def contents(result):
    return [one["content"] for one in result.obs]
