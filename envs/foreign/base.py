"""The contract of an adapter: one object of a foreign project as episodes of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from toolgym.envs.foreign.options import WrapOptions
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import messages_of
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ToolgymError
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn, split_reasoning
from toolgym.tools.schema import ToolSchema


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


class Adapter(ABC):
    """One object of a foreign project. A subclass knows the project's contract, and nothing of toolgym's episodes.

    An exception ends the episode as the env's failure, but for `InvalidActionError`.

    Attributes:
        project: the project's name in errors.
        uses: the names of those of `WrapOptions` that it uses.
        one_episode: whether an object plays one episode, so that each needs a new one.
        max_calls: tool calls of one turn that the env takes; None: any number.
    """

    project: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    one_episode: ClassVar[bool] = False
    max_calls: ClassVar[int | None] = None

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        options.require_only(self.uses, self.project)
        self.env, self.options, self.threads = env, options, threads

    @property
    def name(self) -> str:
        return f"{self.project}'s {type(layers_of(self.env)[-1]).__name__}"

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
        if not self.options.drop_thinking:
            return turn.text
        return split_reasoning(turn.text, starts_open="</think>" in turn.text)[1].strip()

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
