"""`ToolVectorEnv`: many async envs as one Gymnasium vector env, all of them stepped at the same time.

All run on one event loop: a step takes as long as its slowest tool call. `send` and `recv` wait for no slow env: they
step each env at its own pace, in the manner of EnvPool.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from toolgym.envs.base import BaseEnv
from toolgym.envs.failure import finite_reward
from toolgym.envs.gym.gymnasium_env import (
    GymnasiumEnv,
    check_action,
    check_render_mode,
    observation,
    turn,
)
from toolgym.envs.gym.in_flight import InFlight, gather
from toolgym.envs.gym.spaces import ChatSpace, TextSpace
from toolgym.envs.registry import spec
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, EpisodeError, ToolgymError, require_whole_number
from toolgym.tools.message import Message
from toolgym.tools.views.env import rendered
from toolgym.tools.views.html import View

_MODES = ["ansi", "html"]

Flags: TypeAlias = npt.NDArray[np.bool_]
Observation: TypeAlias = tuple[Message, ...]
Steps: TypeAlias = tuple[tuple[Observation, ...], npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class VectorEnvError(ToolgymError, RuntimeError):
    """Some envs of a vector env raised `errors`, by index. After `step` and `reset` all others finished."""

    def __init__(self, doing: str, errors: Mapping[int, BaseException]) -> None:
        self.errors = dict(errors)
        index, first = next(iter(self.errors.items()))
        which = ", ".join(map(str, self.errors))
        super().__init__(
            f"{doing} failed in env {which}; env {index} raised {type(first).__name__}: {first}. Reset "
            "them (options={'reset_mask': ...} resets some only) before the next step"
        )


@dataclass
class _StepOutcome:
    """Outcome of a step of one env, with its reset under `SAME_STEP`."""

    obs: list[Message]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    conversation: list[Message]
    final_obs: Observation | None = None
    final_info: dict[str, Any] | None = None


class ToolVectorEnv(VectorEnv[tuple[Observation, ...], Iterable[str], npt.NDArray[Any]]):
    """Steps many async envs concurrently. `gymnasium.make_vec` returns one for every id of `toolgym.register`.

    Everything is as in `gymnasium.vector.SyncVectorEnv` over `GymnasiumEnv`s: observations and actions are tuples with
    one member per env, rewards are float64 `[num_envs]`, endings bool `[num_envs]`, and an env that has ended is reset
    as `autoreset_mode` says. Arguments that do not fit the envs are a `ConfigError`; a step of an env that has no
    episode under way, or is in flight (see `send`), an `EpisodeError`.

    Args:
        env_fns: one function per env that makes it; the envs are closed with the vector env.
        autoreset_mode: `NEXT_STEP` resets an env that ended in the next step, and ignores that step's action for it;
            `SAME_STEP` resets it at once, with its last observation and info under `final_obs` and `final_info`;
            `DISABLED` leaves it to `reset(options={"reset_mask": ...})`.
        render_mode: for `render` to give each env's conversation, `"ansi"` as text or `"html"`; or None.
        max_episode_steps: steps after which an episode is truncated, as by Gymnasium's `TimeLimit`; None: no limit.

    Example:
        >>> import gymnasium, toolgym
        >>> envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=2)
        >>> obs, infos = envs.reset(seed=0)
        >>> obs, rewards, terminations, truncations, infos = envs.step(("#### 1", "#### 2"))
        >>> terminations
        array([ True,  True])
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], BaseEnv]],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        if not env_fns:
            raise ConfigError("a vector env needs at least one env, got none")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ConfigError(f"max_episode_steps must be None or at least 1, got {max_episode_steps!r}")
        check_render_mode(render_mode, _MODES)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.render_mode = render_mode
        self.max_episode_steps = max_episode_steps
        self.num_envs = len(env_fns)
        self.metadata = {**GymnasiumEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = TextSpace()
        self.single_observation_space = ChatSpace()
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

        self.envs: list[BaseEnv] = []
        # Each env may run a blocking tool. With fewer threads than envs, some would wait for others.
        self._bridge = EventLoopThread(
            name="toolgym-vector-env", on_close=_closer(self.envs), max_threads=max(64, 2 * self.num_envs)
        )
        try:
            for make_one in env_fns:
                self.envs.append(make_one())
        except BaseException:
            self._bridge.close()
            raise
        self._obs: list[Observation] = [() for _ in self.envs]
        self._conversations: list[list[Message]] = [[] for _ in self.envs]
        self._elapsed = np.zeros(self.num_envs, dtype=np.int64)
        self._rewards = np.zeros(self.num_envs, dtype=np.float64)
        self._terminations = np.zeros(self.num_envs, dtype=np.bool_)
        self._truncations = np.zeros(self.num_envs, dtype=np.bool_)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._flights: InFlight[_StepOutcome] = InFlight(self._bridge)
        self._lost = np.ones(self.num_envs, dtype=np.bool_)  # never reset, or failed since: no step makes sense

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Observation, ...], dict[str, Any]]:
        """Begin an episode in every env, or in some. After a `VectorEnvError`, those that raised need another reset.

        Args:
            seed: an int seeds env `i` with `seed + i`; a sequence gives each env its own; None goes on from where the
                envs are.
            options: those of the envs. `reset_mask` (bool `[num_envs]`) resets only the envs with true; the others keep
                their last observation.
        """
        self._require_landed("reset")
        chosen, seeds, options = self._begin_resets(seed, options)
        outcomes = self._all("reset", {index: partial(self._begin, index, seeds[index], options) for index in chosen})
        return self._observations(), _infos(self, outcomes.items())

    def step(self, actions: Iterable[str]) -> Steps:
        """Take one turn in every env, all at the same time, with one text per env.

        After a `VectorEnvError`, the others took their step; the failed ones need a reset.
        """
        self._require_landed("step")
        outcomes = self._all("step", self._calls("step", actions, range(self.num_envs)))
        rewards, terminations, truncations = self._rewards.copy(), self._terminations.copy(), self._truncations.copy()
        return self._observations(), rewards, terminations, truncations, _infos(self, outcomes.items())

    # ------------------------------------------------------------------ each env at its own pace

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin episodes as `reset` does, but return at once; `recv` gives their first observations."""
        self._require_landed("async_reset", self._chosen(options))
        chosen, seeds, options = self._begin_resets(seed, options)
        for index in chosen:
            self._flights.begin(index, partial(self._begin, index, seeds[index], options))

    def send(self, actions: Iterable[str], env_ids: npt.ArrayLike) -> None:
        """Begin a turn in some envs, with one text per id, and return at once; `recv` gives the results.

        Envs that ended are reset as in `step`. `env_ids` are numbers of the envs, as `infos["env_id"]` of `recv` has
        them.
        """
        ids = _env_ids_of(env_ids, self.num_envs)
        self._require_landed("send", ids)
        for index, call in self._calls("send", actions, ids).items():
            self._flights.begin(index, call)

    def recv(self, n: int = 1, *, timeout: float | None = None) -> Steps:
        """Wait until `n` of the envs in flight are ready, and give those that were first. The others go on meanwhile.

        Args:
            n: how many; at least so many must be in flight.
            timeout: most seconds to wait; None: as long as it takes. The tools have deadlines of their own.

        Returns:
            `(obs, rewards, terminations, truncations, infos)` as of `step`, with a row for each of the `n` envs;
            `infos["env_id"]` (int64 `[n]`) says which.

        Raises:
            VectorEnvError: some envs raised, which then need a reset. Those that are ready stay so.
            LoopTimeoutError: `timeout` passed. Those that are ready stay so.
        """
        require_whole_number("n", n, at_least=1)
        if self.closed:
            raise EpisodeError("recv was called after close; make other envs")
        out = self._flights.indices
        if n > len(out):
            raise ConfigError(
                f"recv({n}) would wait forever: {len(out)} envs are in flight; `send` or `async_reset` first"
            )
        outcomes, errors = self._flights.take(n, timeout)
        self._settle(outcomes, errors)
        if errors:
            raise VectorEnvError("send or async_reset", errors) from next(iter(errors.values()))
        ids, infos = list(outcomes), _infos(_Rows(n), enumerate(outcomes.values()))
        infos["env_id"] = np.array(ids, dtype=np.int64)
        return (
            tuple(observation(self._obs[index]) for index in ids),
            self._rewards[ids],
            self._terminations[ids],
            self._truncations[ids],
            infos,
        )

    def render(self) -> tuple[str, ...] | None:
        """Return each env's conversation so far, as text or as HTML; without a mode warn, as Gymnasium's envs do."""
        if self.render_mode is None:
            gymnasium.logger.warn('these envs were made without a render_mode; make them with render_mode="ansi"')
            return None
        views = map(rendered, self.envs, self._conversations)
        return tuple(View(view.html, view.html) if self.render_mode == "html" else view for view in views)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each async env."""
        return tuple(getattr(env, name) for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        self._bridge.close()

    def __del__(self) -> None:
        """Do nothing: a forgotten vector env is closed by its loop's thread, while older Gymnasiums close here."""

    # ------------------------------------------------------------------ one env

    async def _begin(self, index: int, seed: int | None = None, options: dict[str, Any] | None = None) -> _StepOutcome:
        messages, info = await self.envs[index].reset(seed=seed, options=options)
        self._elapsed[index] = 0
        return _StepOutcome(messages, 0.0, False, False, cast(dict[str, Any], info), self._kept(messages))

    async def _turn(self, index: int, action: str) -> _StepOutcome:
        result = await self.envs[index].step(action)
        self._elapsed[index] += 1
        truncated, info = result.truncated, cast(dict[str, Any], result.info)
        if self.max_episode_steps is not None and self._elapsed[index] >= self.max_episode_steps:
            truncated = True
        conversation = self._conversations[index]
        if self.render_mode is not None:
            conversation = [*conversation, *turn(action, result)]
        reward = float(finite_reward(result.reward))
        outcome = _StepOutcome(result.obs, reward, result.terminated, truncated, info, conversation)
        if (result.terminated or truncated) and self.autoreset_mode is AutoresetMode.SAME_STEP:
            outcome.final_obs, outcome.final_info = observation(result.obs), info
            fresh = await self._begin(index)
            outcome.obs, outcome.info, outcome.conversation = fresh.obs, fresh.info, fresh.conversation
        return outcome

    def _settle(self, outcomes: Mapping[int, _StepOutcome], failed: Iterable[int]) -> None:
        for index, outcome in outcomes.items():
            self._obs[index] = tuple(outcome.obs)  # copied where they are given out
            self._conversations[index] = outcome.conversation
            self._rewards[index] = outcome.reward
            self._terminations[index] = outcome.terminated
            self._truncations[index] = outcome.truncated
            self._lost[index] = False
        self._ended = self._terminations | self._truncations
        for index in failed:
            self._lost[index] = True

    # ------------------------------------------------------------------ all envs

    def _chosen(self, options: Mapping[str, Any] | None) -> list[int]:
        if options is None or "reset_mask" not in options:
            return list(range(self.num_envs))
        return list(map(int, np.flatnonzero(_reset_mask_of(options["reset_mask"], self.num_envs))))

    def _begin_resets(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[list[int], Sequence[int | None], dict[str, Any] | None]:
        """Check a reset's arguments, and let its envs have no episode. Returns those envs, all seeds, and options."""
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        chosen, seeds = self._chosen(options), _seeds_of(seed, self.num_envs)
        if options is not None and "reset_mask" in options:
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        # Reset means no episode, until it is known to have worked.
        for flags in (self._terminations, self._truncations, self._ended):
            flags[chosen] = False
        self._lost[chosen] = True
        self._elapsed[chosen] = 0
        return chosen, seeds, options

    def _calls(
        self, doing: str, actions: Iterable[str], ids: Sequence[int]
    ) -> dict[int, Callable[[], Coroutine[Any, Any, _StepOutcome]]]:
        """Return the calls of some envs with their actions, all of which are checked first."""
        texts = _actions_of(actions, len(ids))
        none = np.zeros_like(self._ended)
        resetting = self._ended if self.autoreset_mode is AutoresetMode.NEXT_STEP else none
        forgotten = self._ended if self.autoreset_mode is AutoresetMode.DISABLED else none
        unready = [index for index in ids if self._lost[index] or forgotten[index]]
        if unready:
            raise EpisodeError(
                f"{doing} was called while env {', '.join(map(str, unready))} had no episode under way; call reset "
                "first (options={'reset_mask': ...} resets some envs only)"
            )
        calls: dict[int, Callable[[], Coroutine[Any, Any, _StepOutcome]]] = {}
        for index, text in zip(ids, texts, strict=True):
            if not resetting[index]:
                check_action(text)
            calls[index] = partial(self._begin, index) if resetting[index] else partial(self._turn, index, text)
        return calls

    def _require_landed(self, doing: str, ids: Iterable[int] | None = None) -> None:
        out = self._flights.indices if ids is None else sorted(set(ids) & set(self._flights.indices))
        if out:
            raise EpisodeError(
                f"{doing} was called while env {', '.join(map(str, out))} was in flight: receive with recv what was "
                "begun with send or async_reset"
            )

    def _all(
        self, doing: str, calls: Mapping[int, Callable[[], Coroutine[Any, Any, _StepOutcome]]]
    ) -> dict[int, _StepOutcome]:
        """Run one call per env at the same time, and wait for all, also when some raise."""
        try:
            results = dict(zip(calls, self._bridge.run(gather(calls.values())), strict=True))
        except BaseException:
            for index in calls:
                self._lost[index] = True  # interrupted somewhere in the middle
            raise
        errors = {i: result for i, result in results.items() if isinstance(result, BaseException)}
        outcomes = {i: result for i, result in results.items() if not isinstance(result, BaseException)}
        self._settle(outcomes, errors)
        if errors:
            raise VectorEnvError(doing, errors) from next(iter(errors.values()))
        return outcomes

    def _observations(self) -> tuple[Observation, ...]:
        return tuple(observation(messages) for messages in self._obs)

    def _kept(self, messages: Iterable[Message]) -> list[Message]:
        return list(observation(messages)) if self.render_mode is not None else []


class _Rows(VectorEnv[Any, Any, Any]):
    """Collects infos as a vector env does, for a number of envs of its own."""

    def __init__(self, count: int) -> None:
        self.num_envs = count

    def __del__(self) -> None:
        """Do nothing: there is nothing to close."""


def _infos(vector: VectorEnv[Any, Any, Any], outcomes: Iterable[tuple[int, _StepOutcome]]) -> dict[str, Any]:
    infos: dict[str, Any] = {}
    for row, outcome in outcomes:
        if outcome.final_info is not None:
            finals = {"final_obs": outcome.final_obs, "final_info": outcome.final_info}
            infos = vector._add_info(infos, finals, row)
        infos = vector._add_info(infos, outcome.info, row)
    return infos


def make_vector_env(
    *,
    env_id: str,
    num_envs: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    env_wrappers: object = (),
    **kwargs: Any,
) -> ToolVectorEnv:
    """The `vector_entry_point` of every id at Gymnasium: make `num_envs` envs of an id, stepped together.

    `env_wrappers` go around each env, as `wrappers` of `toolgym.make` do: `gymnasium.make_vec` keeps that name for its
    own.
    """
    require_whole_number("num_envs", num_envs, at_least=1)
    env_spec = spec(env_id)
    kwargs = {**env_spec.kwargs, **({"wrappers": env_wrappers} if env_wrappers else {}), **kwargs}
    adapt = getattr(env_spec.load(), "vector_defaults", None)
    if adapt is not None:
        kwargs = dict(adapt(num_envs, kwargs))
    return ToolVectorEnv(
        [partial(env_spec.build, kwargs)] * num_envs,
        autoreset_mode=autoreset_mode,
        render_mode=render_mode,
        max_episode_steps=max_episode_steps,
    )


def _closer(envs: list[BaseEnv]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a function that closes all envs; it must not refer to the vector env, see `EventLoopThread`."""

    async def close() -> None:
        results = await gather([env.close for env in envs])
        errors = {i: result for i, result in enumerate(results) if isinstance(result, BaseException)}
        if errors:
            raise VectorEnvError("close", errors) from next(iter(errors.values()))

    return close


def _autoreset_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        known = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ConfigError(f"there is no autoreset_mode {value!r}; expected one of: {known}") from None


def _seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(num_envs)]
    value: object = seed
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"seed must be a whole number, a sequence of one per env, or None, got {seed!r}")
    if len(seed) != num_envs:
        raise ConfigError(f"expected one seed per env, {num_envs}, got {len(seed)}")
    return seed


def _reset_mask_of(mask: object, num_envs: int) -> Flags:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigError(
            f"options['reset_mask'] must be a NumPy array of bool with shape ({num_envs},) and at least one True, "
            f"got {mask!r}"
        )
    return mask


def _actions_of(actions: Iterable[str], count: int) -> list[str]:
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise ConfigError(f"expected {count} actions, one text per env, got {actions!r}")
    texts = list(actions)
    if len(texts) != count:
        raise ConfigError(f"expected {count} actions, one text per env, got {len(texts)}")
    return texts


def _env_ids_of(env_ids: npt.ArrayLike, num_envs: int) -> list[int]:
    ids = np.asarray(env_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= num_envs:
        raise ConfigError(f"env_ids must be whole numbers from 0 to {num_envs - 1}, at least one, got {env_ids!r}")
    if len(set(ids.tolist())) < len(ids):
        raise ConfigError(f"env_ids must each come once, got {env_ids!r}")
    return list(map(int, ids))
