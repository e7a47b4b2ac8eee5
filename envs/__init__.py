"""Floor 2: episodes, that is, a task, tools and a reward behind `reset` and `step`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.envs.arithmetic import ArithmeticTasks
    from toolgym.envs.bad_calls import BadCallPolicy
    from toolgym.envs.base import BaseEnv, Info, StepResult, StopReason
    from toolgym.envs.code_interpreter import CodeInterpreterEnv
    from toolgym.envs.gymnasium_env import GymnasiumEnv
    from toolgym.envs.registry import EnvSpec, make, register, registered
    from toolgym.envs.spaces import ChatSpace, TextSpace
    from toolgym.envs.task import Task, TaskList, TaskSource, load_tasks
    from toolgym.envs.tool_env import ToolCallRecord, ToolEnv
    from toolgym.envs.vector_env import ToolVectorEnv

_HOMES = {
    "ArithmeticTasks": "arithmetic",
    "BadCallPolicy": "bad_calls",
    "BaseEnv": "base",
    "ChatSpace": "spaces",
    "CodeInterpreterEnv": "code_interpreter",
    "EnvSpec": "registry",
    "GymnasiumEnv": "gymnasium_env",
    "Info": "base",
    "StepResult": "base",
    "StopReason": "base",
    "Task": "task",
    "TaskList": "task",
    "TaskSource": "task",
    "TextSpace": "spaces",
    "ToolCallRecord": "tool_env",
    "ToolEnv": "tool_env",
    "ToolVectorEnv": "vector_env",
    "load_tasks": "task",
    "make": "registry",
    "register": "registry",
    "registered": "registry",
}

__all__ = [
    "ArithmeticTasks",
    "BadCallPolicy",
    "BaseEnv",
    "ChatSpace",
    "CodeInterpreterEnv",
    "EnvSpec",
    "GymnasiumEnv",
    "Info",
    "StepResult",
    "StopReason",
    "Task",
    "TaskList",
    "TaskSource",
    "TextSpace",
    "ToolCallRecord",
    "ToolEnv",
    "ToolVectorEnv",
    "load_tasks",
    "make",
    "register",
    "registered",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
