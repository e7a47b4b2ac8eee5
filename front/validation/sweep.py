"""`validate_tasks`: play each task of an env with its known solution and without any change, several times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from toolgym.envs.base import Action, BaseEnv
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, error_text, require_whole_number


class SweepOptions(TypedDict, total=False):
    """Arguments of `validate_tasks`."""

    repeats: int
    full_reward: float
    silent_reward: float
    at_once: int


SILENT_TURN = "I am done."


@dataclass(frozen=True)
class TaskVerdict:
    """The verdict on one task.

    Attributes:
        id: the task's id.
        gold: the rewards of the known solution, one for each time that it was played; empty: none is known.
        no_op: the rewards of an episode that does nothing, likewise.
        fault: why the task should not be trained on; empty: it holds.
    """

    id: str
    gold: tuple[float, ...]
    no_op: tuple[float, ...]
    fault: str = ""


async def validate_tasks(
    make: Callable[[], BaseEnv],
    tasks: Sequence[Task],
    *,
    repeats: int = 3,
    full_reward: float = 1.0,
    silent_reward: float = 0.0,
    at_once: int = 4,
) -> AsyncIterator[TaskVerdict]:
    """Play each task with its known solution and without any change, and yield a verdict on each, in order.

    Args:
        make: makes an env that can play the tasks.
        tasks: the tasks.
        repeats: times that each is played; tests that pass now and then show.
        full_reward: the least that the known solution must earn.
        silent_reward: the most that an episode without a change may earn.
        at_once: tasks that are played at the same time.

    Raises ConfigError if a number cannot be used.
    """
    require_whole_number("repeats", repeats, at_least=1)
    require_whole_number("at_once", at_once, at_least=1)
    room = asyncio.Semaphore(at_once)

    async def validate(task: Task) -> TaskVerdict:
        async with room:
            return await _verdict(make, task, repeats, full_reward, silent_reward)

    pending = [asyncio.create_task(validate(task)) for task in tasks]
    try:
        for verdict in pending:
            yield await verdict
    finally:
        for verdict in pending:
            verdict.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _verdict(
    make: Callable[[], BaseEnv], task: Task, repeats: int, full_reward: float, silent_reward: float
) -> TaskVerdict:
    gold: list[float] = []
    no_op: list[float] = []
    try:
        async with make() as env:
            for _ in range(repeats):
                no_op.append(await _play(env, task, None))
                if (reward := await _play_gold(env, task)) is not None:
                    gold.append(reward)
    except ConfigError as error:
        return TaskVerdict(str(task.id), tuple(gold), tuple(no_op), error_text(error))
    except Exception as error:  # noqa: BLE001  whatever an env raises for a task is the verdict on it
        return TaskVerdict(str(task.id), tuple(gold), tuple(no_op), f"its episode failed: {error_text(error)}")
    fault = ""
    if gold and min(gold) < full_reward:
        fault = f"the known solution earns {min(gold):g} and not {full_reward:g}"
    elif max(no_op) > silent_reward:
        fault = f"an episode that does nothing earns {max(no_op):g}"
    if fault and (len({*gold}) > 1 or len({*no_op}) > 1):
        fault += f" (in one of {repeats} times)"
    return TaskVerdict(str(task.id), tuple(gold), tuple(no_op), fault)


async def _play_gold(env: BaseEnv, task: Task) -> float | None:
    await env.reset(seed=0, options={"task": task})
    actions = env.gold_actions()
    return None if actions is None else await _play(env, task, actions)


async def _play(env: BaseEnv, task: Task, actions: Sequence[Action] | None) -> float:
    await env.reset(seed=0, options={"task": task})
    reward = 0.0
    for action in actions or [SILENT_TURN]:
        result = await env.step(action)
        reward += result.reward
        if result.done:
            break
    else:
        await env.close()
        raise ConfigError("the known solution does not end the episode" if actions else "a turn without calls goes on")
    return reward
