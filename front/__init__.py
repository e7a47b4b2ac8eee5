"""toolgym: Gymnasium-style environments for training language models that use tools.

Importing this loads nothing but the registry of envs, and not Gymnasium, which learns their ids when it is imported.
Each name below loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.envs.registry import make as make
from toolgym.envs.registry import register as register
from toolgym.tools.lazy import lazy_names
from toolgym.version import __version__ as __version__

if TYPE_CHECKING:
    from toolgym.envs.base import BaseEnv as BaseEnv
    from toolgym.envs.base import StepResult as StepResult
    from toolgym.envs.library.code_interpreter import CodeInterpreterEnv as CodeInterpreterEnv
    from toolgym.envs.rewards.base import Outcome as Outcome
    from toolgym.envs.rewards.base import Score as Score
    from toolgym.envs.tasks.loading import load_tasks as load_tasks
    from toolgym.envs.tasks.sources import TaskList as TaskList
    from toolgym.envs.tasks.sources import TaskSource as TaskSource
    from toolgym.envs.tasks.task import Task as Task
    from toolgym.envs.tool_env import ToolEnv as ToolEnv
    from toolgym.envs.types import End as End
    from toolgym.envs.types import StopReason as StopReason
    from toolgym.rollout.batch.batch import Batch as Batch
    from toolgym.rollout.batch.make import make_batch as make_batch
    from toolgym.rollout.engines.base import Engine as Engine
    from toolgym.rollout.engines.base import SamplingParams as SamplingParams
    from toolgym.rollout.engines.embedded.transformers import TransformersEngine as TransformersEngine
    from toolgym.rollout.engines.openai.engine import OpenAICompatible as OpenAICompatible
    from toolgym.rollout.engines.sglang.server import SGLangServer as SGLangServer
    from toolgym.rollout.runner.config import RunConfig as RunConfig
    from toolgym.rollout.runner.local import Runner as Runner
    from toolgym.rollout.trajectory.trajectory import Trajectory as Trajectory
    from toolgym.tools.base import BaseTool as BaseTool
    from toolgym.tools.base import ToolResult as ToolResult
    from toolgym.tools.config import from_config as from_config
    from toolgym.tools.errors import ToolgymError as ToolgymError
    from toolgym.tools.function import tool as tool
    from toolgym.tools.library.code_interpreter import CodeInterpreterTool as CodeInterpreterTool
    from toolgym.tools.message import Message as Message
    from toolgym.tools.schema import ToolSchema as ToolSchema
    from toolgym.tools.stateful import StatefulTool as StatefulTool
    from toolgym.tools.stateful import ToolSession as ToolSession
    from toolgym.wrappers.base import Wrapper as Wrapper
else:
    __getattr__, __dir__ = lazy_names(__name__)
