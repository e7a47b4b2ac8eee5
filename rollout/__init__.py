"""Layer 4: engines, exact tokens, the runner, trajectories and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.advantages.advantages import group_advantages as group_advantages
    from toolgym.rollout.batch.batch import Batch as Batch
    from toolgym.rollout.batch.make import make_batch as make_batch
    from toolgym.rollout.engines.base import Engine as Engine
    from toolgym.rollout.engines.base import SamplingParams as SamplingParams
    from toolgym.rollout.engines.open import open_engine as open_engine
    from toolgym.rollout.episode.observer import EpisodeObserver as EpisodeObserver
    from toolgym.rollout.limits import EpisodeLimits as EpisodeLimits
    from toolgym.rollout.models.tiny import tiny_policy_path as tiny_policy_path
    from toolgym.rollout.models.tokenizer import load_tokenizer as load_tokenizer
    from toolgym.rollout.orchestrator import RunOutput as RunOutput
    from toolgym.rollout.orchestrator import rollout as rollout
    from toolgym.rollout.recording.replay import replay as replay
    from toolgym.rollout.runner.config import RunConfig as RunConfig
    from toolgym.rollout.runner.envs.env_factory import EnvFactory as EnvFactory
    from toolgym.rollout.runner.envs.env_factory import mixture as mixture
    from toolgym.rollout.runner.envs.role_plan import RolePlan as RolePlan
    from toolgym.rollout.runner.local import Runner as Runner
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics as RunMetrics
    from toolgym.rollout.runner.ray.runner import RayRunner as RayRunner
    from toolgym.rollout.runner.rollout_queue import RolloutQueue as RolloutQueue
    from toolgym.rollout.runner.run_episode import run_episode as run_episode
    from toolgym.rollout.runner.scheduling.plan import GroupPlan as GroupPlan
    from toolgym.rollout.trajectory.failures import RunFailedError as RunFailedError
    from toolgym.rollout.trajectory.file import read_trajectories as read_trajectories
    from toolgym.rollout.trajectory.summary import summarize as summarize
    from toolgym.rollout.trajectory.trajectory import Trajectory as Trajectory
    from toolgym.rollout.trajectory.trajectory import Turn as Turn
    from toolgym.rollout.views.show import show as show
else:
    __getattr__, __dir__ = lazy_names(__name__)
