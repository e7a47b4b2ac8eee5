"""Layer 4: engines, exact tokens, the runner, trajectories and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.advantages.advantages import group_advantages as group_advantages
    from toolgym.rollout.advantages.group_rewards import add_group_reward as add_group_reward
    from toolgym.rollout.advantages.group_rewards import diversity_reward as diversity_reward
    from toolgym.rollout.advantages.group_rewards import pairwise_reward as pairwise_reward
    from toolgym.rollout.advantages.reward_placement import token_rewards as token_rewards
    from toolgym.rollout.batch.arrow import from_parquet as from_parquet
    from toolgym.rollout.batch.arrow import to_dataset as to_dataset
    from toolgym.rollout.batch.arrow import to_parquet as to_parquet
    from toolgym.rollout.batch.batch import Batch as Batch
    from toolgym.rollout.batch.batch import MicroBatch as MicroBatch
    from toolgym.rollout.batch.batch import restore_rows as restore_rows
    from toolgym.rollout.batch.check import check_batch as check_batch
    from toolgym.rollout.batch.io import load_batch as load_batch
    from toolgym.rollout.batch.io import save_batch as save_batch
    from toolgym.rollout.batch.make import make_batch as make_batch
    from toolgym.rollout.batch.packing import Packed as Packed
    from toolgym.rollout.batch.packing import pack as pack
    from toolgym.rollout.batch.tree import Tree as Tree
    from toolgym.rollout.batch.tree import pack_tree as pack_tree
    from toolgym.rollout.endpoint import make_run as make_run
    from toolgym.rollout.engine_player import EnginePlayer as EnginePlayer
    from toolgym.rollout.engines.base import Engine as Engine
    from toolgym.rollout.engines.base import EngineLoad as EngineLoad
    from toolgym.rollout.engines.base import Generation as Generation
    from toolgym.rollout.engines.base import GenerationRequest as GenerationRequest
    from toolgym.rollout.engines.base import PauseMode as PauseMode
    from toolgym.rollout.engines.base import SamplingParams as SamplingParams
    from toolgym.rollout.engines.callable import CallableEngine as CallableEngine
    from toolgym.rollout.engines.embedded.transformers import TransformersEngine as TransformersEngine
    from toolgym.rollout.engines.open import open_engine as open_engine
    from toolgym.rollout.engines.openai.engine import OpenAICompatible as OpenAICompatible
    from toolgym.rollout.engines.sglang.in_process import SGLangEngine as SGLangEngine
    from toolgym.rollout.engines.sglang.server import SGLangServer as SGLangServer
    from toolgym.rollout.episode.episode import Episode as Episode
    from toolgym.rollout.episode.observer import EpisodeObserver as EpisodeObserver
    from toolgym.rollout.episode.observer import Phase as Phase
    from toolgym.rollout.job import Job as Job
    from toolgym.rollout.limits import EpisodeLimits as EpisodeLimits
    from toolgym.rollout.limits import HistoryMode as HistoryMode
    from toolgym.rollout.limits import TruncationPolicy as TruncationPolicy
    from toolgym.rollout.models.tiny import tiny_policy_path as tiny_policy_path
    from toolgym.rollout.models.tokenizer import load_tokenizer as load_tokenizer
    from toolgym.rollout.orchestrator import rollout as rollout
    from toolgym.rollout.recording.engine import CassetteEngine as CassetteEngine
    from toolgym.rollout.recording.engine import JournaledEngine as JournaledEngine
    from toolgym.rollout.recording.engine import RecordingEngine as RecordingEngine
    from toolgym.rollout.recording.recorder import recorded as recorded
    from toolgym.rollout.recording.replay import Difference as Difference
    from toolgym.rollout.recording.replay import Replay as Replay
    from toolgym.rollout.recording.replay import replay as replay
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
    from toolgym.rollout.runner.local import Runner as Runner
    from toolgym.rollout.runner.metrics.loggers import MetricLogger as MetricLogger
    from toolgym.rollout.runner.metrics.loggers import MLflowLogger as MLflowLogger
    from toolgym.rollout.runner.metrics.loggers import TensorBoardLogger as TensorBoardLogger
    from toolgym.rollout.runner.metrics.loggers import WandbLogger as WandbLogger
    from toolgym.rollout.runner.metrics.loggers import logged as logged
    from toolgym.rollout.runner.metrics.progress import Progress as Progress
    from toolgym.rollout.runner.metrics.prometheus import MetricsServer as MetricsServer
    from toolgym.rollout.runner.metrics.prometheus import RunCollector as RunCollector
    from toolgym.rollout.runner.metrics.run_counts import RunCounts as RunCounts
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics as RunMetrics
    from toolgym.rollout.runner.ray.engine import EngineActor as EngineActor
    from toolgym.rollout.runner.ray.engine import RayEngine as RayEngine
    from toolgym.rollout.runner.ray.runner import RayRunner as RayRunner
    from toolgym.rollout.runner.rollout_queue import RolloutQueue as RolloutQueue
    from toolgym.rollout.runner.run_episode import run_episode as run_episode
    from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler as GroupScheduler
    from toolgym.rollout.runner.scheduling.plan import GroupPlan as GroupPlan
    from toolgym.rollout.runner.scheduling.plan import has_signal as has_signal
    from toolgym.rollout.runner.scheduling.scheduler import Cut as Cut
    from toolgym.rollout.runner.scheduling.scheduler import Scheduler as Scheduler
    from toolgym.rollout.runner.scheduling.scheduler import Stragglers as Stragglers
    from toolgym.rollout.tokens.context_policies import ContextPolicy as ContextPolicy
    from toolgym.rollout.tokens.context_policies import ContextState as ContextState
    from toolgym.rollout.tokens.context_policies import CutToolResults as CutToolResults
    from toolgym.rollout.tokens.context_policies import KeepToolResults as KeepToolResults
    from toolgym.rollout.tokens.context_policies import Summarize as Summarize
    from toolgym.rollout.tokens.renderer import ChatRenderer as ChatRenderer
    from toolgym.rollout.trajectory.failures import RunFailedError as RunFailedError
    from toolgym.rollout.trajectory.file import TrajectoryWriter as TrajectoryWriter
    from toolgym.rollout.trajectory.file import read_trajectories as read_trajectories
    from toolgym.rollout.trajectory.summary import summarize as summarize
    from toolgym.rollout.trajectory.token_sequence import Segment as Segment
    from toolgym.rollout.trajectory.token_sequence import TokenSequence as TokenSequence
    from toolgym.rollout.trajectory.trajectory import Failure as Failure
    from toolgym.rollout.trajectory.trajectory import Peer as Peer
    from toolgym.rollout.trajectory.trajectory import Trajectory as Trajectory
    from toolgym.rollout.trajectory.trajectory import Turn as Turn
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter as RayRateLimiter
else:
    __getattr__, __dir__ = lazy_names(__name__)
