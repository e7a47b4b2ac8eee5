"""Gymnasium's envs, whose actions and observations are texts, or are made of texts by the user's functions.

The contract: `reset(seed=, options=) -> (obs, info)`, `step(action) -> (obs, reward, terminated, truncated, info)`
(https://gymnasium.farama.org/api/env/).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from toolgym.envs.foreign.base import Adapter, Begun, Start, Stepped, WrapOptions
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import opened
from toolgym.tools.errors import ConfigError
from toolgym.tools.parsers import ParsedTurn

NOT_TEXT = (
    spaces.Box,
    spaces.Dict,
    spaces.Discrete,
    spaces.Graph,
    spaces.MultiBinary,
    spaces.MultiDiscrete,
    spaces.OneOf,
    spaces.Sequence,
    spaces.Tuple,
)


class GymnasiumAdapter(Adapter):
    project = "gymnasium"
    uses = frozenset({"to_text", "to_action", "drop_thinking"})

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        actions, observations = getattr(env, "action_space", None), getattr(env, "observation_space", None)
        if isinstance(actions, NOT_TEXT) and options.to_action is None:
            raise ConfigError(
                f"the actions of {self.name} are {actions}: give to_action=, a function from a turn to one of them, "
                "which raises ValueError, with what the policy is to read, where the turn holds none"
            )
        if isinstance(observations, NOT_TEXT) and options.to_text is None and not _may_be_chat(observations):
            raise ConfigError(
                f"the observations of {self.name} are {observations}: give to_text=, a function that makes a text of "
                "one"
            )

    async def reset(self, start: Start) -> Begun:
        reset = functools.partial(self.env.reset, seed=start.seed, options=dict(start.options) or None)
        observation, info = await self.threads.run(reset)
        return Begun(opened(start.messages, self.read(observation)), info=_info(info))

    async def step(self, turn: ParsedTurn) -> Stepped:
        action = self.action(turn)
        observation, reward, terminated, truncated, info = await self.threads.run(self.env.step, action)
        return Stepped(self.read(observation), reward, terminated, truncated, _info(info))


def _may_be_chat(space: Any) -> bool:
    """Whether a space may be of chat messages: a sequence, or a dict with a role."""
    return isinstance(space, spaces.Sequence | spaces.Tuple) or (
        isinstance(space, spaces.Dict) and "role" in space.spaces
    )


def _info(info: Any) -> Mapping[str, Any]:
    return info if isinstance(info, Mapping) else {}
