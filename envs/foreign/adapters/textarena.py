"""TextArena's games, for one player or for several: of which one is the policy, or each a role of a `RolesEnv`.

The contract: `reset(num_players=, seed=)`, `get_observation() -> (player, observation)`,
`step(action) -> (done, info)`, and at the end `close() -> (rewards by player, info by player)` (`textarena/core.py`). A
raw observation is the list of what is new to the player: `(who, text, kind)`. Games seed and draw from the global
generator of `random`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Player, Start, Stepped, WrapOptions, layers_of, name_of
from toolgym.envs.foreign.threads import EnvThreads, OwnRandom
from toolgym.envs.foreign.values import opened
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn

_RESTATES = "LLMObservationWrapper"
_GAME = -1
_OWN_ACTION = "PLAYER_ACTION"

MAX_ACTION = 4096
"""Characters of a turn that a game reads, from its end."""


class TextArenaGame:
    """One game of TextArena, whose calls run in `threads`, with random generators of their own."""

    def __init__(self, env: Any, threads: EnvThreads) -> None:
        self.env, self.threads, self.name = env, threads, name_of("textarena", env)
        self._random = OwnRandom()
        # Below the wrapper that tells all of the past at each step, which the runner keeps itself.
        self._raw = next((layer.env for layer in layers_of(env) if type(layer).__name__ == _RESTATES), env)

    async def begin(self, players: int, start: Start, advice: str) -> None:
        """Begin anew. Raises `ConfigError`, with the advice, if it is not for so many players."""
        try:
            await self._call(self.env.reset, num_players=players, seed=start.seed, **start.options)
        except AssertionError as error:  # its states assert how many play
            raise ConfigError(f"{self.name} does not begin with players={players}: {error}; {advice}") from error

    @property
    def player(self) -> int:
        """Number of the player whose turn it is."""
        return int(self.env.state.current_player_id)

    async def news(self) -> Any:
        """Return what is new to the player whose turn it is: the raw observation."""
        _, observation = await self._call(self._raw.get_observation)
        return observation

    async def all_seen(self) -> Any:
        """Return what TextArena's own agent would read."""
        _, observation = await self._call(self.env.get_observation)
        return observation

    async def act(self, action: Any) -> tuple[bool, Mapping[str, Any]]:
        """Take the action of the player whose turn it is. Returns whether the game is over, and the step's info.

        A game reads the last `MAX_ACTION` characters of a text: some search it in quadratic time, in this process.
        """
        action = action[-MAX_ACTION:] if isinstance(action, str) else action
        done, info = await self._call(self.env.step, action=action)
        return bool(done), info or {}

    async def result(self, players: Iterable[int]) -> tuple[Mapping[int, Any], Mapping[int, Mapping[str, Any]]]:
        """Return rewards and infos of a game that is over, by player. Raises `EpisodeFailedError` if there is no reward
        for one of `players`."""
        rewards, infos = await self._call(self.env.close)
        for player in players:
            if rewards is None or player not in rewards:
                raise EpisodeFailedError(
                    StopReason.ENV_FAILED, f"{self.name} is over and gave the player {player} no reward: {rewards!r}"
                )
        return rewards, infos if isinstance(infos, Mapping) else {}

    def text(self, observation: list[tuple[int, str, Any]], player: int) -> str:
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


class TextArenaAdapter(Adapter):
    """TextArena's games. The policy reads what is new to it; the opponents read what TextArena's own agents would."""

    project = "textarena"
    drops_thinking = True
    uses = frozenset({"to_text", "to_action", "drop_thinking", "players", "player", "opponents"})

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        self._game = TextArenaGame(env, threads)
        self._others = options.others

    async def reset(self, start: Start) -> Begun:
        advice = "give players=, and opponents=, who play the others"
        await self._game.begin(self.options.players, start, advice)
        done = await self._play_others()
        if done:
            raise EpisodeFailedError(StopReason.RESET_FAILED, f"{self.name} was over before the policy's first turn")
        return Begun(opened(start.messages, await self._observe()))

    async def step(self, turn: ParsedTurn) -> Stepped:
        done, info = await self._game.act(self.action(turn))
        if not done and self._others:
            done = await self._play_others()
        if not done:
            return Stepped(await self._observe(), 0.0, info=info)
        player = self.options.player
        rewards, infos = await self._game.result([player])
        return Stepped([], rewards[player], True, False, infos.get(player, {}))

    async def close(self) -> None:
        """Nothing: `close` of TextArena gives a game's rewards, and was called when the game was over."""

    async def _play_others(self) -> bool:
        """Let the opponents play until it is the policy's turn. Returns whether the game is over."""
        while (player := self._game.player) != self.options.player:
            observation = await self._game.all_seen()
            if player not in self._others:
                raise ConfigError(f"{self.name} wants a move of player {player}, and there is no opponent for it")
            text = observation if isinstance(observation, str) else self._game.text(observation, player)
            done, _ = await self._game.act(await self._move(self._others[player], text))
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
        observation = await self._game.news()
        if self.options.to_text is None and isinstance(observation, list):
            observation = self._game.text(observation, self.options.player)
        return self.read(observation)
