"""The formats of Mistral models: a list of objects, or since 2025 name and arguments after a marker per call.

    [TOOL_CALLS] [{"name": "code_interpreter", "arguments": {"code": "print(1)"}, "id": "call00000"}]
    [TOOL_CALLS]code_interpreter[ARGS]{"code": "print(1)"}[TOOL_CALLS]...

Decisions, each with a test:

* In the new form `[ARGS]` may be absent, as models between the two write it, and `[CALL_ID]abc123def` may stand before.
* Nothing closes a call but the end of its JSON; text after it is content.
* Ids have nine letters or digits, which the chat templates insist on. The one that the model wrote is kept.
* Thinking stands between `[THINK]` and `[/THINK]`, or `<think>` tags.
* `[ARGS]` before an object and `[CALL_ID]` outside of a call are errors, since the marker may be misspelt.
* A list without a call is an error. A malformed entry of a list keeps its place among the good ones.
"""

from __future__ import annotations

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import THINKING, TurnBuilder, add_stray, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import Json, add_named_call, add_object_call, read_json
from toolgym.tools.schema import CallProblem

OPEN = "[TOOL_CALLS]"
SHAPE_LIST = f'{OPEN} [{{"name": "tool", "arguments": {{...}}}}]'
SHAPE_NAMED = f"{OPEN}tool[ARGS]{{...}}"

_NAMED = re.compile(r"([^\s\[\]{}<>\"',;]++)\s*(?:\[CALL_ID\]\s*([^\s\[\]{}]++)\s*)?(?:\[ARGS\]\s*|(?=\{))")
_ID = re.compile(r"[A-Za-z0-9]{9}")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    if mark.group() != OPEN:
        return add_stray(turn, text, mark, OPEN, "", SHAPE_NAMED)
    at = skip_space(text, mark.end())
    if text.startswith("[", at):
        return _read_list(text, mark, at, turn)
    named = _NAMED.match(text, at)
    if named is None:
        end, _ = region_end(text, at, OPEN)
        why, hint = f"got {text[at : at + 40]!r} after {OPEN}", f"Write it as {SHAPE_NAMED} or {SHAPE_LIST}."
        turn.add_misread(why, hint, text[mark.start() : end])
        return end
    parsed = read_json(text, named.end())
    if parsed.problem:
        return _not_json(text, mark, named.end(), parsed, turn, SHAPE_NAMED, named[1])
    call_id = named[2] or ""
    call_id = call_id if _ID.fullmatch(call_id) and isinstance(parsed.value, dict) else ""
    add_named_call(turn, named[1], parsed, text[mark.start() : parsed.end], SHAPE_NAMED, call_id)
    return parsed.end


def _read_list(text: str, mark: re.Match[str], at: int, turn: TurnBuilder) -> int:
    parsed = read_json(text, at)
    if parsed.problem:
        return _not_json(text, mark, at, parsed, turn, SHAPE_LIST)
    raw = text[at : parsed.end]
    if not parsed.value:
        why, hint = f"the list after {OPEN} is empty", f"Write it as {SHAPE_LIST}."
        turn.add_misread(why, hint, raw, problem=CallProblem.NOT_A_CALL)
    for call in parsed.value:
        if turn.full:
            turn.add_overflow_error(raw)
            break
        wanted = call.get("id") if isinstance(call, dict) else None
        call_id = wanted if isinstance(wanted, str) and _ID.fullmatch(wanted) else ""
        add_object_call(turn, call, raw, keys=("arguments",), shape=SHAPE_LIST, call_id=call_id)
    return parsed.end


def _not_json(
    text: str, mark: re.Match[str], at: int, parsed: Json, turn: TurnBuilder, shape: str, name: str = ""
) -> int:
    end = parsed.end if parsed.end != -1 else region_end(text, at, OPEN)[0]
    turn.add_not_json(parsed.problem, shape, text[mark.start() : end], name)
    return end


parse_mistral: Parser = functools.partial(
    scan,
    opener=rf"{re.escape(OPEN)}|\[ARGS\](?=\s*\{{)|\[CALL_ID\]",
    read=_read,
    thinking=(("[THINK]", "[/THINK]"), *THINKING),
    openings=(OPEN,),
    call_id=lambda number: f"call{number % 100_000:05d}",
)
