"""`parse_open_thinking`: any parser, for models that call their tools without closing their thinking first."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TypeVar

from toolgym.tools.parsers.base import ParsedTurn, Parser
from toolgym.tools.parsers.scan import MAX_REQUESTS
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema

Request = TypeVar("Request", ToolCall, ToolCallError)


def parse_open_thinking(
    parser: Parser,
    text: str,
    *,
    first_id: int = 0,
    schemas: Mapping[str, ToolSchema] | None = None,
    starts_open: bool = False,
) -> ParsedTurn:
    """Read a turn as `parser` does, except that a call ends thinking which never closes. Calls in thinking that closes
    stay thoughts. See `Parser` for the other arguments."""
    content, calls, errors, reasoning = parser(text, first_id=first_id, schemas=schemas, starts_open=starts_open)[1:]
    while errors and errors[-1].problem is CallProblem.OPEN_THINKING and len(calls) + len(errors) < MAX_REQUESTS:
        rest = errors[-1].raw  # from the first call in it to the end
        errors, begun = errors[:-1], len(calls) + len(errors) - 1
        more = parser(rest, first_id=first_id + begun, schemas=schemas)
        taken = {request.id for request in calls} | {request.id for request in errors}
        content = content.removesuffix(rest) + more.content
        calls = [*calls, *(_behind(call, begun, first_id, taken) for call in more.calls)]
        errors = [*errors, *(_behind(error, begun, first_id, taken) for error in more.errors)]
    return ParsedTurn(text, content, calls, errors, reasoning)


def _behind(request: Request, begun: int, first_id: int, taken: Set[str]) -> Request:
    """A call behind so many others, with another id where the model wrote one of theirs."""
    index = request.index + begun
    return replace(request, index=index, id=f"call_{first_id + index}" if request.id in taken else request.id)
