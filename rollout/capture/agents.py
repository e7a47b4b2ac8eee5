"""`agent_env`: agents that know nothing of us as an env of a run. Each plays an episode against a gateway that the run
opens; all else (groups, admission, retries, resuming, sinks, observers) is the runner's."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from toolgym.envs.base import BaseEnv
from toolgym.envs.failure import failing
from toolgym.envs.rewards.base import Outcome, Score, Scorer, ask_scorer, outcome_scorer
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.capture.agent_thread import AgentThread
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.server import CaptureServer
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.env_lifecycle import episode_deadline, too_late
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import Job
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory, MakeEpisode
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, plain
from toolgym.tools.concurrency.deadline import own_deadline, shielded, with_deadline
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import text_of
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.process import ProcessSandbox

_AT_LIMIT = (StopReason.MAX_TURNS, StopReason.BUDGET)
"""Ends of an episode upon which the gateway refuses further calls, so that many agents break off."""

_LONGEST_WORD = 128 * 1024 - 1
"""Bytes of one argument of a program, see `MAX_ARG_STRLEN` of Linux."""

LEFT_BEHIND = "agent_left_behind"
"""Metric of an episode whose agent still blocks its thread after the end."""

_ENV = {
    "OPENAI_BASE_URL": "{base_url}",
    "OPENAI_API_BASE": "{base_url}",
    "OPENAI_API_KEY": "{api_key}",
    "ANTHROPIC_BASE_URL": "{anthropic_url}",
    "ANTHROPIC_AUTH_TOKEN": "{api_key}",
}


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

    shares_loop: ClassVar[bool] = True
    """It never blocks, so it runs on the run's event loop."""

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not self.words or not all(isinstance(word, str) for word in self.words):
            raise ConfigError(f"an agent's command must be a list of words, got {self.words!r}")

    async def __call__(self, task: Task, *, base_url: str, api_key: str) -> ExecutionResult:
        """Run the command to its end. Raises EpisodeFailedError if it did not end with 0, and SandboxError."""
        values = {"prompt": text_of(task.messages[-1]["content"]), "base_url": base_url, "api_key": api_key}
        values["anthropic_url"] = base_url.removesuffix("/v1")
        fill = partial(re.sub, r"\{(\w+)\}", lambda match: values.get(match[1], match[0]))
        words = [fill(word) for word in self.words]
        longest = max(len(word.encode("utf-8", "replace")) for word in words)
        if longest > _LONGEST_WORD:
            raise ConfigError(
                f"a word of the agent's command has {longest} bytes, and Linux takes at most {_LONGEST_WORD}: let the "
                "agent read the prompt from task.json"
            )
        result = await (self.sandbox or ProcessSandbox(max_running=1)).run(
            "exec " + shlex.join(words),
            language="bash",
            timeout=self.timeout,
            env={name: fill(value) for name, value in {**_ENV, **self.env}.items()},
            files={"task.json": json.dumps(plain(task.to_json_row())).encode(), **self.files},
            fetch_files=self.fetch_files,
        )
        if result.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(result.message)
        if not result.ok:
            last = (result.stderr.strip() or result.stdout.strip() or result.message).splitlines()[-1:]
            text = f"the command ended with {result.status.value} ({result.return_code}): {''.join(last)}"
            late = result.status is ExecutionStatus.TIMEOUT
            raise EpisodeFailedError(StopReason.EPISODE_TIMEOUT if late else StopReason.ENV_FAILED, text)
        return result


@named_keywords
def agent_env(
    agent: Callable[..., Any] | Sequence[str],
    *,
    scorer: Scorer | None = None,
    rules: CaptureRules | None = None,
    gateway: CaptureConfig | None = None,
    name: str | None = None,
    own_thread: bool | None = None,
) -> EnvFactory:
    """Return what a runner, `rollout` or a `RolloutQueue` takes as env, so that an agent plays each episode.

    An agent that raises, hangs, ends with another status than 0 or makes no call is a failed trajectory. One that
    breaks off at a limit of its episode is not: it is scored. Observers hear of an episode's beginning and end.

    Args:
        agent: a function, blocking or async, called as `agent(task, base_url=..., api_key=...)`, that returns the
            reward (a number or a `Score`) or None, such as `toolgym.rollout.endpoint.make_run("Env-v0")`; an
            `AgentCommand`, or its words.
        scorer: says what an episode is worth in place of the agent. `outcome.session("trajectory")` is the `Trajectory`
            and `outcome.session("agent")` what the agent returned, of a command the `ExecutionResult`.
        rules: of the gateway for each episode.
        gateway: address and limits of the gateway's server; what concerns an episode, the `RunConfig` says.
        name: the env's name in trajectories; None: the agent's.
        own_thread: whether each episode's agent runs in a thread of its own, an async one on an event loop of its own.
            So an agent may block, and its deadline still ends its episode. False: async agents share the run's event
            loop, and may share clients, locks and other objects of one loop; they must not block. Defaults to True,
            except for an `AgentCommand` and `make_run`, which never block.

    Raises ConfigError: an argument is of the wrong kind.
    """
    player = agent if callable(agent) else AgentCommand(agent)
    if own_thread is None:
        own_thread = not getattr(player, "shares_loop", False)
    if not own_thread and not any(map(inspect.iscoroutinefunction, (player, type(player).__call__))):
        raise ConfigError(f"own_thread=False needs an async function, got {player!r}: it would block the run")
    score = None if scorer is None else outcome_scorer(scorer)
    known_as = name or str(getattr(player, "__name__", type(player).__name__))
    return EnvFactory(known_as, partial(AgentEnv, player, score, own_thread), episodes=partial(_agents, rules, gateway))


class AgentEnv(BaseEnv):
    """The agent and the scorer of a run, in the place of an env. It cannot be stepped."""

    def __init__(
        self, agent: Callable[..., Any], scorer: Callable[[Outcome], Any] | None, own_thread: bool = True
    ) -> None:
        self.agent, self.scorer, self.own_thread = agent, scorer, own_thread

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
    defaults = {"port": 0, "max_sessions": 1_000_000, "session_idle_timeout": idle}
    renderers = Renderers(tokenizer, config)

    def make(job: Job, config: RunConfig, env: AgentEnv, engine: Engine, _: Any, **options: Any) -> AgentEpisode:
        observers = options.pop("observers")
        capture = CaptureSession(engine, renderers, job, config, rules=rules, **options)
        return AgentEpisode(job, env, server, capture, config, observers)

    settings = gateway or CaptureConfig.load(flags=defaults)
    # The run opens and ends the sessions itself: over HTTP there is nothing that an agent could use for that.
    async with CaptureServer(engine, tokenizer=tokenizer, config=settings, has_control=False) as server:
        yield make


@dataclass(eq=False)
class AgentEpisode:
    """Plays one job with an agent, as `Episode` does with an env. It cannot stand still: then it is cut."""

    job: Job
    env: AgentEnv
    server: CaptureServer
    capture: CaptureSession
    config: RunConfig
    observers: Sequence[EpisodeObserver]
    is_cut: bool = False
    _left_behind: bool = False  # the agent's thread blocks, though the episode has ended
    _deadline: episode_deadline | None = None  # while it runs

    def cut(self) -> None:
        self.is_cut = True
        if self._deadline is not None:
            self._deadline.end()

    suspend = cut

    async def run(self, *, between_turns: Any = None) -> Trajectory:
        for observer in self.observers:
            observer.began(self.job)
            observer.waits(self.job, Phase.ENV, "agent")
        score, failure = Score(0.0), None
        try:
            async with episode_deadline(self.config.limits, key=self.job.key) as self._deadline:
                if self.is_cut:
                    self._deadline.end()
                score = await self._play()
        except TimeoutError:
            failure = too_late(self.config.limits)
        except EpisodeFailedError as error:
            failure = error
        trajectory = self._ended(score, failure)
        for observer in self.observers:
            observer.ended(self.job, trajectory)
        return trajectory

    async def _play(self) -> Score:
        """Have the agent play, and score the episode."""
        session, limits, result = self.server.host(self.capture), self.config.limits, None
        call = partial(self.env.agent, self.job.task, base_url=session.openai_url, api_key=session.key)
        thread = AgentThread(call) if self.env.own_thread else None
        try:
            with failing(StopReason.ENV_FAILED):
                playing = call() if thread is None else thread.result()
                # The episode's deadline ends it; this one is to leave behind an agent that ignores its cancellation.
                result = await with_deadline(playing, limits.episode_timeout + limits.score_grace)
        except EpisodeFailedError as error:
            if self.capture.finish(0.0).stop_reason not in _AT_LIMIT or error.stop_reason is not StopReason.ENV_FAILED:
                raise
        finally:
            trajectory = self.capture.finish(0.0)
            await shielded(self.server.drop(session))
            # Only now: a blocking agent ends when its call is refused.
            self._left_behind = thread is not None and not await shielded(thread.stop())
        if not trajectory.turns:
            raise EpisodeFailedError(StopReason.ENV_FAILED, "the agent made no call that was answered")
        if self.env.scorer is None:
            with failing(StopReason.ENV_FAILED, what="the agent's reward:"):
                return _score_of(None if isinstance(result, ExecutionResult) else result)
        with failing(StopReason.SCORE_FAILED, StopReason.SCORE_TIMEOUT, what="the scorer failed:"), own_deadline():
            asked = ask_scorer(self.env.scorer, _outcome(self.job.task, trajectory, result))
            return await with_deadline(asked, limits.env_timeout) or Score(0.0)

    def _ended(self, score: Score, failure: EpisodeFailedError | None) -> Trajectory:
        trajectory = self.capture.finish(0.0)
        if self._left_behind:
            trajectory = replace_fields(trajectory, metrics={**trajectory.metrics, LEFT_BEHIND: 1})
        if failure is None:
            metrics = {**trajectory.metrics, **{f"score/{name}": part for name, part in score.components.items()}}
            turns = (
                turn if turn.reward is None else replace_fields(turn, reward=score.value) for turn in trajectory.turns
            )
            return replace_fields(trajectory, reward=score.value, turns=tuple(turns), metrics=metrics)
        if self.is_cut:
            return replace_fields(trajectory, stop_reason=StopReason.STRAGGLER)
        reason = failure.stop_reason
        if reason is StopReason.ENV_FAILED and self.capture.broken is not None:  # an agent breaks where its calls do
            reason = self.capture.broken
        error = Failure(str(failure), max(0, len(trajectory.turns) - 1))
        return replace_fields(trajectory, stop_reason=reason, error=error)


def _score_of(value: Any) -> Score:
    return Score.of(0.0 if value is None else value, "the agent")


def _outcome(task: Task, trajectory: Trajectory, result: Any) -> Outcome:
    """The episode as a scorer sees it: its answer is the last turn that is no sub-agent's."""
    places = zip(trajectory.turn_places, trajectory.turns, strict=False)
    last = next((trajectory.messages[place] for place, turn in reversed([*places]) if turn.reward is not None), None)
    text = "" if last is None or last.get("tool_calls") else text_of(last["content"])
    sessions = {"trajectory": trajectory, "agent": result}
    return Outcome(task, trajectory.messages, len(trajectory.turns), (), text, trajectory.stop_reason, sessions)
