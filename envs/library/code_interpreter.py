"""`CodeInterpreterEnv`: solve a problem with the help of a Python interpreter, and answer with `#### answer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.rewards.final_answer import score_final_answer
from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.code_interpreter import CodeInterpreterTool
from toolgym.tools.errors import ConfigError


class CodeInterpreterEnv(ToolEnv):
    """An env whose policy has a code interpreter.

    Args:
        tasks: where tasks come from. None: generated arithmetic word problems (`ArithmeticTasks`).
        tool_config: options of the code interpreter, see `toolgym.tools.CodeInterpreterConfig`.
        tools: use these tools instead of a code interpreter of the env's own; they stay the caller's to close.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns` and `tool_timeout`.

    The reward is 1 for a final answer equal to the task's ground truth, else 0, plus what the tools give.

    Example:
        >>> import asyncio, toolgym
        >>> async def main():
        ...     async with toolgym.make("CodeInterpreter-v0") as env:
        ...         obs, info = await env.reset(seed=0)
        ...         result = await env.step(
        ...             '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6*7)"}}</tool_call>'
        ...         )
        ...         return result.obs[0]["content"]
        >>> asyncio.run(main())
        '42'
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        tool_config: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool] | None = None,
        **env_kwargs: Any,
    ) -> None:
        if tools is not None and tool_config is not None:
            raise ConfigError("give either tools or tool_config: tool_config configures the env's own interpreter")
        env_kwargs.setdefault("scorer", _score)
        if tools is None:
            env_kwargs["owns_tools"] = True
        super().__init__(
            tools if tools is not None else [CodeInterpreterTool(tool_config)],
            tasks if tasks is not None else ArithmeticTasks(),
            **env_kwargs,
        )

    @classmethod
    def vector_defaults(cls, num_envs: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for each env of a vector env: room for all of them to call at once."""
        merged = dict(kwargs)
        if merged.get("tools") is None and merged.get("tool_config") is None:
            merged["tool_config"] = {"num_workers": num_envs, "enable_global_rate_limit": False}
        return merged


def _score(text: str, task: Task) -> float:
    return score_final_answer(text, task.ground_truth)
