"""The check that a fork and its origin share no state: what one of them does does not show in the other one."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.envs.actions import read_action
from toolgym.envs.base import Action, BaseEnv
from toolgym.envs.types import StopReason
from toolgym.testing.env_attacks import program_call, program_tools
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.errors import expect
from toolgym.tools.base import BaseTool
from toolgym.tools.message import assistant
from toolgym.tools.parsers import get_parser

MOST_POINTS = 3
"""Turns of an episode after which it is forked."""


_PROGRAMS = {
    "python": ("toolgym_check = 1\nprint(1)", "print('toolgym_check' in globals())"),
    "shell": ("export TOOLGYM_CHECK=1; echo 1", "echo ${TOOLGYM_CHECK:-unset}"),
}
"""A program that changes the state of its session, and a program that shows whether it was changed, by language."""


class _Turn(NamedTuple):
    """A turn's outcome, as plain data."""

    obs: Any
    reward: float
    done: bool
    reason: StopReason | None


async def check_fork_state(subject: EnvSubject) -> str | None:
    """A fork and its origin share no state: neither sees in its observations or its verdict what the other one does."""
    env = subject.env
    await env.reset(seed=0)
    actions: Sequence[Action] = env.gold_actions() or subject.actions
    idle: Sequence[Action] = [assistant("")]
    programs = program_tools(env)
    if programs and subject.repeatable and not any(map(_has_calls, actions)):
        schema, argument, language = programs[0]
        actions, idle = ([program_call(schema, argument, program), *actions] for program in _PROGRAMS[language])
    if env.tool_schemas and not any(map(_has_calls, actions)):
        await _check_references(subject)
        return (
            "no action of the check calls a tool: implement gold_actions(), or give actions= with calls, to check that "
            "the tools of a fork and of its origin share no state"
        )
    expected = await _unforked(subject, actions)
    for at in _points(len(expected)):
        expected_idle = await _unforked(subject, [*actions[:at], *idle])
        for origin_acts in (True, False):
            await _check_pair(
                subject, (actions, idle), at, (expected[at:], expected_idle[at:]), origin_acts=origin_acts
            )
    await _check_turns(subject, actions, expected)
    return None


def _points(turns: int) -> list[int]:
    """Return the turns before which an episode is forked: its first, its last and one between."""
    return sorted({0, turns // 2, turns - 1})[:MOST_POINTS]


async def _unforked(subject: EnvSubject, actions: Sequence[Action]) -> list[_Turn]:
    await subject.env.reset(seed=0)
    return await _play(subject, subject.env, actions)


async def _play(subject: EnvSubject, env: BaseEnv, actions: Sequence[Action]) -> list[_Turn]:
    """Play to the end, or for `max_steps`; the last action is repeated."""
    turns: list[_Turn] = []
    while len(turns) < subject.max_steps and not (turns and turns[-1].done):
        turns.append(await _step(env, actions[min(len(turns), len(actions) - 1)]))
    return turns


async def _step(env: BaseEnv, action: Action) -> _Turn:
    result = await env.step(action)
    return _Turn(copy.deepcopy(result.obs), result.reward, result.done, result.stop_reason)


async def _check_pair(
    subject: EnvSubject,
    both: tuple[Sequence[Action], Sequence[Action]],
    at: int,
    expected: tuple[Sequence[_Turn], Sequence[_Turn]],
    *,
    origin_acts: bool,
) -> None:
    """Let one of a fork and its origin solve the task and then the other one do nothing."""
    env = subject.env
    actions, idle_actions = both
    await env.reset(seed=0)
    for action in actions[:at]:
        await env.step(action)
    twin = await env.fork()
    try:
        acting, idle = (env, twin) if origin_acts else (twin, env)
        names = ("the origin", "its fork") if origin_acts else ("a fork", "its origin")
        turns = await _play(subject, acting, actions[at:])
        _compare(subject, expected[0], turns, f"{names[0]} goes on after {at} turns as without a fork")
        turns = await _play(subject, idle, idle_actions)
        _compare(subject, expected[1], turns, f"what {names[0]} does after {at} turns does not show in {names[1]}")
    finally:
        await twin.close()


async def _check_turns(subject: EnvSubject, actions: Sequence[Action], expected: Sequence[_Turn]) -> None:
    """Let a fork and its origin take the same turns, one after the other."""
    env = subject.env
    await env.reset(seed=0)
    twin = await env.fork()
    turns: dict[str, list[_Turn]] = {"its origin": [], "a fork": []}
    try:
        for place in range(len(expected)):
            action = actions[min(place, len(actions) - 1)]
            for name, player in (("its origin", env), ("a fork", twin)):
                if not (turns[name] and turns[name][-1].done):
                    turns[name].append(await _step(player, action))
        for name, played in turns.items():
            _compare(subject, expected, played, f"{name} and its twin take the same turns without noticing each other")
    finally:
        await twin.close()


def _compare(subject: EnvSubject, expected: Sequence[_Turn], turns: Sequence[_Turn], rule: str) -> None:
    reward, earned = (math.fsum(turn.reward for turn in played) for played in (expected, turns))
    expect(math.isclose(reward, earned, abs_tol=1e-6), f"{rule}: the reward is {reward:g}, as without a fork", earned)
    if subject.repeatable:
        expect(list(turns) == list(expected), f"{rule}: the turns are {list(expected)!r}", list(turns))


def _has_calls(action: Action) -> bool:
    return bool(read_action(action, get_parser("hermes")).requests)


async def _check_references(subject: EnvSubject) -> None:
    """Raise if a tool of a fork refers to the env that was forked: what it changes is the origin's."""
    env = subject.env
    await env.reset(seed=0)
    twin = await env.fork()
    try:
        tools = getattr(twin, "tools", {})
        for name, tool in tools.items() if isinstance(tools, Mapping) else ():
            expect(
                not any(item is env for item in _referred(tool)),
                f"the tool {name!r} of a fork does not refer to the env that was forked: keep a state that tools share "
                "in a toolgym.tools.ToolGroup",
                "a reference to it",
            )
    finally:
        await twin.close()


def _referred(tool: BaseTool) -> Iterator[Any]:
    """Yield what a tool, and the function that it was made of, refer to."""
    for value in vars(tool).values():
        yield value
        while isinstance(value, functools.partial):
            value = value.func
        if inspect.ismethod(value):
            yield value.__self__
        if inspect.isroutine(value):
            for cell in getattr(inspect.unwrap(value), "__closure__", None) or ():
                try:
                    yield cell.cell_contents
                except ValueError:  # not filled yet
                    continue
