"""What every tool-call parser returns, and how one is found by name."""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol

from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.schema import ToolCall, ToolCallError


class ParsedTurn(NamedTuple):
    """One assistant turn, read.

    Attributes:
        content: the text outside of calls, as written.
        calls: the well-formed calls.
        errors: the malformed ones. `index` orders calls and errors together.
    """

    content: str
    calls: list[ToolCall]
    errors: list[ToolCallError]


class Parser(Protocol):
    """A pure function from a turn's text, without its end-of-turn token, to what it asks for."""

    def __call__(self, text: str, *, first_id: int = 0) -> ParsedTurn:
        """Parse.

        Args:
            text: what the model generated.
            first_id: number in the id of the first call; ids are `call_N`, counted over the episode.
        """
        ...


_PARSERS = {
    "hermes": "toolgym.tools.parsers.hermes:parse_hermes",
    "qwen": "toolgym.tools.parsers.hermes:parse_hermes",
}


def get_parser(name: str) -> Parser:
    """The parser of that name: `hermes` (also called `qwen`).

    Raises:
        UnknownNameError: there is none.
    """
    if name not in _PARSERS:
        raise UnknownNameError(
            f"no tool-call parser {name!r}{nearest(name, _PARSERS) or '.'} Known: {', '.join(_PARSERS)}."
        )
    module, _, attribute = _PARSERS[name].partition(":")
    parser: Parser = getattr(importlib.import_module(module), attribute)
    return parser
