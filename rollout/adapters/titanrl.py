"""TitanRL: the envs, the tasks and the rewards of PyTorch's TorchTitan; `rollouter_config` puts them together.

The contract is that of torchtitan 0.3.0 (`experiments/rl`: `environment/`, `rollout/rollouter.py`). TitanRL owns the
turns and keeps the tokens; its renderer writes the messages and reads the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toolgym.envs.base import require_growing_context
from toolgym.envs.driven_episode import TIMEOUT, DrivenEpisode
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.rollout.seeds import derive_seed
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, shorten
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import Message, images_of
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError

with needs("torchtitan", "An env for TitanRL"):
    from torchtitan.config import Configurable
    from torchtitan.experiments.rl.environment import (
        MessageEnv,
        MessageEnvInitOutput,
        MessageEnvStepOutput,
        TokenEnv,
        TokenEnvOutput,
    )
    from torchtitan.experiments.rl.rollout import Rollout, RolloutGroup, RolloutStatus
    from torchtitan.experiments.rl.rollout.rollouter import Rollouter
    from torchtitan.experiments.rl.rubrics import RewardFn, Rubric
    from torchtitan.experiments.rl.types import Completion

log = logging.getLogger("toolgym.rollout.adapters.titanrl")

REWARD = "toolgym"
"""Name of an env's rewards among `RolloutTurn.env_rewards`."""

_DRAWN = 256
"""Tasks that a data set draws at a time."""

_LIMITS = {
    RolloutStatus.TRUNCATED_LENGTH: StopReason.LENGTH,
    RolloutStatus.TRUNCATED_PROMPT_TOO_LONG: StopReason.BUDGET,
    RolloutStatus.TRUNCATED_MAX_TURNS: StopReason.MAX_TURNS,
}
_BROKEN_OFF = (RolloutStatus.ERROR, RolloutStatus.ERROR_TIMEOUT, RolloutStatus.ERROR_ABORT)
"""Ends without an answer; an answer that TitanRL cannot parse is the model's doing, and counts."""


class TitanTask(NamedTuple):
    """The beginning of all episodes of a group."""

    task: Task
    seed: int


@dataclass(kw_only=True, slots=True)
class ToolgymDatasetConfig(Configurable.Config):  # type: ignore[misc]
    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    seed: int = 0


class ToolgymDataset(Configurable):  # type: ignore[misc]  # torchtitan has no types
    """The tasks of an env without end, shuffled by `seed` in each epoch anew; each comes with a seed for its env."""

    Config = ToolgymDatasetConfig

    def __init__(self, config: ToolgymDatasetConfig) -> None:
        factory = EnvFactory.of(config.env, config.env_kwargs)
        with closing(EventLoopThread(name="toolgym-titanrl")) as bridge:
            splits = bridge.run(factory.tasks()).splits()
        if config.split not in splits:
            raise UnknownNameError(
                f"{config.env!r} has no split {config.split!r}{nearest(config.split, splits) or '.'} Splits: "
                f"{', '.join(splits)}"
            )
        self._source, self._seed, self._count = splits[config.split], config.seed, 0
        self._tasks: list[Task] = []

    def __iter__(self) -> ToolgymDataset:
        return self

    def __next__(self) -> TitanTask:
        step, place = divmod(self._count, _DRAWN)
        if place == 0:
            self._tasks = self._source.take(_DRAWN, seed=self._seed, training_step=step)
        self._count += 1
        return TitanTask(self._tasks[place], derive_seed(self._seed, self._count))


@dataclass(kw_only=True, slots=True)
class ToolgymMessageEnvConfig(MessageEnv.Config):  # type: ignore[misc]
    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    timeout: float = TIMEOUT
    """Seconds for one call of the env, and for making it."""


class ToolgymMessageEnv(MessageEnv):  # type: ignore[misc]
    """One episode of an env. What breaks it off is an `EpisodeFailedError`, which TitanRL logs."""

    Config = ToolgymMessageEnvConfig

    def __init__(self, config: ToolgymMessageEnvConfig, *, env_input: TitanTask) -> None:
        self._config, self._input = config, env_input
        self._envs = EnvPool(EnvFactory.of(config.env, config.env_kwargs), config.timeout)
        self._calls = 0

    async def init(self) -> MessageEnvInitOutput:
        seconds = self._config.timeout
        env = await self._envs.take()
        require_growing_context(env, "TitanRL")
        self._episode = DrivenEpisode(env, reset_timeout=seconds, step_timeout=seconds)
        messages, _ = await self._episode.reset(seed=self._input.seed, options={"task": self._input.task})
        return MessageEnvInitOutput(
            init_prompt_messages=_shown(messages),
            tools=[schema.to_openai()["function"] for schema in env.tool_schemas],
        )

    async def step(self, completion_message: Mapping[str, Any]) -> MessageEnvStepOutput:
        result = await self._episode.step(self._turn(completion_message))
        return MessageEnvStepOutput(
            env_messages=_shown(result.obs),
            done=self._episode.over,
            env_rewards={REWARD: float(result.reward)},
        )

    async def truncate(self, reason: StopReason, cut: Mapping[str, Any] | None) -> float:
        """End the episode at a limit of TitanRL's, within a turn or behind one, and return its last reward."""
        turn = None if cut is None else self._turn(cut)
        return float((await self._episode.truncate(reason, turn)).reward)

    async def close(self) -> None:
        await self._envs.close()

    def _turn(self, message: Mapping[str, Any]) -> ParsedTurn:
        """A message of TitanRL's with the calls that its renderer read: those that it could not read, too."""
        calls: list[ToolCall] = []
        unread: list[ToolCallError] = []
        for index, call in enumerate(message.get("tool_calls") or []):
            self._calls += 1
            call_id, name = call.id or f"call_{self._calls}", call.name or ""
            if name and isinstance(call.arguments, dict):
                calls.append(ToolCall(call_id, name, call.arguments, index))
                continue
            text = (
                f"Your call could not be read ({call.status.value.replace('_', ' ')}), got {shorten(call.raw)!r}: "
                "write it whole, with a name and arguments."
            )
            unread.append(ToolCallError(CallProblem.MALFORMED_CALL, text, call.raw, call_id, index, name))
        content = message.get("content") or ""
        return ParsedTurn(content, content, calls, unread, message.get("reasoning_content"))


def _shown(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if any(images_of(message["content"]) for message in messages):
        raise ConfigError("the env shows images, of which TitanRL's training samples have no place: docs/images.md")
    return [dict(message) for message in messages]


@dataclass(kw_only=True, slots=True)
class ToolgymTokenEnvConfig(TokenEnv.Config):  # type: ignore[misc]
    pass


class ToolgymTokenEnv(TokenEnv):  # type: ignore[misc]
    """TitanRL's `TokenEnv`, whose limits the env scores: TitanRL itself would end the episode without a word to it."""

    Config = ToolgymTokenEnvConfig

    def __init__(self, config: ToolgymTokenEnvConfig, *, message_env: ToolgymMessageEnv, renderer: Any) -> None:
        super().__init__(config, message_env=message_env, renderer=renderer)
        self._env = message_env

    async def step(self, completion: Completion) -> TokenEnvOutput:
        output = await super().step(completion)
        reason = _LIMITS.get(output.status)
        if reason is not None:
            cut = output.completion_message if reason is StopReason.LENGTH else None
            earned = output.env_rewards.get(REWARD, 0.0) + await self._env.truncate(reason, cut)
            output.env_rewards = {REWARD: earned}
        return output


@dataclass(kw_only=True, slots=True)
class ToolgymRewardConfig(RewardFn.Config):  # type: ignore[misc]
    pass


class ToolgymReward(RewardFn):  # type: ignore[misc]
    """The sum of what the env gave for each turn."""

    Config = ToolgymRewardConfig

    async def __call__(self, rollout: Rollout, env_input: object) -> float:
        return float(sum(turn.env_rewards.get(REWARD, 0.0) for turn in rollout.turns))


@dataclass(kw_only=True, slots=True)
class ToolgymRollouterConfig(Rollouter.Config):  # type: ignore[misc]
    pass


class ToolgymRollouter(Rollouter):  # type: ignore[misc]
    """TitanRL's `Rollouter`, which leaves out what something broke off: it would train on it as a wrong answer."""

    Config = ToolgymRollouterConfig

    async def run_group_rollouts(self, **arguments: Any) -> RolloutGroup:
        """Play a group; its advantages are among the episodes that count. Raises EpisodeFailedError if none does."""
        group: RolloutGroup = await super().run_group_rollouts(**arguments)
        count = len(group.rollouts)
        group.rollouts = [rollout for rollout in group.rollouts if rollout.status not in _BROKEN_OFF]
        if not group.rollouts:
            raise EpisodeFailedError(
                StopReason.ENV_FAILED, f"all {count} episodes of group {group.group_id} were broken off; see the log"
            )
        if len(group.rollouts) < count:
            log.warning(
                "group %s: %s of %s episodes were broken off", group.group_id, count - len(group.rollouts), count
            )
            advantages: Sequence[float] = self.advantage_estimator(group)
            for rollout, advantage in zip(group.rollouts, advantages, strict=True):
                rollout.advantage = advantage
        return group


@named_keywords
def rollouter_config(
    env: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    validation_split: str = "train",
    timeout: float = TIMEOUT,
    max_num_turns: int | None = None,
    max_rollout_tokens: int | None = None,
    **further: Any,
) -> ToolgymRollouterConfig:
    """Return the `rollouter` of a `Controller.Config` that plays an env.

    Args:
        env: an env id; `"package.module:MyEnv-v0"` imports the module that registers it.
        env_kwargs: for `toolgym.make`.
        seed: tasks and envs depend on it.
        validation_split: the split of the env's tasks that validation draws from, with another seed.
        timeout: seconds for one call of the env.
        max_num_turns: see `TokenEnv.Config`; the env scores an episode that ends there.
        max_rollout_tokens: the same.
        further: fields of `Rollouter.Config`, such as `advantage`.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument cannot be used.
    """
    kwargs = dict(env_kwargs or {})
    EnvFactory.of(env, kwargs)
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(f"timeout must be seconds above 0, got {timeout!r}")
    validation_seed = derive_seed(seed, "validate")
    return ToolgymRollouterConfig(
        **{
            "train_dataset": ToolgymDataset.Config(env=env, env_kwargs=kwargs, seed=seed),
            "validation_dataset": ToolgymDataset.Config(
                env=env, env_kwargs=kwargs, seed=validation_seed, split=validation_split
            ),
            "rubric": Rubric.Config(reward_fns=[ToolgymReward.Config()]),
            "message_env": ToolgymMessageEnv.Config(env=env, env_kwargs=kwargs, timeout=timeout),
            "token_env": ToolgymTokenEnv.Config(max_num_turns=max_num_turns, max_rollout_tokens=max_rollout_tokens),
            **further,
        }
    )
