r"""`MathEnv`: solve a problem of mathematics, and answer with `\boxed{answer}`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.library.code_interpreter import tools_of
from toolgym.envs.library.embedded import embedded_rows
from toolgym.envs.rewards.answer import truth_texts
from toolgym.envs.rewards.math_answer import same_value
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction
from toolgym.tools.message import system, user

SYSTEM_PROMPT = "Solve the problem step by step. Put your final answer in \\boxed{}."


class MathEnv(ToolEnv):
    r"""An env for problems whose answers are mathematics, in LaTeX or not; needs the extra `math`.

    The reward is 1 for an answer equal to the ground truth, as `toolgym.envs.rewards.same_value` compares them, else 0.
    At `reset`, a task without a usable ground truth is a `ConfigError`.

    Args:
        tasks: where tasks come from. None: 40 problems written for it. A ground truth is LaTeX, a plain expression or a
            number, or a list of these, any of which is right.
        code_interpreter: whether the policy has a code interpreter.
        tool_config: options of the code interpreter, see `toolgym.tools.CodeInterpreterConfig`.
        tools: further tools, which stay the caller's to close.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns` and `scorer`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        code_interpreter: bool = False,
        tool_config: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] = (),
        **env_kwargs: Any,
    ) -> None:
        every, owned = tools_of([], tools, code_interpreter=code_interpreter, tool_config=tool_config)
        if env_kwargs.get("scorer") is None:
            env_kwargs["scorer"] = same_value()
        super().__init__(every, tasks if tasks is not None else math_tasks(), owns_tools=owned, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        if not truth_texts(task.ground_truth):
            raise ConfigError(f"task {task.id!r} has no ground truth, which Math-v0 needs")
        return task

    def gold_actions(self) -> list[Action] | None:
        truths = [] if self.task is None else truth_texts(self.task.ground_truth)
        return [f"\\boxed{{{truths[0]}}}"] if truths else None


@functools.cache
def math_tasks() -> TaskList:
    tasks = []
    for number, problem in enumerate(embedded_rows("math")):
        prompt = [system(SYSTEM_PROMPT), user(problem["problem"])]
        row = verl_row("toolgym/math", prompt, problem["answer"], {"index": number}, ability="math")
        tasks.append(Task.from_row(row))
    return TaskList(tasks)
