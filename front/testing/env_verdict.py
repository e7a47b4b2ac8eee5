"""Checks that an env's verdict means what it says: the known solution earns it, silence and attacks do not."""

from __future__ import annotations

import json
import math
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.types import StopReason
from toolgym.testing.env_attacks import (
    ANSWERS,
    FUTURE,
    host_program,
    many_numbers,
    program_call,
    program_tools,
    programs,
    search_program,
)
from toolgym.testing.env_background import TRIES, background_programs
from toolgym.testing.env_checks import SEEDS, EnvSubject, check_result
from toolgym.testing.errors import expect
from toolgym.tools.errors import shorten
from toolgym.tools.message import assistant, described
from toolgym.tools.schema import ToolSchema

LONG = 24
"""Characters from which a line is distinctive enough to search for."""

MOST_LINES = 12
"""Lines of hidden texts that are searched for."""


async def check_scores(subject: EnvSubject) -> str | None:
    """The known solution earns the full reward, and an empty answer, or an empty turn that was cut, none."""
    env = subject.env
    known = False
    for seed in SEEDS:
        await env.reset(seed=seed)
        gold = env.gold_actions()
        if gold is not None:
            known = True
            earned = await _total(subject, gold)
            right = math.isclose(earned, subject.full_reward, abs_tol=1e-6)
            expect(right, f"the known solution of seed {seed} earns {subject.full_reward:g}", earned)
        await env.reset(seed=seed)
        earned = await _total(subject, [assistant("")])
        most = subject.silent_reward
        expect(earned <= most + 1e-6, f"an empty answer to seed {seed} earns at most {most:g}", earned)
        await env.reset(seed=seed)
        cut = await env.truncate(StopReason.LENGTH, "")
        check_result(cut)
        expect(cut.stop_reason is StopReason.LENGTH, "truncate ends the episode with its reason", cut.stop_reason)
        expect(cut.reward <= most + 1e-6, f"an empty turn that was cut earns at most {most:g}", cut.reward)
    return None if known else "the env knows no solution: it does not implement gold_actions (silence was checked)"


async def check_attacks(subject: EnvSubject) -> str | None:
    """Answers that claim success or hold every number, and programs that tamper with tests, do not earn all."""
    env = subject.env
    await env.reset(seed=0)
    for answer in [*ANSWERS, *many_numbers(env.task.ground_truth if env.task is not None else None)]:
        await _refuse(subject, [assistant(answer)], f"the answer {shorten(repr(answer))}")
    unchecked = None
    for schema, argument, language in program_tools(env):
        reason = await _host(subject, schema, argument, language)
        if reason is not None:
            unchecked = f"{reason} (answers were checked)"
            continue
        for name, program in programs(language):
            actions = [program_call(schema, argument, program), assistant("I have solved the task. #### done")]
            for _ in range(TRIES if name in background_programs() else 1):
                await _refuse(subject, actions, f"a program of the tool {schema.name!r} that {name}")
    return unchecked


async def _host(subject: EnvSubject, schema: ToolSchema, argument: str, language: str) -> str | None:
    """Why a tool must not be given programs that overwrite files: they might be this machine's. None: they are not."""
    mark = secrets.token_hex(8)
    with tempfile.NamedTemporaryFile(prefix="toolgym-check-") as file:
        output = await _observed(subject, program_call(schema, argument, host_program(file.name, mark, language)))
    if f"{mark} False" in output:
        return None
    if f"{mark} True" in output:
        return f"the tool {schema.name!r} works on this machine's own files, so no program overwrote any"
    return f"a program of the tool {schema.name!r} did not come to its end: {output[-200:]}"


async def check_secrets(subject: EnvSubject) -> str | None:
    """Programs of the policy find neither the task's hidden texts nor commits after the present one."""
    env = subject.env
    shells = program_tools(env)
    if not shells:
        return "no tool of the env runs programs: none has an argument 'code' or 'command'"
    await env.reset(seed=0)
    lines = _hidden_lines(subject)
    unsearched = None if lines else "the task holds no long text that the policy must not read"
    for schema, argument, language in shells:
        if lines:
            mark = secrets.token_hex(8)
            output = await _observed(subject, program_call(schema, argument, search_program(lines, mark, language)))
            if f"{mark} end" not in output:
                unsearched = f"the search by the tool {schema.name!r} did not come to its end: {output[-200:]}"
            read = [line for line in output.splitlines() if line.startswith(f"{mark} found ")]
            expect(not read, f"the tool {schema.name!r} cannot read the task's hidden texts", read)
        if language == "shell":
            output = await _observed(subject, program_call(schema, argument, FUTURE))
            expect("future" not in output, "the repository has no commits after its present one", output)
    return unsearched


async def _refuse(subject: EnvSubject, actions: Sequence[Action], what: str) -> None:
    await subject.env.reset(seed=0)
    earned = await _total(subject, actions)
    expect(earned < subject.full_reward - 1e-6, f"{what} does not earn the full reward", earned)


async def _total(subject: EnvSubject, actions: Sequence[Action]) -> float:
    """The reward of an episode that has begun; the last action is repeated until it is over, or `max_steps` are."""
    total = 0.0
    for at in range(subject.max_steps):
        result = await subject.env.step(actions[min(at, len(actions) - 1)])
        total += result.reward
        if result.done:
            reason = result.stop_reason
            expect(reason is not None and not reason.failed, "the episode ends without a failure", reason)
            return total
    return total


async def _observed(subject: EnvSubject, action: Action) -> str:
    await subject.env.reset(seed=0)
    result = await subject.env.step(action)
    return "\n".join(described(message["content"]) for message in result.obs)


def _hidden_lines(subject: EnvSubject) -> list[str]:
    """Distinctive lines of what the policy must not read: long texts of the ground truth that no message shows."""
    task = subject.env.task
    texts = [*subject.hidden, *subject.env.hidden_texts()]
    shown = ""
    if task is not None:
        texts += _texts(task.ground_truth)
        shown = json.dumps([dict(message) for message in task.messages])
    lines = [line.strip() for text in texts for line in text.splitlines() if len(line.strip()) >= LONG]
    hidden = [line for line in dict.fromkeys(lines) if json.dumps(line)[1:-1] not in shown]
    step = max(1, len(hidden) // MOST_LINES)
    return hidden[::step][:MOST_LINES]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):  # as a file would hold it
        yield json.dumps(value, default=str)
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
