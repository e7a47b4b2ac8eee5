"""Any env id as a skyrl-gym env, for SkyRL's own generator, which then tokenizes the observations.

The contract is that of skyrl-gym 0.4.0 (`skyrl_gym/envs/base_text_env.py`), called from the threads of a pool.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from toolgym.envs.base import require_growing_context
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.registry import make, spec
from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_keywords

with needs("skyrl-gym", "An env for skyrl-gym"):
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


@functools.cache
def _loop() -> EventLoopThread:
    return EventLoopThread(name="toolgym-skyrl-gym")


class ToolgymTextEnv(BaseTextEnv):  # type: ignore[misc]  # skyrl-gym has no types
    """One episode of an env, whose actions and observations are texts.

    `extras` are the row's further columns, see `task_of_row`. SkyRL adds its `generator.max_turns`, which is the env's
    if it is above 1. skyrl-gym's `env_config` is not used.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None = None,
        env_config: Any = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._row = dict(extras or {})
        turns = self._row.pop("max_turns", 1)
        env = make(env_id, **{**({"max_turns": turns} if turns > 1 else {}), **(env_kwargs or {})})
        require_growing_context(env, "SkyRL's loop")
        self._episode = DrivenEpisode(env)
        self._metrics: dict[str, Any] = {"turns": 0, "tool_calls": 0, "tool_errors": 0}

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        task = task_of_row({**self._row, "raw_prompt": prompt})
        messages, _ = _loop().run(self._episode.reset(options={"task": task}))
        return [dict(message) for message in messages], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take one turn; an EpisodeFailedError stops SkyRL's own generator: a reward of 0 would blame the model."""
        result = _loop().run(self._episode.step(action))
        calls = result.info.get("tool_calls") or []
        reason = result.stop_reason
        self._metrics["turns"] += 1
        self._metrics["tool_calls"] += len(calls)
        self._metrics["tool_errors"] += sum(record.status != "ok" for record in calls)
        return BaseTextEnvStepOutput(
            observations=[dict(message) for message in result.obs],
            reward=float(result.reward),
            done=result.done,
            metadata={"stop_reason": reason.value if reason is not None else None},
        )

    def get_metrics(self) -> dict[str, Any]:
        return dict(self._metrics)

    def close(self) -> None:
        _loop().run(self._episode.close())


@named_keywords
def register_envs(*env_ids: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
    """Make env ids skyrl-gym's in this process, once and for all: call it where SkyRL's experiment runs.

    Raises UnknownNameError if no env has that id, and ConfigError if skyrl-gym has an env of its own by that name.
    """
    entry_point = f"{__name__}:{ToolgymTextEnv.__name__}"
    for env_id in env_ids:
        spec(env_id)
        known = skyrl_gym.registry.get(env_id)
        if known is not None and known.entry_point != entry_point:
            raise ConfigError(f"skyrl-gym has another env called {env_id!r}: {known.entry_point}")
        skyrl_gym.registry.pop(env_id, None)
        skyrl_gym.register(env_id, entry_point, {"env_id": env_id, "env_kwargs": dict(env_kwargs or {})})
