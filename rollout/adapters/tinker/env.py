"""`ToolgymEnv`: one episode as tinker-cookbook's `Env`, which is given each turn's tokens.

The contract is that of tinker-cookbook 0.6.1 (`tinker_cookbook/rl/types.py`, `rl/rollout_runner.py`): the trainer owns
the loop, samples, and calls `step`. Here the episode runs as a task that waits for each turn's tokens. The
log-probabilities stay with the trainer, in its transitions.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.episode_settings import run_config_of
from toolgym.rollout.adapters.tinker.contract import RolloutLimits, tinker, types
from toolgym.rollout.engines.base import GenerationRequest, SamplingParams
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.trajectory.failures import not_trainable_error
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, require_whole_number
from toolgym.wrappers import Wrapper

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REASONS = {
    StopReason.ANSWERED: types.StopReason.COMPLETED,
    StopReason.TOO_MANY_BAD_CALLS: types.StopReason.PARSE_ERROR,
    StopReason.MAX_TURNS: types.StopReason.MAX_TURNS,
    StopReason.LENGTH: types.StopReason.MAX_TOKENS,
    StopReason.BUDGET: types.StopReason.MAX_TOKENS,
}
"""tinker-cookbook's names for the ends that are no failures."""


def stop_metric(trajectory: Trajectory) -> dict[str, float]:
    """Return the metric by which tinker-cookbook says why an episode ended."""
    reason = _REASONS.get(trajectory.stop_reason, trajectory.stop_reason)
    return {f"{types.STOP_METRIC_PREFIX}{reason.value}": 1.0}


class ToolgymEnv(types.Env):  # type: ignore[misc]  # tinker-cookbook may be missing
    """Plays one episode of an env with the tokens that tinker-cookbook samples.

    An episode that something broke off raises `EpisodeFailedError`, as tinker-cookbook expects: its rollout strategy
    then
    leaves it out of the group, or plays it again.

    Args:
        factory: makes the env.
        task: the task.
        tokenizer: the model's.
        max_trajectory_tokens: most tokens of prompt and response together.
        config: how the episode is played. Its `sampling` is not used; `limits.max_response_tokens` must be None.
        task_index: number of the task in its data set, counted from 0.
        sample_index: number of the episode in its group, counted from 0.

    Raises:
        ConfigError: an argument is of the wrong kind, or the limits have a bound that tinker-cookbook does not keep.
    """

    def __init__(
        self,
        factory: EnvFactory,
        task: Task,
        *,
        tokenizer: PreTrainedTokenizerBase,
        max_trajectory_tokens: int,
        config: RunConfig | None = None,
        task_index: int = 0,
        sample_index: int = 0,
    ) -> None:
        self._config = config or RunConfig()
        require_usable(self._config, max_trajectory_tokens)
        self._factory, self._task, self._tokenizer = factory, task, tokenizer
        self._most = max_trajectory_tokens
        self._place: dict[str, Any] = {"task_index": task_index, "sample_index": sample_index}
        self._playing: asyncio.Task[Trajectory] | None = None
        self._asked: asyncio.Future[GenerationRequest]
        self._answer: asyncio.Future[dict[str, Any]]
        self._earned = self._paid = 0.0

    @property
    def rollout_limits(self) -> RolloutLimits:
        """The bound that tinker-cookbook's rollout keeps when it is given no limits of its own."""
        return RolloutLimits(max_trajectory_tokens=self._most)

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """Begin the episode; returns the prompt, and the ids that end a turn."""
        if self._playing is not None:
            raise EpisodeError("an env of tinker-cookbook plays one episode: make another one with make_envs()")
        self._asked = asyncio.get_running_loop().create_future()
        self._playing = asyncio.create_task(self._play())
        now = await self._until_asked()
        if isinstance(now, Trajectory):
            raise not_trainable_error(now)
        return tinker.ModelInput.from_ints(list(now.prompt_ids)), list(now.params.stop_token_ids)

    async def step(self, action: list[int], *, extra: types.ActionExtra | None = None) -> types.StepResult:
        """Take a turn of sampled ids. Without a `stop_reason` in `extra`, `stop` or `length`, the last id decides.

        Raises:
            EpisodeFailedError: the env failed.
            EpisodeError: no episode waits for a turn.
            ConfigError: there are more ids than the episode has room for.
        """
        if self._playing is None or not self._asked.done():
            raise EpisodeError(
                "no episode waits for a turn: call initial_observation() once, and step until it is done"
            )
        if self._answer.done():  # a deadline passed meanwhile
            await asyncio.wait([self._playing])
            raise not_trainable_error(self._playing.result())
        request = self._asked.result()
        if len(action) > request.params.max_new_tokens:
            raise ConfigError(
                f"a turn of {len(action)} tokens does not fit into the {request.params.max_new_tokens} tokens that are "
                f"left of max_trajectory_tokens={self._most}: keep to the env's `rollout_limits`"
            )
        self._asked = asyncio.get_running_loop().create_future()
        reason = (extra or {}).get("stop_reason")
        self._answer.set_result({"token_ids": action, "logprobs": [0.0] * len(action), "finish_reason": reason})
        now = await self._until_asked()
        if isinstance(now, GenerationRequest):
            return types.StepResult(
                reward=self._pay(self._earned),
                episode_done=False,
                next_observation=tinker.ModelInput.from_ints(list(now.prompt_ids)),
                next_stop_condition=list(now.params.stop_token_ids),
            )
        if not now.usable:
            raise not_trainable_error(now)
        return types.StepResult(
            reward=self._pay(now.reward),
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=[],
            metrics={**stop_metric(now), "tool_calls": len(now.tool_calls)},
        )

    async def close(self) -> None:
        """End the episode if it still plays, and free its env."""
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await shielded(asyncio.wait([self._playing]))

    async def _play(self) -> Trajectory:
        watched = EnvFactory(self._factory.env_id, lambda: _Watched(self._factory(), self))
        return await run_episode(
            watched,
            self._task,
            self._generate,
            tokenizer=self._tokenizer,
            context_length=self._most,
            config=replace(self._config, sampling=SamplingParams(max_new_tokens=self._most)),  # tinker bounds a turn
            **self._place,
        )

    async def _generate(self, request: GenerationRequest) -> dict[str, Any]:
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.set_result(request)
        return await self._answer

    async def _until_asked(self) -> GenerationRequest | Trajectory:
        """Return the episode's next request, or the whole of it at its end. A caller that gives up ends the episode."""
        assert self._playing is not None
        either: list[asyncio.Future[Any]] = [self._playing, self._asked]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.close()
            raise
        return self._playing.result() if self._playing.done() else self._asked.result()

    def earn(self, reward: float) -> None:
        self._earned += reward

    def _pay(self, total: float) -> float:
        """Return the part of the total that was not paid yet."""
        reward, self._paid = total - self._paid, total
        return reward


class _Watched(Wrapper):
    """Tells what each step gave, when it gave it."""

    def __init__(self, env: BaseEnv, outer: ToolgymEnv) -> None:
        super().__init__(env)
        self._outer = outer

    async def step(self, action: Action) -> StepResult:
        result = await super().step(action)
        self._outer.earn(result.reward)
        return result


def require_usable(config: RunConfig, max_trajectory_tokens: int) -> None:
    """Check the limits for a bound that tinker-cookbook does not keep."""
    require_whole_number("max_trajectory_tokens", max_trajectory_tokens, at_least=2)
    if run_config_of(config).limits.max_response_tokens is not None:
        raise ConfigError(
            "limits.max_response_tokens must be None: tinker-cookbook bounds prompt and response together, with "
            "max_trajectory_tokens"
        )
