"""TextArena's games, for one player or for several of which one is the policy.

The contract: `reset(num_players=, seed=)`, `get_observation() -> (player, observation)`,
`step(action) -> (done, info)`, and at the end `close() -> (rewards by player, info by player)` (`textarena/core.py`). A
raw observation is the list of what is new to the player: `(who, text, kind)`. Games seed and draw from the global
generator of `random`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Player, Start, Stepped, WrapOptions, layers_of
from toolgym.envs.foreign.threads import EnvThreads, OwnRandom
from toolgym.envs.foreign.values import opened
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn

_RESTATES = "LLMObservationWrapper"
_GAME = -1
_OWN_ACTION = "PLAYER_ACTION"


class TextArenaAdapter(Adapter):
    """TextArena's games. The policy reads what is new to it; the opponents read what TextArena's own agents would."""

    project = "textarena"
    uses = frozenset({"to_text", "to_action", "drop_thinking", "players", "player", "opponents"})

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        self._random = OwnRandom()
        # Below the wrapper that tells all of the past at each step, which the runner keeps itself.
        self._raw = next((layer.env for layer in layers_of(env) if type(layer).__name__ == _RESTATES), env)
        self._others = options.others

    async def reset(self, start: Start) -> Begun:
        players = self.options.players
        try:
            await self._call(self.env.reset, num_players=players, seed=start.seed, **start.options)
        except AssertionError as error:  # its states assert how many play
            raise ConfigError(
                f"{self.name} does not begin with players={players}: {error}; give players=, and opponents=, who play "
                "the others"
            ) from error
        done = await self._play_others()
        if done:
            raise EpisodeFailedError(StopReason.RESET_FAILED, f"{self.name} was over before the policy's first turn")
        return Begun(opened(start.messages, await self._observe()))

    async def step(self, turn: ParsedTurn) -> Stepped:
        action = self.action(turn)
        done, info = await self._call(self.env.step, action=action)
        if not done and self._others:
            done = await self._play_others()
        if not done:
            return Stepped(await self._observe(), 0.0, info=info or {})
        rewards, infos = await self._call(self.env.close)
        if rewards is None or self.options.player not in rewards:
            raise EpisodeFailedError(
                StopReason.ENV_FAILED,
                f"{self.name} is over and gave the player {self.options.player} no reward: {rewards!r}",
            )
        info = infos.get(self.options.player, {}) if isinstance(infos, Mapping) else {}
        return Stepped([], rewards[self.options.player], True, False, info)

    async def close(self) -> None:
        """Nothing: `close` of TextArena gives a game's rewards, and was called when the game was over."""

    async def _play_others(self) -> bool:
        """Let the opponents play until it is the policy's turn. Returns whether the game is over."""
        while (player := self.env.state.current_player_id) != self.options.player:
            _, observation = await self._call(self.env.get_observation)
            if player not in self._others:
                raise ConfigError(f"{self.name} wants a move of player {player}, and there is no opponent for it")
            text = observation if isinstance(observation, str) else self._text(observation, player)
            move = await self._move(self._others[player], text)
            done, _ = await self._call(self.env.step, action=move)
            if done:
                return True
        return False

    async def _move(self, opponent: Player, text: str) -> str:
        call = getattr(opponent, "__call__", opponent)  # noqa: B004  an agent is an object whose `__call__` may be async
        if inspect.iscoroutinefunction(opponent) or inspect.iscoroutinefunction(call):
            move = await opponent(text)  # type: ignore[misc]
        else:
            move = await self.threads.run(opponent, text)
            if inspect.isawaitable(move):
                move = await move
        if not isinstance(move, str):
            raise ConfigError(f"an opponent of {self.name} must return a text, got {move!r}")
        return move

    async def _observe(self) -> list[Message]:
        _, observation = await self._call(self._raw.get_observation)
        if self.options.to_text is None and isinstance(observation, list):
            observation = self._text(observation, self.options.player)
        return self.read(observation)

    def _text(self, observation: list[tuple[int, str, Any]], player: int) -> str:
        """New text, without the player's own actions: they are turns of the conversation already."""
        names = self.env.state.role_mapping
        lines = []
        for who, text, kind in observation:
            if who == player and getattr(kind, "name", "") == _OWN_ACTION:
                continue
            lines.append(f"[{'GAME' if who == _GAME else names.get(who, f'Player {who}')}] {text}")
        return "\n".join(lines)

    async def _call(self, function: Any, **arguments: Any) -> Any:
        return await self.threads.run(self._random.run, function, **arguments)
