"""`Gsm8kEnv`: solve a word problem, check the answer with a tool, refine it, and answer with `#### answer`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.library.code_interpreter import tools_of
from toolgym.envs.library.embedded import embedded_rows
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.concurrency.execution_pool import runs_inline
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction
from toolgym.tools.library.final_answer import score_final_answer
from toolgym.tools.library.gsm8k import Gsm8kRewardTool, gsm8k_truth
from toolgym.tools.message import assistant, system, tool_call, user

TOOL = "calc_gsm8k_reward"

SYSTEM_PROMPT = (
    "Solve the problem step by step. Before your final answer, check it with the tool `calc_gsm8k_reward` at least "
    "once, and correct it where it earns nothing. Then end with `#### <answer>`."
)


class Gsm8kEnv(ToolEnv):
    """An env for word problems whose answers are numbers, with a tool that checks an answer.

    The reward is 1 for a final answer equal to the ground truth, else 0; less `step_penalty` for each check that did
    not improve. At `reset`, a task without a usable ground truth is a `ConfigError`.

    Args:
        tasks: where tasks come from, for example verl's rows of `openai/gsm8k`; a row without `tools_kwargs` gives the
            tool its own ground truth. None: word problems written for it.
        step_penalty: what a check costs whose answer is no better than the episode's best so far.
        code_interpreter: whether the policy has a code interpreter too.
        tool_config: options of the code interpreter, see `toolgym.tools.CodeInterpreterConfig`.
        tools: further tools, which stay the caller's to close. One called `calc_gsm8k_reward` takes the place of the
            env's.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns` and `scorer`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        step_penalty: float = 0.05,
        code_interpreter: bool = False,
        tool_config: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] = (),
        **env_kwargs: Any,
    ) -> None:
        checks = [Gsm8kRewardTool({"step_penalty": step_penalty})]
        every, owned = tools_of(checks, tools, code_interpreter=code_interpreter, tool_config=tool_config)
        env_kwargs.setdefault("scorer", _score)
        super().__init__(every, tasks if tasks is not None else gsm8k_tasks(), owns_tools=owned, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        if task.ground_truth is None:
            raise ConfigError(f"task {task.id!r} has no ground truth, which GSM8K-v0 needs")
        kwargs = task.tools_kwargs.get(TOOL, {})
        if (kwargs.get("create_kwargs") or {}).get("ground_truth") is not None:
            return task
        create = {**(kwargs.get("create_kwargs") or {}), "ground_truth": task.ground_truth}
        return replace(task, tools_kwargs={**task.tools_kwargs, TOOL: {**kwargs, "create_kwargs": create}})

    def gold_actions(self) -> list[Action] | None:
        truth = None if self.task is None else gsm8k_truth(self.task.ground_truth)
        if truth is None:
            return None
        first = truth[0] if isinstance(truth, list | tuple) else truth
        answer = first if isinstance(first, str) else json.dumps(first)
        return [assistant("", [tool_call(TOOL, {"answer": answer})]), f"#### {answer}"]


@functools.cache
def gsm8k_tasks() -> TaskList:
    """30 word problems in the form of GSM8K, written for toolgym, each with a worked solution in its row."""
    tasks = []
    for number, problem in enumerate(embedded_rows("gsm8k")):
        prompt, truth = [system(SYSTEM_PROMPT), user(problem["question"])], gsm8k_truth(problem["answer"])
        kwargs = {TOOL: {"create_kwargs": {"ground_truth": truth}}}
        extra = {"index": number, **problem, "need_tools_kwargs": True, "tools_kwargs": kwargs}
        tasks.append(Task.from_row(verl_row("toolgym/gsm8k", prompt, truth, extra, ability="math")))
    return TaskList(tasks)


@runs_inline
def _score(text: str, task: Task) -> float:
    return score_final_answer(text, gsm8k_truth(task.ground_truth))
