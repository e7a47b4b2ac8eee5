"""Layer 4: engines, exact tokens, the runner, trajectories and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.batch.check import check_batch as check_batch
    from toolgym.rollout.batch.fields import Batch as Batch
    from toolgym.rollout.batch.io import load_batch as load_batch
    from toolgym.rollout.batch.io import save_batch as save_batch
    from toolgym.rollout.batch.make import make_batch as make_batch
    from toolgym.rollout.endpoint import make_run as make_run
    from toolgym.rollout.engines.base import Engine as Engine
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
    from toolgym.rollout.episode import Episode as Episode
    from toolgym.rollout.failures import RunFailedError as RunFailedError
    from toolgym.rollout.job import Job as Job
    from toolgym.rollout.limits import EpisodeLimits as EpisodeLimits
    from toolgym.rollout.limits import HistoryMode as HistoryMode
    from toolgym.rollout.limits import TruncationPolicy as TruncationPolicy
    from toolgym.rollout.recording.engine import CassetteEngine as CassetteEngine
    from toolgym.rollout.recording.engine import RecordingEngine as RecordingEngine
    from toolgym.rollout.recording.recorder import recorded as recorded
    from toolgym.rollout.recording.replay import Difference as Difference
    from toolgym.rollout.recording.replay import Replay as Replay
    from toolgym.rollout.recording.replay import replay as replay
    from toolgym.rollout.runner.base import RunnerProtocol as RunnerProtocol
    from toolgym.rollout.runner.config import RunConfig as RunConfig
    from toolgym.rollout.runner.env_factory import EnvFactory as EnvFactory
    from toolgym.rollout.runner.local import Runner as Runner
    from toolgym.rollout.runner.local import rollout as rollout
    from toolgym.rollout.runner.run_episode import run_episode as run_episode
    from toolgym.rollout.runner.scheduler import Scheduler as Scheduler
    from toolgym.rollout.runner.sinks import Sink as Sink
    from toolgym.rollout.summary import summarize as summarize
    from toolgym.rollout.tiny import tiny_policy_path as tiny_policy_path
    from toolgym.rollout.token_sequence import Segment as Segment
    from toolgym.rollout.token_sequence import TokenSequence as TokenSequence
    from toolgym.rollout.tokenizer import load_tokenizer as load_tokenizer
    from toolgym.rollout.tokens.context_policies import ContextPolicy as ContextPolicy
    from toolgym.rollout.tokens.context_policies import ContextState as ContextState
    from toolgym.rollout.tokens.context_policies import CutToolResults as CutToolResults
    from toolgym.rollout.tokens.context_policies import KeepToolResults as KeepToolResults
    from toolgym.rollout.tokens.context_policies import Summarize as Summarize
    from toolgym.rollout.tokens.renderer import ChatRenderer as ChatRenderer
    from toolgym.rollout.trajectory import Failure as Failure
    from toolgym.rollout.trajectory import Trajectory as Trajectory
    from toolgym.rollout.trajectory import Turn as Turn
    from toolgym.rollout.trajectory_file import TrajectoryWriter as TrajectoryWriter
    from toolgym.rollout.trajectory_file import read_trajectories as read_trajectories
else:
    __getattr__, __dir__ = lazy_names(__name__)
