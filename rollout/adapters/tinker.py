"""tinker-cookbook: `ToolgymEnv` and its builders play with Tinker's sampling, `to_groups` takes trajectories along.

In tinker-cookbook 0.6.1 (`tinker_cookbook/rl/types.py`, `rl/rollout_runner.py`) the trainer owns the loop, samples, and
calls `step`. Here the episode is a task that waits for each turn's tokens. The trainer keeps the log-probabilities.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.trainer_row import require_known_distribution, require_no_images
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.advantages.advantages import grouped
from toolgym.rollout.engines.base import GenerationRequest, SamplingParams
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.trajectory.failures import not_trainable_error
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, require_whole_number
from toolgym.wrappers import Wrapper

with needs("tinker-cookbook", "The adapter for tinker-cookbook"):
    import chz
    import tinker
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl import types
    from tinker_cookbook.rl.rollout_limits import RolloutLimits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REASONS = {
    StopReason.ANSWERED: types.StopReason.COMPLETED,
    StopReason.TOO_MANY_BAD_CALLS: types.StopReason.PARSE_ERROR,
    StopReason.MAX_TURNS: types.StopReason.MAX_TURNS,
    StopReason.LENGTH: types.StopReason.MAX_TOKENS,
    StopReason.BUDGET: types.StopReason.MAX_TOKENS,
}


def stop_metric(trajectory: Trajectory) -> dict[str, float]:
    reason = _REASONS.get(trajectory.stop_reason, trajectory.stop_reason)
    return {f"{types.STOP_METRIC_PREFIX}{reason.value}": 1.0}


class ToolgymEnv(types.Env):  # type: ignore[misc]  # tinker-cookbook may be missing
    """Plays one episode of an env with the tokens that tinker-cookbook samples; a `ToolgymGroupBuilder` makes it.

    An episode that something broke off raises `EpisodeFailedError`, as tinker-cookbook expects: its rollout strategy
    then leaves it out of the group, or plays it again. Prompt and response may have `max_trajectory_tokens` together;
    so `limits.max_response_tokens` of the `config` must be None. Its `sampling` is not used. Seeds depend on the
    indices.
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
        self._factory, self._task, self._tokenizer = factory.member(task), task, tokenizer
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

        Raises EpisodeFailedError if the env failed, EpisodeError if no episode waits for a turn, and ConfigError if
        there are more ids than the episode has room for.
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
        watched = EnvFactory(self._factory.env_id, lambda: _Watched(self._factory(), self._earn))
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

    def _earn(self, reward: float) -> None:
        self._earned += reward

    def _pay(self, total: float) -> float:
        reward, self._paid = total - self._paid, total
        return reward


class _Watched(Wrapper):
    def __init__(self, env: BaseEnv, earn: Callable[[float], None]) -> None:
        super().__init__(env)
        self._earn = earn

    async def step(self, action: Action) -> StepResult:
        result = await super().step(action)
        self._earn(result.reward)
        return result


def require_usable(config: RunConfig, max_trajectory_tokens: int) -> None:
    require_whole_number("max_trajectory_tokens", max_trajectory_tokens, at_least=2)
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be a RunConfig, got {config!r}")
    if config.limits.max_response_tokens is not None:
        raise ConfigError(
            "limits.max_response_tokens must be None: tinker-cookbook bounds prompt and response together, with "
            "max_trajectory_tokens"
        )


@dataclass
class ToolgymGroupBuilder(types.EnvGroupBuilder):  # type: ignore[misc]  # tinker-cookbook may be missing
    """Makes the envs of one task's group, with the settings of `ToolgymDatasetBuilder`. Another process may get it."""

    env: str | Callable[[], BaseEnv]
    task: Task
    tokenizer: str
    group_size: int
    max_trajectory_tokens: int
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    config: RunConfig = field(default_factory=RunConfig)
    task_index: int = 0

    def __post_init__(self) -> None:
        self._envs: list[ToolgymEnv] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_envs": []}

    async def make_envs(self) -> list[ToolgymEnv]:
        factory = EnvFactory.of(self.env, self.env_kwargs or None)
        tokenizer = await in_thread(_tokenizer, self.tokenizer)
        envs = [
            ToolgymEnv(
                factory,
                self.task,
                tokenizer=tokenizer,
                max_trajectory_tokens=self.max_trajectory_tokens,
                config=self.config,
                task_index=self.task_index,
                sample_index=number,
            )
            for number in range(self.group_size)
        ]
        self._envs += envs
        return envs

    async def cleanup(self) -> None:
        """End the episodes that still play. tinker-cookbook calls it when the group is over, whatever happened."""
        envs, self._envs = self._envs, []
        await asyncio.gather(*(env.close() for env in envs))

    def logging_tags(self) -> list[str]:
        return [EnvFactory.of(self.env).env_id]


class ToolgymDataset(types.RLDataset):  # type: ignore[misc]  # tinker-cookbook may be missing
    def __init__(self, builders: Sequence[ToolgymGroupBuilder], batch_size: int) -> None:
        require_whole_number("batch_size", batch_size, at_least=1)
        self._builders, self._batch_size = list(builders), batch_size

    def get_batch(self, index: int) -> list[ToolgymGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self._builders[index * self._batch_size : (index + 1) * self._batch_size]

    def __len__(self) -> int:
        return -(-len(self._builders) // self._batch_size)


@chz.chz
class ToolgymDatasetBuilder(types.RLDatasetBuilder):  # type: ignore[misc]  # tinker-cookbook may be missing
    """The training set of an env, and a test set with other tasks: `dataset_builder` of tinker-cookbook's `Config`.

    Attributes:
        env: an env id, with its `env_kwargs`, or a function of a module that makes an env.
        tokenizer: folder or hub name of the model's tokenizer.
        num_tasks: tasks of the training set.
        batch_size: tasks of one training step.
        group_size: episodes per task, at least 2.
        max_trajectory_tokens: most tokens of prompt and response together. `max_tokens` of the `Config` bounds a turn.
        num_test_tasks: tasks of the test set, with one episode each; 0: there is no test set.
        tasks: the tasks, those of the test set last; None: drawn from the env's own.
        config: see `ToolgymEnv`.
        seed: tasks and envs depend on it.
    """

    env: str | Callable[[], BaseEnv]
    tokenizer: str
    num_tasks: int
    batch_size: int
    group_size: int
    max_trajectory_tokens: int
    num_test_tasks: int = 0
    tasks: Sequence[Task] | None = None
    env_kwargs: Mapping[str, Any] = chz.field(default_factory=dict)
    config: RunConfig = chz.field(default_factory=RunConfig)
    seed: int = 0

    async def __call__(self) -> tuple[ToolgymDataset, ToolgymDataset | None]:
        for name, least in {"num_tasks": 1, "batch_size": 1, "group_size": 1, "num_test_tasks": 0, "seed": 0}.items():
            require_whole_number(name, getattr(self, name), at_least=least)
        if self.group_size == 1:
            raise ConfigError(
                "group_size=1 trains on nothing: tinker-cookbook subtracts the mean of a group's rewards, so the "
                "advantage of a group of one episode is 0. Set it to 2 or more"
            )
        require_usable(self.config, self.max_trajectory_tokens)
        config = self.config if self.config.seed is not None else replace(self.config, seed=self.seed)
        factory = EnvFactory.of(self.env, self.env_kwargs or None)
        source = await factory.tasks() if self.tasks is None else TaskList(self.tasks)
        count = self.num_tasks + self.num_test_tasks
        if source.size is not None and source.size < count:
            raise ConfigError(f"num_tasks and num_test_tasks are {count} together, and there are {source.size} tasks")
        drawn = list(self.tasks)[:count] if self.tasks is not None else source.take(count, seed=self.seed)

        groups = [
            ToolgymGroupBuilder(
                env=self.env,
                task=task,
                tokenizer=self.tokenizer,
                group_size=self.group_size if number < self.num_tasks else 1,
                max_trajectory_tokens=self.max_trajectory_tokens,
                env_kwargs=self.env_kwargs,
                config=config,
                task_index=number,
            )
            for number, task in enumerate(drawn)
        ]
        test = ToolgymDataset(groups[self.num_tasks :], self.batch_size) if self.num_test_tasks else None
        return ToolgymDataset(groups[: self.num_tasks], self.batch_size), test


_tokenizer = functools.cache(load_tokenizer)


# ------------------------------------------------------------------ episodes that were played elsewhere


def to_groups(trajectories: Iterable[Trajectory]) -> list[types.TrajectoryGroup]:
    """Return the groups of trajectories, for `compute_advantages` and `assemble_training_data` of tinker-cookbook.

    Those of one run, one task and one role are a group. A trajectory that is not usable is among its group's
    `rollout_errors`; a group without any usable one is left out. Raises ConfigError if one was sampled at a temperature
    other than 1, since Tinker's losses do not divide logits.
    """
    groups = grouped(trajectories)
    return [_group(members) for members in groups if any(member.usable for member in members)]


def _group(members: list[Trajectory]) -> types.TrajectoryGroup:
    usable = [member for member in members if member.usable]
    for member in usable:
        require_no_images(member, "tinker-cookbook")
        require_known_distribution(member, "Tinker", 1.0)  # Tinker's losses take logits as they are
    return types.TrajectoryGroup(
        trajectories_G=[_trajectory(member) for member in usable],
        final_rewards_G=[float(member.reward) for member in usable],
        metrics_G=[{} for _ in usable],
        rollout_errors=[
            types.RolloutError(member.stop_reason.value, "" if member.error is None else member.error.message)
            for member in members
            if not member.usable
        ],
    )


def _trajectory(trajectory: Trajectory) -> types.Trajectory:
    turns = [turn for sequence in trajectory.sequences for turn in _turns(sequence)]
    transitions = [
        types.Transition(
            ob=tinker.ModelInput.from_ints(context) if context else tinker.ModelInput.empty(),
            ac=TokensWithLogprobs(tokens=ids, maybe_logprobs=logprobs),
            reward=0.0,  # the group has the whole episode's
            episode_done=False,
        )
        for context, ids, logprobs in turns
    ]
    transitions[-1].episode_done = True
    transitions[-1].metrics = stop_metric(trajectory)
    [reason] = transitions[-1].metrics
    return types.Trajectory(
        transitions=transitions,
        final_ob=tinker.ModelInput.empty(),
        stop_reason=reason.removeprefix(types.STOP_METRIC_PREFIX),
    )


def _turns(sequence: TokenSequence) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Yield context, ids and log-probabilities of each turn. Parts of a turn that was resumed follow each other."""
    context = sequence.prompt_ids.tolist()
    ids: list[int] = []
    logprobs: list[float] = []
    for segment in sequence.segments:
        if segment.is_policy:
            ids += segment.token_ids.tolist()
            logprobs += segment.logprobs.tolist()
        elif len(segment):
            if ids:
                yield context, ids, logprobs
            context, ids, logprobs = [*context, *ids, *segment.token_ids.tolist()], [], []
    if ids:
        yield context, ids, logprobs
