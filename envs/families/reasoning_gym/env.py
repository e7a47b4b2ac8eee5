"""`ReasoningGymEnv`: one question of a generator of reasoning-gym, scored by the generator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.families.reasoning_gym.tasks import ReasoningGymTasks, entry_of, packed_config
from toolgym.envs.library.code_interpreter import tools_of
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.rewards.qa import tagged_answer
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.tools.confined import OverrunError, ProcessPool
from toolgym.tools.errors import ConfigError, check_seconds

_pool = ProcessPool(
    Path(__file__).with_name("work.py"), name="the process that scores answers by reasoning-gym", memory=2 << 30
)


class ReasoningGymEnv(ToolEnv):
    """An env whose policy answers one question of a generator. `docs/envs/reasoning_gym.md` has its reward.

    Args:
        generator: the generator's name; `ReasoningGym/NAME-v0` gives it.
        seed, size, level, config: see `ReasoningGymTasks`.
        tasks: tasks of `ReasoningGymTasks`, such as a source of another level or rows that were saved, instead of the
            four arguments above.
        code_interpreter: whether the policy has a code interpreter.
        tool_config: options of the code interpreter, see `toolgym.tools.CodeInterpreterConfig`.
        score_timeout: CPU seconds for the generator's scorer. An answer that takes longer scores 0.
        env_kwargs: the other arguments of `ToolEnv`.

    The scorer runs in another process. `score/refused` is 1 for an answer that the scorer would evaluate and that is
    not a plain formula, `score/unreadable` if the scorer raised, and `score/too_slow`, `score/too_large` or
    `score/crashed` if the answer took too much time or memory or crashed the process.

    Raises ConfigError if the generator refuses an argument, or two arguments do not go together, and MissingExtraError
    if reasoning-gym is not installed.
    """

    def __init__(
        self,
        generator: str,
        *,
        seed: int | None = None,
        size: int | None = None,
        level: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        tasks: TaskSource | Sequence[Task] | None = None,
        code_interpreter: bool = False,
        tool_config: Mapping[str, Any] | None = None,
        score_timeout: float = 10.0,
        **env_kwargs: Any,
    ) -> None:
        described: dict[str, Any] = {"seed": seed, "size": size, "level": level, "config": config}
        options = {name: value for name, value in described.items() if value is not None}
        if tasks is not None and options:
            raise ConfigError(f"give tasks, or {', '.join(options)}: tasks say which generator made them")
        check_seconds(score_timeout=score_timeout)
        tools, _ = tools_of([], [], code_interpreter=code_interpreter, tool_config=tool_config)
        env_kwargs.setdefault("scorer", functools.partial(_score, score_timeout))
        source = tasks if tasks is not None else ReasoningGymTasks(generator, **options)
        super().__init__(tools, source, owns_tools=tools, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        entry_of(task)  # a row of another kind is an error now, and not at the end
        return task

    def gold_actions(self) -> list[Action] | None:
        if self.task is None or self.task.ground_truth is None:
            return None
        return [f"<answer>{self.task.ground_truth}</answer>"]


async def _score(cpu_seconds: float, outcome: Outcome) -> Score:
    answer = tagged_answer(outcome.final_text) if outcome.stop_reason is StopReason.ANSWERED else None
    if answer is None:
        return Score(0.0)
    generator, entry = entry_of(outcome.task)
    try:
        value = await _pool.call(
            "score", generator.name, packed_config(generator), answer, entry, cpu_seconds=cpu_seconds
        )
    except OverrunError as error:
        return Score(0.0, {error.component: 1.0})
    return Score(0.0, {value: 1.0}) if isinstance(value, str) else Score(value)
