"""toolgym: Gymnasium-style environments for training language models that use tools.

Importing this registers toolgym's envs with Gymnasium, and little else: each name below loads its module when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolgym.envs.registry import make, register  # importing it registers the envs
from toolgym.version import __version__

if TYPE_CHECKING:
    from toolgym.envs.base import BaseEnv, StepResult, StopReason
    from toolgym.envs.code_interpreter import CodeInterpreterEnv
    from toolgym.envs.task import Task, TaskList, TaskSource, load_tasks
    from toolgym.envs.tool_env import ToolEnv
    from toolgym.rollout.batch import Batch, make_batch
    from toolgym.rollout.engines.base import Engine, SamplingParams
    from toolgym.rollout.engines.openai_compatible import OpenAICompatible
    from toolgym.rollout.engines.sglang import SGLangServer
    from toolgym.rollout.engines.transformers import TransformersEngine
    from toolgym.rollout.runner import RunConfig, Runner
    from toolgym.rollout.trajectory import Trajectory
    from toolgym.tools.base import BaseTool, ToolResult
    from toolgym.tools.code_interpreter import CodeInterpreterTool
    from toolgym.tools.config import from_config
    from toolgym.tools.errors import ToolgymError
    from toolgym.tools.function import tool
    from toolgym.tools.schema import ToolSchema

_HOMES = {
    "BaseEnv": "envs.base",
    "BaseTool": "tools.base",
    "Batch": "rollout.batch",
    "CodeInterpreterEnv": "envs.code_interpreter",
    "CodeInterpreterTool": "tools.code_interpreter",
    "Engine": "rollout.engines.base",
    "OpenAICompatible": "rollout.engines.openai_compatible",
    "SGLangServer": "rollout.engines.sglang",
    "SamplingParams": "rollout.engines.base",
    "RunConfig": "rollout.runner",
    "Runner": "rollout.runner",
    "StepResult": "envs.base",
    "StopReason": "envs.base",
    "Task": "envs.task",
    "TaskList": "envs.task",
    "TaskSource": "envs.task",
    "ToolEnv": "envs.tool_env",
    "ToolResult": "tools.base",
    "ToolSchema": "tools.schema",
    "ToolgymError": "tools.errors",
    "Trajectory": "rollout.trajectory",
    "TransformersEngine": "rollout.engines.transformers",
    "from_config": "tools.config",
    "load_tasks": "envs.task",
    "make_batch": "rollout.batch",
    "tool": "tools.function",
}

__all__ = [
    "BaseEnv",
    "BaseTool",
    "Batch",
    "CodeInterpreterEnv",
    "CodeInterpreterTool",
    "Engine",
    "OpenAICompatible",
    "RunConfig",
    "Runner",
    "SGLangServer",
    "SamplingParams",
    "StepResult",
    "StopReason",
    "Task",
    "TaskList",
    "TaskSource",
    "ToolEnv",
    "ToolResult",
    "ToolSchema",
    "ToolgymError",
    "Trajectory",
    "TransformersEngine",
    "__version__",
    "from_config",
    "load_tasks",
    "make",
    "make_batch",
    "register",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolgym.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
