"""`TextArenaPlayers`: a game of TextArena, each player of which is a role with a policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgym.envs.foreign.adapters.textarena import TextArenaGame
from toolgym.envs.foreign.base import Start, text_of_turn
from toolgym.envs.foreign.env import NO_OBSERVATION
from toolgym.envs.foreign.seeds import SeedTasks, start_of
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import led_by, messages_of, metrics_of, number_of, opened
from toolgym.envs.roles.base import RolesEnv, RolesStep
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.message import user
from toolgym.tools.parsers.base import ParsedTurn


class TextArenaPlayers(RolesEnv):
    """A game of TextArena whose players are the roles `player-0`, `player-1` and so on, by TextArena's numbers.

    A player reads what is new to it when it is its turn, without its own moves; an action is the text of a turn. The
    rewards are the game's, at its end. A player that a limit cuts loses: -1, and 0 for the others.

    Args:
        make: makes the game, in a thread, when the first episode begins: `lambda: textarena.make("TicTacToe-v0")`.
        players: how many play.
        tasks: where tasks come from, see `toolgym.envs.wrap`: of a task, `extra_info` has the game's seed and further
            arguments of its `reset`, and each player reads the messages first. None: each task is a seed.
        system_prompt: what each player reads before everything else.
        drop_thinking: leave thinking out of the text that the game gets, and shows to the other players.
        max_turns: most turns of one player.

    Raises:
        ConfigError: an argument is of the wrong kind; at the first episode also if the game is not for so many players.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        players: int = 2,
        tasks: TaskSource | Sequence[Task] | None = None,
        system_prompt: str | None = None,
        drop_thinking: bool = True,
        max_turns: int = 64,
    ) -> None:
        require_whole_number("players", players, at_least=1)
        require_whole_number("max_turns", max_turns, at_least=1)
        if not callable(make):
            raise ConfigError(f"make must be a function that makes a game of TextArena, got {make!r}")
        if not isinstance(system_prompt, str | None):
            raise ConfigError(f"system_prompt must be a text, got {system_prompt!r}")
        self.roles = tuple(f"player-{number}" for number in range(players))
        self.tasks = SeedTasks() if tasks is None else tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        self.max_turns = max_turns
        self._make, self._system_prompt, self.hears_thinking = make, system_prompt, not drop_thinking
        self._threads = EnvThreads("a game of TextArena")
        self._game: TextArenaGame | None = None
        self._rng = random.Random()
        self._start = Start((), 0, {})
        self._greeted: set[str] = set()

    async def begin(self, task: Task, *, seed: int | None) -> RolesStep:
        if self._game is None:
            self._game = TextArenaGame(await self._threads.run(self._make), self._threads)
            self._threads.name = self._game.name
        self._start, self._greeted = start_of(task, seed, self._rng, {}), set()
        await self._game.begin(len(self.roles), self._start, "give players=, as many as the game is for")
        return await self._asks(self._game)

    async def act(self, turns: Mapping[str, ParsedTurn]) -> RolesStep:
        game = self._game
        assert game is not None
        [turn] = turns.values()
        done, _ = await game.act(text_of_turn(turn, drop_thinking=not self.hears_thinking))
        if not done:
            return await self._asks(game)
        rewards, infos = await game.result(range(len(self.roles)))
        metrics = {
            name.replace("env/", f"env/{role}/", 1): value
            for number, role in enumerate(self.roles)
            for name, value in metrics_of(infos.get(number, {})).items()
        }
        return RolesStep(
            (),
            rewards={role: number_of(rewards[number], game.name) for number, role in enumerate(self.roles)},
            info={"metrics": metrics},
        )

    async def forfeit(self, role: str, reason: StopReason) -> RolesStep:
        return RolesStep((), rewards={role: -1.0})

    async def close(self) -> None:
        self._threads.end()

    async def _asks(self, game: TextArenaGame) -> RolesStep:
        """Return the step that asks the player whose turn it is."""
        number = game.player
        role, news = self.roles[number], await game.news()
        messages = messages_of(game.text(news, number) if isinstance(news, list) else news, game.name)
        if role not in self._greeted:
            self._greeted.add(role)
            messages = led_by(self._system_prompt, opened(self._start.messages, messages))
        return RolesStep(role, {role: messages or [user(NO_OBSERVATION)]})
