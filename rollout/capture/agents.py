"""`agent_env`: agents that know nothing of us as an env of a run. Each plays an episode against a gateway that the run
opens; all else (groups, admission, retries, resuming, sinks, observers) is the runner's."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.failure import failing, finite_reward
from toolgym.envs.rewards.base import Outcome, Score, Scorer, outcome_scorer
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.server import CaptureServer
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.env_lifecycle import episode_deadline
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import Job, episode_scope
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory, JobEpisode, MakeEpisode
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, plain
from toolgym.tools.concurrency.deadline import own_deadline, shielded, with_deadline
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import text_of
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.process import ProcessSandbox

AT_LIMIT = (StopReason.MAX_TURNS, StopReason.BUDGET)
"""Ends of an episode upon which the gateway refuses further calls, so that many agents break off."""


@dataclass(frozen=True)
class AgentCommand:
    """An agent that is a command, in a folder of its own; it is killed with its process group in the end.

    It has the variables `OPENAI_BASE_URL`, `OPENAI_API_BASE`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL` and
    `ANTHROPIC_AUTH_TOKEN`, and the task as JSON in the file `task.json`. `words` and the values of `env` may have
    `{prompt}`, the task's last message, `{base_url}`, `{anthropic_url}` and `{api_key}`. `sandbox` is where it runs,
    and must reach the gateway; None: a `ProcessSandbox`, which isolates nothing. `fetch_files` are for the scorer.
    """

    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: Sequence[str] = ()
    timeout: float = 3600.0
    sandbox: Sandbox | None = None

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not self.words or not all(isinstance(word, str) for word in self.words):
            raise ConfigError(f"an agent's command must be a list of words, got {self.words!r}")

    async def __call__(self, task: Task, *, base_url: str, api_key: str) -> ExecutionResult:
        """Run the command to its end. Raises EpisodeFailedError if it did not end with 0."""
        anthropic_url, prompt = base_url.removesuffix("/v1"), text_of(task.messages[-1]["content"])
        values = {"prompt": prompt, "base_url": base_url, "anthropic_url": anthropic_url, "api_key": api_key}
        env = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": api_key}
        env |= {"ANTHROPIC_BASE_URL": anthropic_url, "ANTHROPIC_AUTH_TOKEN": api_key, **self.env}
        result = await (self.sandbox or ProcessSandbox(max_running=1)).run(
            "exec " + shlex.join(_filled(word, values) for word in self.words),
            language="bash",
            timeout=self.timeout,
            env={name: _filled(value, values) for name, value in env.items()},
            files={"task.json": json.dumps(plain(task.to_row())).encode(), **self.files},
            fetch_files=self.fetch_files,
        )
        if result.ok:
            return result
        last = (result.stderr.strip() or result.stdout.strip() or result.message).splitlines()[-1:]
        text = f"the command ended with {result.status.value} ({result.return_code}): {''.join(last)}"
        reasons = {
            ExecutionStatus.TIMEOUT: StopReason.EPISODE_TIMEOUT,
            ExecutionStatus.SANDBOX_ERROR: StopReason.SANDBOX_FAILED,
        }
        raise EpisodeFailedError(reasons.get(result.status, StopReason.ENV_FAILED), text)


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word)


@named_keywords
def agent_env(
    agent: Callable[..., Awaitable[Any]] | Sequence[str],
    *,
    scorer: Scorer | None = None,
    rules: CaptureRules | None = None,
    gateway: CaptureConfig | None = None,
    name: str | None = None,
) -> EnvFactory:
    """Return what a runner, `rollout` or a `RolloutQueue` takes as env, so that an agent plays each episode.

    An agent that raises, hangs, ends with another status than 0 or makes no call is a failed trajectory. One that
    breaks off at a limit of its episode is not: it is scored.

    Args:
        agent: an async function, called as `agent(task, base_url=..., api_key=...)`, that returns the reward (a
            number or a `Score`) or None, such as `toolgym.rollout.endpoint.make_run("Env-v0")`; an `AgentCommand`, or
            its words.
        scorer: says what an episode is worth in place of the agent. `outcome.session("trajectory")` is the `Trajectory`
            and `outcome.session("agent")` what the agent returned, of a command the `ExecutionResult`.
        rules: of the gateway for each episode.
        gateway: address and limits of the gateway's server; what concerns an episode, the `RunConfig` says.
        name: the env's name in trajectories; None: the agent's.

    Raises ConfigError: an argument is of the wrong kind.
    """
    player = agent if callable(agent) else AgentCommand(agent)
    score = None if scorer is None else outcome_scorer(scorer)
    known_as = name or str(getattr(player, "__name__", type(player).__name__))
    return EnvFactory(known_as, partial(AgentEnv, player, score), episodes=partial(_agents, rules, gateway))


class AgentEnv(BaseEnv):
    """The agent and the scorer of a run, in the place of an env. It cannot be stepped."""

    def __init__(self, agent: Callable[..., Awaitable[Any]], scorer: Callable[[Outcome], Any] | None) -> None:
        self.agent, self.scorer = agent, scorer

    async def reset(self, **_: Any) -> Any:
        raise ConfigError("an agent plays this env as a whole: give its EnvFactory to a Runner or to rollout")

    async def step(self, action: Any) -> Any:
        return await self.reset()

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def _agents(
    rules: CaptureRules | None, gateway: CaptureConfig | None, engine: Engine, tokenizer: Any, config: RunConfig
) -> AsyncIterator[MakeEpisode]:
    if not config.one_sequence or config.branching is not None:
        raise ConfigError("an agent keeps its own context: leave out history, context and branching")
    idle = config.limits.episode_timeout + config.limits.score_grace + 60.0  # the episode's deadline comes first
    settings = {"port": 0, "max_sessions": 1_000_000, "session_idle_timeout": idle}
    gateway = gateway or CaptureConfig.load(flags=settings)
    renderers = Renderers(tokenizer, config)

    def make(job: Job, config: RunConfig, env: AgentEnv, engine: Engine, _: Any, **options: Any) -> JobEpisode:
        observers = options.pop("observers")
        capture = CaptureSession(engine, renderers, job, config, rules=rules, **options)
        return AgentEpisode(server, capture, env, config.limits, observers)

    async with CaptureServer(engine, tokenizer=tokenizer, config=gateway) as server:
        yield make


class AgentEpisode:
    """Plays one job with an agent, as `Episode` does with an env. It cannot stand still: then it is cut."""

    def __init__(
        self,
        server: CaptureServer,
        capture: CaptureSession,
        env: AgentEnv,
        limits: EpisodeLimits,
        observers: Sequence[EpisodeObserver],
    ) -> None:
        self.job = capture.job
        self.env: BaseEnv = env
        self._agent, self._scorer, self._capture = env.agent, env.scorer, capture
        self._server, self._limits, self._observers = server, limits, observers
        self._is_cut = False
        self._end_now: Callable[[], None] = lambda: None

    def cut(self) -> None:
        self._is_cut = True
        self._end_now()

    suspend = cut

    async def run(self, *, between_turns: Any = None) -> Trajectory:
        for observer in self._observers:
            observer.began(self.job)
            observer.waits(self.job, Phase.ENV, "agent")
        score, failure = Score(0.0), None
        try:
            with episode_scope(self.job.key):
                async with episode_deadline(self._limits) as self._end_now:
                    if self._is_cut:
                        self._end_now()
                    score = await self._play()
        except TimeoutError:
            text = f"the episode did not finish within {self._limits.episode_timeout:g} seconds"
            failure = EpisodeFailedError(StopReason.EPISODE_TIMEOUT, text)
        except EpisodeFailedError as error:
            failure = error
        trajectory = self._ended(score, failure)
        for observer in self._observers:
            observer.ended(self.job, trajectory)
        return trajectory

    async def _play(self) -> Score:
        """Have the agent play, and score the episode."""
        session = self._server.host(self._capture)
        result: Any = None
        try:
            with failing(StopReason.ENV_FAILED):
                call = self._agent(self.job.task, base_url=session.openai_url, api_key=session.key)
                if not inspect.iscoroutine(call):
                    raise ConfigError(f"an agent must be an async function, it returned {call!r}")
                # The episode's deadline ends it; this one is to leave behind an agent that ignores its cancellation.
                result = await with_deadline(call, self._limits.episode_timeout + self._limits.score_grace)
        except EpisodeFailedError as error:
            if self._capture.finish(0.0).stop_reason not in AT_LIMIT or error.stop_reason is not StopReason.ENV_FAILED:
                raise
        finally:
            trajectory = self._capture.finish(0.0)
            await shielded(self._server.drop(session))
        if not trajectory.turns:
            raise EpisodeFailedError(StopReason.ENV_FAILED, "the agent made no call that was answered")
        if self._scorer is None:
            with failing(StopReason.ENV_FAILED, what="the agent's reward:"):
                return _finite(None if isinstance(result, ExecutionResult) else result)
        with failing(StopReason.SCORE_FAILED, StopReason.SCORE_TIMEOUT, what="the scorer failed:"), own_deadline():
            value = self._scorer(_outcome(self.job.task, trajectory, result))
            if inspect.iscoroutine(value):
                value = await with_deadline(value, self._limits.env_timeout)
            return _finite(value)

    def _ended(self, score: Score, failure: EpisodeFailedError | None) -> Trajectory:
        trajectory = self._capture.finish(0.0)
        if self._is_cut and failure is not None:
            return replace_fields(trajectory, stop_reason=StopReason.STRAGGLER)
        if failure is not None:
            engine = (StopReason.ENGINE_FAILED, StopReason.ENGINE_TIMEOUT)
            reason = failure.stop_reason
            if reason is StopReason.ENV_FAILED:  # an agent breaks where its calls do
                reason = next((each for each in engine if f"calls_{each.value}" in trajectory.metrics), reason)
            error = Failure(str(failure), max(0, len(trajectory.turns) - 1))
            return replace_fields(trajectory, stop_reason=reason, error=error)
        parts = {f"score/{name}": value for name, value in score.components.items()}
        turns = tuple(
            turn if turn.reward is None else replace_fields(turn, reward=score.value) for turn in trajectory.turns
        )
        return replace_fields(trajectory, reward=score.value, turns=turns, metrics={**trajectory.metrics, **parts})


def _finite(value: Any) -> Score:
    score = Score.of(0.0 if value is None else value)
    finite_reward(score.value)
    return score


def _outcome(task: Task, trajectory: Trajectory, result: Any) -> Outcome:
    """The episode as a scorer sees it: its answer is the last turn that is no sub-agent's."""
    scored = zip(trajectory.turn_places, trajectory.turns, strict=False)
    place = next((place for place, turn in reversed(list(scored)) if turn.reward is not None), None)
    last = None if place is None else trajectory.messages[place]
    text = "" if last is None or last.get("tool_calls") else text_of(last["content"])
    sessions = {"trajectory": trajectory, "agent": result}
    return Outcome(task, trajectory.messages, len(trajectory.turns), (), text, trajectory.stop_reason, sessions)
