"""An env's tasks as verifiers' taskset, its harness, and trajectories as traces for prime-rl and verifiers' viewers.

The contract is that of verifiers 0.4.0 (`verifiers/v1/`: `taskset.py`, `harness.py`, `graph.py`, `trace.py`). The
harness plays against verifiers' interception server, which keeps the tokens. A trace is a graph of messages, each with
the tokens that it adds; its branches, from a root to a leaf, are the samples that prime-rl trains on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.trainer_row import require_known_distribution, require_no_images
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.endpoint import run
from toolgym.rollout.engines.sglang.aligned import SAMPLING_MASK
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence, joined_payload
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn, require_trajectories
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import BatchError, ConfigError, UnknownNameError, nearest

with needs("verifiers", "The adapter for verifiers"):
    import verifiers.v1 as vf

REWARD = "toolgym_reward"
"""Key of a trace's `info` under which the harness leaves the env's reward."""

_LOADING = 600.0
"""Seconds that the making of an env, to ask it for its tasks, may take."""

_UNUSED = ("env", "forward_env", "mcp_header_env", "tool_timeout", "disabled_tools")
"""Settings of verifiers for the programs of other harnesses."""

_STOPS = {StopReason.MAX_TURNS: "max_turns", StopReason.BUDGET: "max_total_tokens"}


class ToolgymTasksetConfig(vf.TasksetConfig):
    """The TOML table `[env.taskset]` with `id = "toolgym-v1"`."""

    env: str = ""
    """The env's id, such as `CodeInterpreter-v0`; `module:Id` imports the module first."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """For `toolgym.make`."""
    file: Path | None = None
    """Tasks in a file that `toolgym.envs.load_tasks` reads; None: those that the env itself draws from."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which column of the file holds what, where its rows are not in verl's shape; see `load_tasks`."""
    split: str = "train"
    """Which of the tasks' splits."""


class ToolgymData(vf.TaskData):
    env: str
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    row: dict[str, Any]
    """The task as a row in verl's shape, whole."""

    @classmethod
    def of(cls, task: Task, env: str, env_kwargs: Mapping[str, Any] | None = None) -> ToolgymData:
        prompt = [typed_message(message) for message in task.messages]
        return cls(
            id=task.id or None, prompt=prompt, env=env, env_kwargs=dict(env_kwargs or {}), row=task.to_json_row()
        )

    def task(self) -> Task:
        messages = list(self.row["prompt"])
        if self.system_prompt is not None:
            messages = [message for message in messages if message["role"] != "system"]
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return Task.from_row({**self.row, "prompt": messages}, id=self.id or "")


class ToolgymTask(vf.Task[ToolgymData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the env's reward; raises ConfigError without one, so that verifiers drops the episode."""
        reward = trace.info.get(REWARD)
        if reward is None:
            raise ConfigError(
                "the episode has no reward: a deadline of verifiers broke it off, or it was not played by the harness "
                "'toolgym-v1', which alone plays these tasks"
            )
        return float(reward)


class ToolgymTaskset(vf.Taskset[ToolgymTask, ToolgymTasksetConfig]):
    """The tasks of an env, in a fixed order; without end if the env makes its tasks itself."""

    @property
    def INFINITE(self) -> bool:
        return self._source.size is None

    def load(self) -> Iterator[ToolgymTask]:
        """Yield the tasks; raises ConfigError or UnknownNameError if there is no such env, file or split."""
        size = self._source.size
        for index in itertools.count() if size is None else range(size):
            task = self._source.task(index)
            yield ToolgymTask(ToolgymData.of(task, self.config.env, self.config.env_kwargs), self.config.task)

    @cached_property
    def _source(self) -> TaskSource:
        config = self.config
        if not config.env:
            raise ConfigError('which env? Write env = "CodeInterpreter-v0" into [env.taskset]')
        factory = EnvFactory.of(config.env, config.env_kwargs)
        if config.file is not None:
            source: TaskSource = load_tasks(config.file, columns=config.columns or None)
        else:
            with contextlib.closing(EventLoopThread(name="toolgym-verifiers")) as bridge:  # one may run here already
                source = bridge.run(factory.tasks(), _LOADING)
        splits = source.splits()
        if config.split not in splits:
            raise UnknownNameError(
                f"{config.env!r} has no split {config.split!r}{nearest(config.split, splits) or '.'} "
                f"Splits: {', '.join(splits)}"
            )
        return splits[config.split]


def typed_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as verifiers types it: each call flat, its arguments as JSON text."""
    typed = {**message}
    if "tool_calls" in message:
        typed["tool_calls"] = [
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"]),
            }
            for call in message["tool_calls"]
        ]
    return typed


class ToolgymHarnessConfig(vf.HarnessConfig):
    """The TOML table `[env.agent.harness]` with `id = "toolgym-v1"`."""

    id: str = "toolgym-v1"
    limits: dict[Literal["engine_timeout", "env_timeout", "turn_timeout", "episode_timeout", "score_grace"], float] = (
        Field(default_factory=dict)
    )
    """Deadlines in seconds; see `EpisodeLimits`."""


class ToolgymHarness(vf.Harness[ToolgymHarnessConfig]):
    """Plays tasks of `ToolgymTaskset`; the env runs in the env server's process, and its tools where the env says.

    What breaks off is verifiers' `HarnessError`, or the error of the model's server that caused it, and has no reward.
    A budget of verifiers (`max_turns`, `max_total_tokens`, a `@stop`) ends the episode with the reward until then.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # not in verifiers' runtime
    NEEDS_CONTAINER = False

    def __init__(self, config: ToolgymHarnessConfig) -> None:
        super().__init__(config)
        for name in _UNUSED:
            if getattr(config, name) != vf.HarnessConfig.model_fields[name].get_default(call_default_factory=True):
                raise ConfigError(
                    f"the harness 'toolgym-v1' has no use for {name}: the env's env_kwargs say such things"
                )
        deadlines: dict[str, Any] = {str(name): seconds for name, seconds in config.limits.items()}
        self._limits = EpisodeLimits(**deadlines)

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **_: Any,
    ) -> vf.ProgramResult:
        """Play one episode; raises EpisodeFailedError if something broke it off."""
        if not isinstance(data, ToolgymData):
            raise ConfigError(
                f"the harness 'toolgym-v1' plays tasks of the taskset 'toolgym-v1', got {type(data).__name__}"
            )
        trace.info[REWARD] = await run(
            data.task(),
            base_url=endpoint,
            api_key=secret,
            env=data.env,
            env_kwargs=data.env_kwargs,
            model=ctx.model,
            limits=self._limits,
            ended=lambda: trace.stop_condition is not None,
        )
        return vf.ProgramResult(0, "", "")


class ToolgymEnvConfig(vf.EnvConfig):
    """The TOML table `[env]`."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy. No program runs in the runtime, so it need not be a rented one, as verifiers' default is."""


class ToolgymEnv(vf.Env[ToolgymEnvConfig]):
    """One agent plays each task once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


def to_trace(trajectory: Trajectory) -> vf.Trace:
    """Return the trace of one trajectory, with a branch for each token sequence in which the policy sampled.

    A turn's node has the tokens since the turn before, with the mask False, and then the turn's own, with the mask True
    and a log-probability each. The messages between turns are nodes without tokens, as verifiers has them for templates
    that it cannot take apart; sequences that a context policy began start with a turn. The payload `sampling_mask` is
    kept; weight versions, rewards of turns and other payloads have no place in a trace. `ok` is False for a trajectory
    that is not usable, so that prime-rl leaves it out. Raises BatchError if the turns tell of other tokens than the
    sequences hold, or if there are images, and ConfigError for turns under a grammar.
    """
    [trajectory] = require_trajectories([trajectory])
    require_no_images(trajectory, "verifiers")
    ok = trajectory.usable
    if ok:
        require_known_distribution(trajectory, "prime-rl", None)  # a trace says at which temperature it was sampled
    trace = vf.Trace(
        id=trajectory.id,
        task=_task(trajectory),
        agent=vf.AgentInfo(
            config=vf.AgentConfig(
                harness=ToolgymHarnessConfig(),
                runtime=vf.SubprocessConfig(),
                sampling=vf.SamplingConfig(
                    **{name: value for name, value in trajectory.sampling.items() if value is not None}
                ),
            )
        ),
        tools=[vf.Tool(**tool["function"]) for tool in trajectory.tools],
        metrics={name: float(value) for name, value in trajectory.metrics.items() if _is_number(value)},
        is_completed=True,
        ok=ok,
        stop_condition=_STOPS.get(trajectory.stop_reason, trajectory.stop_reason.value),
    )
    if ok:
        trace.record_reward("reward", trajectory.reward)
        trace.info[REWARD] = trajectory.reward
    if trajectory.error is not None:
        kind, _, _ = trajectory.error.message.partition(":")
        trace.errors.append(vf.Error(type=kind, message=trajectory.error.message))
    start, end = trajectory.started_at, trajectory.started_at + trajectory.seconds
    trace.timing = vf.Timing(start=start, agent=vf.AgentSpan(start=start, end=end))
    _add_branches(trace, trajectory)
    return trace


def _task(trajectory: Trajectory) -> vf.TraceTask:
    places = trajectory.turn_places
    messages = trajectory.messages[: places[0]] if places else trajectory.messages
    task = Task(messages, trajectory.ground_truth, source=trajectory.source, id=trajectory.task_id)
    typed = ToolgymTask(ToolgymData.of(task, trajectory.env_id))
    return vf.TraceTask(type=ToolgymTask.__name__, data=typed.data, key=typed.key, hash=typed.hash)


# ------------------------------------------------------------------ the graph


def _add_branches(trace: vf.Trace, trajectory: Trajectory) -> None:
    messages, places = trajectory.messages, trajectory.turn_places
    seen = 0
    for number, sequence in enumerate(trajectory.sequences):
        *runs, (rest, _) = _runs(sequence)
        turns = [
            (place, turn)
            for place, turn in enumerate(trajectory.turns)
            if turn.sequence == number and turn.generated_tokens
        ]
        counted, held = [turn.generated_tokens for _, turn in turns], [len(sampled) for _, sampled in runs]
        if counted != held:
            raise BatchError(
                f"trajectory {trajectory.id}: its turns count {counted} sampled tokens in sequence {number}, not "
                f"the {held} that it holds"
            )
        if not turns:
            continue
        branch = _Branch(trace)
        if sequence.start_reason in ("start", "template"):
            seen = 0  # its prompt is the conversation from its beginning
        for (before, sampled), (place, turn) in zip(runs, turns, strict=True):
            message: Any = {"role": "assistant", "content": turn.text}
            if places:
                branch.add_messages(messages[seen : places[place]])
                message, seen = messages[places[place]], places[place] + 1
            branch.add_turn(message, before, sampled, turn)
        if places and turns[-1][0] == len(trajectory.turns) - 1:
            branch.add_messages(messages[seen:])
        branch.add_tokens(rest)


def _runs(sequence: TokenSequence) -> Iterator[tuple[list[int], Segment]]:
    """Yield the policy's segments, adjacent ones joined, each with the ids before it; last what is behind them."""
    before = sequence.prompt_ids.tolist()
    for is_policy, segments in itertools.groupby(sequence.segments, lambda segment: segment.is_policy):
        joined = Segment.merge(list(segments))
        if is_policy:
            yield before, joined
            before = []
        else:
            before += joined.token_ids.tolist()
    yield before, Segment.env(())


class _Branch:
    def __init__(self, trace: vf.Trace) -> None:
        self._trace = trace
        self._last: int | None = None
        self._tokens = 0

    def add_messages(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._add(message=typed_message(message))

    def add_turn(self, message: Any, before: list[int], sampled: Segment, turn: Turn) -> None:
        context, count = self._tokens + len(before), len(sampled)
        self._add(
            message=typed_message(message),
            sampled=True,
            token_ids=before + sampled.token_ids.tolist(),
            mask=[False] * len(before) + [True] * count,
            logprobs=sampled.logprobs.tolist(),
            sampling_mask=_sampling_mask(sampled),
        )
        self._tokens = context + count
        self._trace.calls.append(
            vf.ModelCall(
                node=self._last,
                finish_reason=turn.finish_reason if turn.finish_reason in ("stop", "length") else None,
                usage=vf.Usage(prompt_tokens=context, completion_tokens=count),
            )
        )

    def add_tokens(self, ids: list[int]) -> None:
        """Put ids behind the last turn: its closing tokens, and what the env said to it."""
        node = self._trace.nodes[-1]
        node.token_ids += ids
        node.mask += [False] * len(ids)

    def _add(self, **fields: Any) -> None:
        tools = self._trace.tools if self._last is None else []
        self._trace.nodes.append(vf.MessageNode(parent=self._last, tools=tools, **fields))
        self._last = len(self._trace.nodes) - 1


def _sampling_mask(sampled: Segment) -> vf.SamplingMask | None:
    if SAMPLING_MASK not in sampled.aligned:
        return None
    rows = joined_payload(SAMPLING_MASK, [sampled])
    return vf.SamplingMask(ids=rows[rows >= 0].astype(np.int32), counts=(rows >= 0).sum(axis=1, dtype=np.int32))


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
