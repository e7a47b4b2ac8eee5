"""The small parts that many tests play with: a tool, calls of it, tasks, tokens of the policy, and waiting."""

from __future__ import annotations

import asyncio
import json

from toolgym.envs.tasks.task import Task
from toolgym.tools.function import tool


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


def call(name, /, **arguments):
    """Return a tool call as Hermes writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tasks(*questions, **fields):
    """Return a task for each question, whose id is the question."""
    return [Task(({"role": "user", "content": text},), id=text, **fields) for text in questions]


def policy(*ids, version="3", **aligned):
    """Return ids that the policy sampled, each with a log-probability of its own."""
    from toolgym.rollout.trajectory.token_sequence import Segment

    logprobs = [-0.5 - n / 10 for n in range(len(ids))]
    return Segment.policy(ids, logprobs, [version] * len(ids), aligned)


async def until(holds, seconds=60.0):
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
