"""Sums as the prompts of other projects' envs, and a tool call that the tiny policy knows how to make."""

from __future__ import annotations

from toolgym.envs import ArithmeticTasks, Task

SUMS = ArithmeticTasks(split="test").take(4, seed=0)
PROMPTS = [Task(task.messages, ground_truth=task.ground_truth, id=str(n)) for n, task in enumerate(SUMS)]
CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'


def printed(code):
    """What a program of the tiny policy prints: the value of one expression."""
    try:
        return str(eval(code.strip().removeprefix("print"), {"__builtins__": {}}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
