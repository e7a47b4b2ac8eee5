"""A tool's arguments as a JSON object between markers, the name standing before them: DeepSeek, Kimi, gpt-oss."""

from __future__ import annotations

import re

from toolgym.tools.parsers.scan import TurnBuilder, region_end, skip_space
from toolgym.tools.parsers.strict_json import read_json
from toolgym.tools.schema import CallProblem


def read_marked_json(
    text: str,
    turn: TurnBuilder,
    *,
    start: int,
    at: int,
    name: str,
    closing: re.Pattern[str],
    close: str,
    openers: tuple[str, ...],
    shape: str,
    call_id: str = "",
) -> int:
    """Read the arguments that begin at `at`, and what closes the call, into the turn.

    Args:
        text: the turn's text.
        turn: collects.
        start: where the call began, for the raw text of an error.
        at: where its arguments begin.
        name: the tool's name.
        closing: what must stand after the arguments.
        close: the marker at the end of `closing`, to go on after it where the arguments cannot be read.
        openers: markers that begin another call.
        shape: how a call is written, for the error.
        call_id: the id that the model wrote.

    Returns:
        Where to go on.
    """
    parsed = read_json(text, skip_space(text, at))
    closed = closing.match(text, parsed.end) if parsed.end != -1 else None
    problem = parsed.problem
    if parsed.end != -1 and closed is None:
        extra = text[parsed.end :].lstrip()[:40]
        problem = f"unexpected text {extra!r} after the arguments" if extra else "the text ended after the arguments"
    if not problem and not isinstance(parsed.value, dict):
        message = (
            f"The tool call is not understood: its arguments must be a JSON object, got {type(parsed.value).__name__}. "
            f"Write it as {shape}."
        )
        assert closed is not None
        turn.add_error(CallProblem.NOT_A_CALL, message, text[start : closed.end()], name, call_id)
        return closed.end()
    if not problem:
        assert closed is not None
        turn.add_call(name, parsed.value, call_id)
        return closed.end()
    if closed is not None:
        end, on = closed.end(), closed.end()
    else:
        end, has_close = region_end(text, at, close, *openers)
        on = end + len(close) if has_close else end
        if not has_close:
            message = f"The tool call was not run: its closing {close} is missing. Send the whole call again."
            turn.add_error(CallProblem.UNCLOSED_TAG, message, text[start:end], name, call_id)
            return on
    message = f"The arguments of the tool call are not valid JSON: {problem}. Write the call as {shape}."
    turn.add_error(CallProblem.MALFORMED_JSON, message, text[start:end], name, call_id)
    return on
