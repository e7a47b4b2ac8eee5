"""`textarena_env`: a game of TextArena for one player, by TextArena's id of it."""

from __future__ import annotations

from typing import Any

from toolgym.envs.families.textarena.ids import GAMES
from toolgym.envs.foreign.env import ForeignEnv, wrap
from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.lazy import missing_extra


def textarena_env(game: str, **wrap_kwargs: Any) -> ForeignEnv:
    """Return the env of a game; `wrap_kwargs` are arguments of `toolgym.envs.wrap`, such as `max_turns`.

    Raises UnknownNameError, with the nearest name, if `game` is none of `GAMES`, or there is no such argument; and
    MissingExtraError if TextArena is not installed.
    """
    if game not in GAMES:
        raise UnknownNameError(
            f"toolgym has no TextArena game {game!r}{nearest(str(game), GAMES)}; "
            "`toolgym.envs.wrap(lambda: textarena.make(...))` takes any"
        )
    try:
        import textarena
    except ImportError as error:
        raise missing_extra("textarena", f"The TextArena game {game!r}", error) from error
    return wrap(lambda: textarena.make(game), project="textarena", **wrap_kwargs)
