"""`WrapOptions`: what a user can say about a foreign env."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall, ToolSchema

Player = Callable[[str], str | Awaitable[str]]
"""From what a player of a game sees, as text, to its move. It may be async."""


@dataclass(frozen=True, kw_only=True)
class WrapOptions:
    """What a user can say about a foreign env; see `wrap`. Each project uses some of them, and refuses the others."""

    to_text: Callable[[Any], str | Sequence[Message]] | None = None
    to_action: Callable[[ParsedTurn], Any] | None = None
    drop_thinking: bool = False
    players: int = 1
    player: int = 0
    opponents: Player | Mapping[int, Player] | None = None
    write_call: Callable[[ToolCall], str] | None = None
    action_type: type | ToolSchema | Sequence[type | ToolSchema] | None = None

    def __post_init__(self) -> None:
        for name in ("to_text", "to_action", "write_call"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigError(f"{name} must be a function, got {value!r}")
        require_whole_number("players", self.players, at_least=1)
        require_whole_number("player", self.player, at_least=0)
        if self.player >= self.players:
            raise ConfigError(f"player must be one of the {self.players} players, counted from 0, got {self.player}")
        _ = self.others

    @property
    def others(self) -> dict[int, Player]:
        """What plays each of the other players of a game.

        Raises:
            ConfigError: nothing plays one of them.
        """
        others = [number for number in range(self.players) if number != self.player]
        found: dict[int, Any] = (
            dict(self.opponents) if isinstance(self.opponents, Mapping) else dict.fromkeys(others, self.opponents)
        )
        for number in others:
            if not callable(found.get(number)):
                raise ConfigError(
                    f"the policy plays player {self.player} of {self.players}, and nothing plays player {number}: give "
                    "opponents=, a function from what a player reads to its move, or a dict of one for each player"
                )
        return {number: found[number] for number in others}

    def require_only(self, names: frozenset[str], project: str) -> None:
        """Check that no option is set that a project does not use.

        Raises:
            ConfigError: one is; names it.
        """
        for field in fields(self):
            if field.name not in names and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"{field.name} means nothing to an env of {project}; it uses: {', '.join(sorted(names)) or 'none'}"
                )
