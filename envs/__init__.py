"""Layer 2: episodes, that is, a task, tools and a reward behind `reset` and `step`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.envs.as_tools.tool_class import tool_class as tool_class
    from toolgym.envs.bad_calls import BadCallPolicy as BadCallPolicy
    from toolgym.envs.base import Action as Action
    from toolgym.envs.base import BaseEnv as BaseEnv
    from toolgym.envs.base import StepResult as StepResult
    from toolgym.envs.foreign.base import WrapOptions as WrapOptions
    from toolgym.envs.foreign.env import wrap as wrap
    from toolgym.envs.foreign.seeds import SeedTasks as SeedTasks
    from toolgym.envs.foreign.seeds import seed_tasks as seed_tasks
    from toolgym.envs.gym.gymnasium_env import GymnasiumEnv as GymnasiumEnv
    from toolgym.envs.gym.spaces import ChatSpace as ChatSpace
    from toolgym.envs.gym.spaces import TextSpace as TextSpace
    from toolgym.envs.gym.vector_env import ToolVectorEnv as ToolVectorEnv
    from toolgym.envs.library.code_interpreter import CodeInterpreterEnv as CodeInterpreterEnv
    from toolgym.envs.registry import EnvSpec as EnvSpec
    from toolgym.envs.registry import make as make
    from toolgym.envs.registry import register as register
    from toolgym.envs.registry import registered as registered
    from toolgym.envs.rewards.base import Outcome as Outcome
    from toolgym.envs.rewards.base import Score as Score
    from toolgym.envs.rewards.base import Scorer as Scorer
    from toolgym.envs.roles.base import RolesEnv as RolesEnv
    from toolgym.envs.roles.base import RolesStep as RolesStep
    from toolgym.envs.tasks.arithmetic import ArithmeticTasks as ArithmeticTasks
    from toolgym.envs.tasks.combined.by_level import ByLevel as ByLevel
    from toolgym.envs.tasks.combined.mixture import LearningSignal as LearningSignal
    from toolgym.envs.tasks.combined.mixture import Mixture as Mixture
    from toolgym.envs.tasks.epochs import TaskEpochs as TaskEpochs
    from toolgym.envs.tasks.loading import load_tasks as load_tasks
    from toolgym.envs.tasks.sources import TaskList as TaskList
    from toolgym.envs.tasks.sources import TaskSource as TaskSource
    from toolgym.envs.tasks.sources import from_generator as from_generator
    from toolgym.envs.tasks.stored import from_hf as from_hf
    from toolgym.envs.tasks.stored import from_jsonl as from_jsonl
    from toolgym.envs.tasks.stored import from_parquet as from_parquet
    from toolgym.envs.tasks.task import Task as Task
    from toolgym.envs.tasks.writing import write_tasks as write_tasks
    from toolgym.envs.tool_env import ToolEnv as ToolEnv
    from toolgym.envs.types import Blame as Blame
    from toolgym.envs.types import End as End
    from toolgym.envs.types import EpisodeFailedError as EpisodeFailedError
    from toolgym.envs.types import PolicyFaultError as PolicyFaultError
    from toolgym.envs.types import ResetInfo as ResetInfo
    from toolgym.envs.types import StepInfo as StepInfo
    from toolgym.envs.types import StopReason as StopReason
    from toolgym.envs.types import ToolCallRecord as ToolCallRecord
else:
    __getattr__, __dir__ = lazy_names(__name__)
