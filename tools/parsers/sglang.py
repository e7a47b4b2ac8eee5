"""SGLang's own tool-call parsers behind our contract: `get_parser("sglang:qwen25")`.

For formats that toolgym has no parser for, and to train with exactly what a server does. They differ from ours:

* They skip malformed calls without a word. Only a turn that has a call's marks and no readable call at all becomes an
  error that the model reads; a malformed call beside a good one is lost.
* Most end a call at the first closing tag, even inside of a string or value, take arguments that were cut or written
  twice, guess names and types, keep no text after the first call, and see calls that follow from any mention of their
  marks.
* They need the tools' schemas, which `ToolEnv` gives.

A server parses reasoning before it looks for calls, so thinking is split off here as well, between the tags of any
known model (`toolgym.tools.message.THINKING_TAGS`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import THINKING_TAGS
from toolgym.tools.parsers.base import ParsedTurn, Parser, split_reasoning
from toolgym.tools.parsers.scan import TurnBuilder
from toolgym.tools.parsers.strict_json import read_whole_json
from toolgym.tools.schema import CallProblem, ToolSchema


def sglang_parser(name: str) -> Parser:
    try:
        protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
        detectors = importlib.import_module("sglang.srt.function_call.function_call_parser")
    except ImportError as error:
        raise missing_extra("sglang", f"The tool-call parser 'sglang:{name}'", error) from error
    parser: Any = detectors.FunctionCallParser
    known = sorted(parser.ToolCallParserEnum)
    if name not in known:
        raise UnknownNameError(
            f"SGLang has no tool-call parser {name!r}{nearest(name, known) or '.'} It has: {', '.join(known)}."
        )
    tool = protocol.Tool(
        type="function", function=protocol.Function(name="tool", parameters={"type": "object", "properties": {}})
    )
    try:
        parser([tool], name)
    except Exception as error:
        raise ConfigError(f"SGLang's parser {name!r} cannot be used from its name alone: {error}") from error
    return functools.partial(_parse, name, parser, protocol)


def _parse(
    name: str,
    new_parser: Any,
    protocol: Any,
    text: str,
    *,
    first_id: int = 0,
    schemas: Mapping[str, ToolSchema] | None = None,
    starts_open: bool = False,
) -> ParsedTurn:
    if not schemas:
        raise ConfigError(f"SGLang's parser {name!r} needs the tools: pass schemas=")
    functions = (
        protocol.Function(name=schema.name, description=schema.description, parameters=dict(schema.parameters))
        for schema in schemas.values()
    )
    tools = [protocol.Tool(type="function", function=function) for function in functions]
    turn = TurnBuilder(first_id)
    parser = new_parser(tools, name)  # detectors keep state: one for each turn
    opens, closes = _thinking_tags(text, starts_open)
    reasoning, rest = split_reasoning(text, open_tag=opens, close_tag=closes, starts_open=starts_open)
    turn.add_content(text[: len(text) - len(rest)])
    turn.open_thinking = reasoning is not None and closes not in text
    marked = parser.has_tool_call(rest)
    try:
        content, items = parser.parse_non_stream(rest)
    except Exception as error:  # noqa: BLE001  a detector that fails on a text has not read it
        content, items, marked = rest, [], True
        why = f"{type(error).__name__}: {error}"
    else:
        why = "no call in it could be read"
    for item in items:
        _add(turn, item)
    if items or not marked:
        turn.add_content(content)
    else:
        names = ", ".join(schemas)
        hint = f"Write it as your instructions say, with valid arguments for one of the tools: {names}."
        turn.add_misread(why, hint, rest)
    if reasoning is not None and not rest and parser.has_tool_call(reasoning):
        message = "The tool call was not run: it stands inside your thinking. Close your thinking first."
        turn.add_error(CallProblem.OPEN_THINKING, message, reasoning)
    return turn.parsed(text)


def _thinking_tags(text: str, starts_open: bool) -> tuple[str, str]:
    """Return the tags of the thinking that a turn begins with. If the prompt opened it, the first closing tag tells."""
    if not starts_open:
        start = text.lstrip()
        return next((tags for tags in THINKING_TAGS if start.startswith(tags[0])), THINKING_TAGS[0])
    closed = [(at, tags) for tags in THINKING_TAGS if (at := text.find(tags[1])) != -1]
    return min(closed)[1] if closed else THINKING_TAGS[0]


def _add(turn: TurnBuilder, item: Any) -> None:
    arguments, _, problem = read_whole_json(item.parameters)
    if isinstance(arguments, dict):
        turn.add_call(item.name or "", arguments)
    else:
        why = problem or f"got {type(arguments).__name__}"
        message = f"The arguments of the tool call must be a JSON object: {why}."
        turn.add_error(CallProblem.MALFORMED_JSON, message, item.parameters, item.name or "")
