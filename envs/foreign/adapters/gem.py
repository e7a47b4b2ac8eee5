"""GEM's envs (`gem-llm`), which read and write texts.

The contract: `reset(seed=) -> (obs, info)`, `step(action) -> (obs, reward, terminated, truncated, info)`; `prefix` and
`suffix` of the info stand around the observation (`gem/core.py`, `gem/wrappers/observation_wrapper.py`). It seeds and
draws from the global generators of `random` and NumPy (`gem/utils/seeding.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Start, Stepped, WrapOptions, layers_of
from toolgym.envs.foreign.threads import EnvThreads, OwnRandom
from toolgym.envs.foreign.values import opened
from toolgym.tools.errors import ConfigError
from toolgym.tools.parsers import ParsedTurn

_RESTATES = "gem.wrappers.observation_wrapper"
_GAMES = "gem.envs.game_env."


class GemAdapter(Adapter):
    """GEM's envs. Its tools are texts that the env itself reads, so the policy has none to call."""

    project = "gem"
    uses = frozenset({"to_text", "to_action", "drop_thinking"})

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        layers = layers_of(env)
        if any(type(layer).__module__ == _RESTATES for layer in layers):
            raise ConfigError(
                f"{self.name} is inside of GEM's ObservationWrapper, which tells the whole conversation again at each "
                "step; the runner keeps the conversation itself: leave that wrapper out"
            )
        self._random = OwnRandom()
        # Games draw at each step. What runs tools or checks answers does not, and may take long.
        self._draws = type(layers[-1]).__module__.startswith(_GAMES) and not any(
            hasattr(layer, "tools") for layer in layers
        )

    async def reset(self, start: Start) -> Begun:
        reset = functools.partial(self._random.run, self.env.reset, seed=start.seed, **start.options)
        observation, info = await self.threads.run(reset)
        return Begun(opened(start.messages, self.read(self._whole(observation, info))), info=info)

    async def step(self, turn: ParsedTurn) -> Stepped:
        step: Callable[[Any], Any] = self.env.step
        if self._draws:
            step = functools.partial(self._random.run, self.env.step)
        observation, reward, terminated, truncated, info = await self.threads.run(step, self.action(turn))
        return Stepped(self.read(self._whole(observation, info)), reward, terminated, truncated, info)

    def _whole(self, observation: Any, info: Mapping[str, Any]) -> Any:
        if not isinstance(observation, str):
            return observation
        prefix, suffix = str(info.get("prefix", "")), str(info.get("suffix", ""))
        if suffix and observation and not observation.endswith("\n"):
            observation += "\n"
        return f"{prefix}{observation}{suffix}"
