"""The contract of an adapter, one object of a foreign project as episodes of messages; and the options of `wrap`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import messages_of
from toolgym.envs.result_text import check_cut
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import MAX_RESULT_CHARS
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ConfigError, ToolgymError, check_seconds, require_whole_number
from toolgym.tools.keywords import named_fields
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn, Parser, get_parser
from toolgym.tools.schema import ToolCall, ToolSchema

Player = Callable[[str], str | Awaitable[str]]
"""From a player's view of the game, as text, to its move. It may be async."""


@named_fields
@dataclass(frozen=True, kw_only=True)
class WrapOptions:
    """The options of `wrap`. Each project uses some of those from `to_text` on, and refuses the others.

    Attributes:
        tasks: where tasks come from; None: each is a seed (`SeedTasks`). Of a task, the env's `reset` gets
            `extra_info["seed"]` and `extra_info["reset"]`, further arguments by name. The task's messages come before
            the env's first observation.
        system_prompt: comes before everything else.
        max_turns: turns until the episode is cut; None: as many as the env and the budgets of the runner allow.
        max_obs_chars: characters that may remain of one message of the env, the middle being left out. None: all.
        timeout: wall seconds for one `reset` or `step`, or for making the env. A thread that overran is left behind.
        queue_timeout: wall seconds that one of them may wait for a free thread (`TOOLGYM_BLOCKING_THREADS`).
        own_thread: run all functions of the env in one thread of its own, for libraries that are bound to one.
        parser: for actions that are text: how tool calls are written, as in `ToolEnv`.
        project: the project whose contract the object keeps, by its import name; None: that of its classes.
        to_text: from an observation to a text or messages, if it is neither.
        to_action: from a turn to an action, if it is no text. The policy reads the text of a `ValueError`.
        drop_thinking: leave thinking out of the text that the env gets. None: as the project needs it; TextArena shows
            the text to the other players, so it gets no thinking, and the other projects get it.
        players: TextArena: how many play.
        player: TextArena: which of them is the policy, counted from 0.
        opponents: TextArena: from what a player reads to its move; or one for each other player, by number. May be
            async.
        write_call: skyrl-gym: from a tool call to the text by which the env reads it; with it, the policy sees the
            tools of the env's tool groups.
        action_type: OpenEnv: the type of actions, if the env's class does not say: a class, a `ToolSchema` (actions are
            then dicts), or several.

    Raises:
        ConfigError: a value is of the wrong kind or out of range.
        UnknownNameError: there is no such parser or option; names the nearest one.
    """

    tasks: TaskSource | Sequence[Task] | None = None
    system_prompt: str | None = None
    max_turns: int | None = None
    max_obs_chars: int | None = MAX_RESULT_CHARS
    timeout: float = 120.0
    queue_timeout: float = 600.0
    own_thread: bool = False
    parser: str | Parser = "hermes"
    project: str | None = None
    to_text: Callable[[Any], str | Sequence[Message]] | None = None
    to_action: Callable[[ParsedTurn], Any] | None = None
    drop_thinking: bool | None = None
    players: int = 1
    player: int = 0
    opponents: Player | Mapping[int, Player] | None = None
    write_call: Callable[[ToolCall], str] | None = None
    action_type: type | ToolSchema | Sequence[type | ToolSchema] | None = None

    def __post_init__(self) -> None:
        if self.max_turns is not None:
            require_whole_number("max_turns", self.max_turns, at_least=1)
        check_cut("max_obs_chars", 1 if self.max_obs_chars is None else self.max_obs_chars, "middle")
        check_seconds(timeout=self.timeout, queue_timeout=self.queue_timeout)
        if not isinstance(self.system_prompt, str | None):
            raise ConfigError(f"system_prompt must be a text, got {self.system_prompt!r}")
        if not isinstance(self.parser, str) and not callable(self.parser):
            raise ConfigError(f"parser must be a parser's name or a function, got {self.parser!r}")
        _ = self.parse
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
    def parse(self) -> Parser:
        return get_parser(self.parser) if isinstance(self.parser, str) else self.parser

    @property
    def others(self) -> dict[int, Player]:
        """The moves of each of the other players of a game. Raises ConfigError: nothing plays one of them."""
        others = [number for number in range(self.players) if number != self.player]
        opponents: dict[int, Any] = (
            dict(self.opponents) if isinstance(self.opponents, Mapping) else dict.fromkeys(others, self.opponents)
        )
        for number in others:
            if not callable(opponents.get(number)):
                raise ConfigError(
                    f"the policy plays player {self.player} of {self.players}, and nothing plays player {number}: give "
                    "opponents=, a function from what a player reads to its move, or a dict of one for each player"
                )
        return {number: opponents[number] for number in others}

    def require_only(self, names: frozenset[str], project: str) -> None:
        """Raise ConfigError for an option that is set and that a project does not use."""
        every = [field.name for field in fields(self)]
        for name in every[every.index("to_text") :]:
            if name not in names and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(
                    f"{name} means nothing to an env of {project}; it uses: {', '.join(sorted(names)) or 'none'}"
                )


class InvalidActionError(ToolgymError, ValueError):
    """The policy wrote no action of the env. It reads this error's text."""


class Start(NamedTuple):
    """The task's messages, none for a seed; a seed below 2**32, NumPy's limit; options for the env's own `reset`."""

    messages: Sequence[Message]
    seed: int
    options: Mapping[str, Any]


class Begun(NamedTuple):
    """An env's answer to a reset, with the env's own info."""

    messages: list[Message]
    tools: Sequence[ToolSchema] = ()
    info: Mapping[str, Any] = {}


class Stepped(NamedTuple):
    """An env's answer to a turn: flags and reward as the env gave them, a message of the role `tool` for each call.

    `stop_reason` is why it is over, if the env says more than the two flags.
    """

    messages: list[Message]
    reward: Any
    terminated: Any = False
    truncated: Any = False
    info: Mapping[str, Any] = {}
    stop_reason: StopReason | None = None
    failed_calls: frozenset[str] = frozenset()


def layers_of(env: Any) -> list[Any]:
    """Return the env and, if it is a wrapper, the ones inside of it, outermost first."""
    layers = [env]
    while (inside := getattr(layers[-1], "__dict__", {}).get("env")) is not None:
        layers.append(inside)
    return layers


def name_of(project: str, env: Any) -> str:
    """Return the name of a project's object in errors."""
    return f"{project}'s {type(layers_of(env)[-1]).__name__}"


def text_of_turn(turn: ParsedTurn, *, drop_thinking: bool) -> str:
    """Return the text of a turn as generated, or without its thinking."""
    return turn.without_thinking().text.strip() if drop_thinking else turn.text


class Adapter(ABC):
    """One object of a foreign project. A subclass knows the project's contract, and nothing of toolgym's episodes.

    An exception ends the episode as the env's failure, but for `InvalidActionError`.

    Attributes:
        project: the project's name in errors.
        uses: the names of those of `WrapOptions` that it uses.
        drops_thinking: the default of `WrapOptions.drop_thinking`: true if other models read what the policy wrote.
        one_episode: whether an object plays one episode, so that each needs a new one.
        max_calls: tool calls of one turn that the env takes; None: any number.
    """

    project: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    drops_thinking: ClassVar[bool] = False
    one_episode: ClassVar[bool] = False
    max_calls: ClassVar[int | None] = None

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        options.require_only(self.uses, self.project)
        self.env, self.options, self.threads = env, options, threads

    @property
    def name(self) -> str:
        return name_of(self.project, self.env)

    @abstractmethod
    async def reset(self, start: Start) -> Begun:
        """Begin an episode, ending the one before."""

    @abstractmethod
    async def step(self, turn: ParsedTurn) -> Stepped:
        """Take one turn; `turn.calls` have been checked against the tools."""

    async def close(self) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            await self.threads.close(close)

    def said(self, turn: ParsedTurn) -> str:
        """Return the text of a turn for an env that reads texts."""
        drop = self.options.drop_thinking
        return text_of_turn(turn, drop_thinking=self.drops_thinking if drop is None else drop)

    def action(self, turn: ParsedTurn) -> Any:
        """Return the result of `to_action`, or the turn's text. Raises InvalidActionError: the turn is no action."""
        if self.options.to_action is None:
            return self.said(turn)
        try:
            return self.options.to_action(turn)
        except ValueError as error:
            raise InvalidActionError(str(error)) from error

    def read(self, observation: Any) -> list[Message]:
        return messages_of(observation, self.name, self.options.to_text)
