"""Many episodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.runner.adaptive import Adaptive as Adaptive
    from toolgym.rollout.runner.base import RunnerProtocol as RunnerProtocol
    from toolgym.rollout.runner.base import Sink as Sink
    from toolgym.rollout.runner.branching import Branching as Branching
    from toolgym.rollout.runner.branching import BranchPoint as BranchPoint
    from toolgym.rollout.runner.branching import at_turns as at_turns
    from toolgym.rollout.runner.branching import by_chance as by_chance
    from toolgym.rollout.runner.branching import where_unsure as where_unsure
    from toolgym.rollout.runner.config import RunConfig as RunConfig
    from toolgym.rollout.runner.envs.env_factory import EnvFactory as EnvFactory
    from toolgym.rollout.runner.envs.env_factory import mixture as mixture
    from toolgym.rollout.runner.envs.role_plan import RolePlan as RolePlan
    from toolgym.rollout.runner.local import Runner as Runner
    from toolgym.rollout.runner.rollout_queue import RolloutQueue as RolloutQueue
    from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler as GroupScheduler
    from toolgym.rollout.runner.scheduling.plan import GroupPlan as GroupPlan
    from toolgym.rollout.runner.scheduling.plan import has_signal as has_signal
    from toolgym.rollout.runner.scheduling.scheduler import Cut as Cut
    from toolgym.rollout.runner.scheduling.scheduler import Scheduler as Scheduler
    from toolgym.rollout.runner.scheduling.scheduler import Stragglers as Stragglers
else:
    __getattr__, __dir__ = lazy_names(__name__)
