"""`CodeInterpreterEnv`: solve a problem with the help of a Python interpreter, and answer with `#### answer`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.rewards.answer import final_answer_score
from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.library.code_interpreter import CodeInterpreterTool


class CodeInterpreterEnv(ToolEnv):
    """An env whose policy has a code interpreter. A final answer equal to the task's ground truth has the reward 1,
    else 0.

    Args:
        tasks: where tasks come from. None: generated arithmetic word problems (`ArithmeticTasks`).
        tool_config: options of the code interpreter, see `toolgym.tools.CodeInterpreterConfig`.
        tools: further tools, which stay the caller's to close.
        own_tools: whether the env makes a code interpreter of its own. Without it, `tools` are all that there are.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns` and `tool_timeout`.

    Example:
        >>> import asyncio, toolgym
        >>> call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6*7)"}}</tool_call>'
        >>> async def main():
        ...     async with toolgym.make("CodeInterpreter-v0") as env:
        ...         await env.reset(seed=0)
        ...         return (await env.step(call)).obs[0]["content"]
        >>> asyncio.run(main())
        '42'
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        tool_config: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] | None = None,
        own_tools: bool = True,
        **env_kwargs: Any,
    ) -> None:
        if tool_config is not None and not own_tools:
            raise ConfigError("give tool_config, or own_tools=False: tool_config is for the env's own interpreter")
        if not isinstance(tools, Sequence | None):
            raise ConfigError(f"tools must be a list of tools, got {tools!r}")
        interpreters = [CodeInterpreterTool(tool_config)] if own_tools else []
        further = [*map(as_tool, tools or ())]
        if interpreters and interpreters[0].name in (tool.name for tool in further):
            raise ConfigError(
                f"the env has a tool called {interpreters[0].name!r} of its own; give own_tools=False to leave that "
                "one out"
            )
        if interpreters:
            env_kwargs["owns_tools"] = interpreters
        env_kwargs.setdefault("scorer", final_answer_score)
        super().__init__([*interpreters, *further], tasks if tasks is not None else ArithmeticTasks(), **env_kwargs)

    def gold_actions(self) -> list[Action] | None:
        truth = None if self.task is None else self.task.ground_truth
        if truth is None:
            return None
        answer = truth[0] if isinstance(truth, list | tuple) else truth
        return [f"#### {answer if isinstance(answer, str) else json.dumps(answer)}"]


def tools_of(
    tools: Sequence[BaseTool],
    further: Sequence[BaseTool | ToolFunction[..., Any]],
    *,
    code_interpreter: bool,
    tool_config: Mapping[str, Any] | None,
) -> tuple[list[BaseTool], list[BaseTool]]:
    """Return all tools of an env, and those that it closes: its own without those that a further one replaces."""
    if not isinstance(further, Sequence):
        raise ConfigError(f"tools must be a list of tools, got {further!r}")
    if tool_config is not None and not code_interpreter:
        raise ConfigError("tool_config is for the env's code interpreter: give code_interpreter=True with it")
    theirs = [*map(as_tool, further)]
    names = {tool.name for tool in theirs}
    interpreters = [CodeInterpreterTool(tool_config)] if code_interpreter else []
    ours = [tool for tool in (*tools, *interpreters) if tool.name not in names]
    return [*ours, *theirs], ours
