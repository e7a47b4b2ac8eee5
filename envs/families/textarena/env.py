"""`textarena_env` and `textarena_players`: a game of TextArena, by TextArena's id of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from toolgym.envs.families.textarena.ids import GAMES, PLAYERS
from toolgym.envs.families.textarena.players import TextArenaPlayers
from toolgym.envs.foreign.env import ForeignEnv, wrap
from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.lazy import missing_extra


def textarena_env(game: str, **wrap_kwargs: Any) -> ForeignEnv:
    """Return the env of a game; `wrap_kwargs` are arguments of `toolgym.envs.wrap`, such as `max_turns`.

    Raises UnknownNameError, with the nearest name, if `game` is none of `GAMES`, or there is no such argument; and
    MissingExtraError if TextArena is not installed.
    """
    make = _maker(game, GAMES, "`toolgym.envs.wrap(lambda: textarena.make(...))` takes any")
    return wrap(make, project="textarena", **wrap_kwargs)


def textarena_players(game: str, *, players: int | None = None, **kwargs: Any) -> TextArenaPlayers:
    """Return the env of a game for several players, each of which is a role; `kwargs` are arguments of
    `TextArenaPlayers`. None for `players`: as many as the game needs. Raises as `textarena_env` does."""
    make = _maker(game, PLAYERS, "`TextArenaPlayers(lambda: textarena.make(...), players=2)` takes any")
    return TextArenaPlayers(make, players=PLAYERS[game] if players is None else players, **kwargs)


def _maker(game: str, games: Iterable[str], advice: str) -> Callable[[], Any]:
    if game not in games:
        raise UnknownNameError(f"toolgym has no TextArena game {game!r}{nearest(str(game), games)}; {advice}")
    try:
        import textarena
    except ImportError as error:
        raise missing_extra("textarena", f"The TextArena game {game!r}", error) from error
    return partial(textarena.make, game)
