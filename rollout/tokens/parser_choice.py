"""Choose the parser that reads back what a chat template writes.

A template shows the policy its own earlier calls, so it writes them as its model does. The template renders turns with
known calls under its own prompt, and a parser is right if it gives back exactly these calls and the text before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, EndOfTurn, shared_beginning
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.tools.errors import TemplateError, shorten
from toolgym.tools.message import Message, assistant, tool_call, user
from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.registry import get_parser, own_parsers, parser_for_template
from toolgym.tools.schema import ToolSchema

Arguments = dict[str, Any]
CallId = Callable[[str, int], str]

_CALL_IDS: tuple[CallId, ...] = (lambda name, at: PROBE_IDS[at], "functions.{}:{}".format)
"""Ids of the probes' calls. Templates of Kimi write the id in place of the name, and expect the name in it."""

_PARTIAL_TAG = re.compile(r"[<\[][^\s<>\[\]]*\Z")

SPOKEN = "I will look it up."

PROBE_TOOL = ToolSchema(
    "probe_tool",
    "Probe it.",
    {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "more": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "nothing": {"type": "null"},
            "items": {"type": "array"},
            "options": {"type": "object"},
        },
    },
)

_OTHER_TOOL = ToolSchema("second_tool", "Probe it, too.", PROBE_TOOL.parameters)
_SCHEMAS = {tool.name: tool for tool in (PROBE_TOOL, _OTHER_TOOL)}


class ProbeTurn(NamedTuple):
    """A turn whose content and calls are known. `required` ones decide whether a parser is right at all; the others
    name values that a template cannot write, such as quotes in a string that it does not escape."""

    name: str
    calls: tuple[tuple[str, Arguments], ...]
    content: str = ""
    required: bool = False

    def message(self, call_id: CallId) -> Message:
        """The turn as an assistant message."""
        calls = [tool_call(name, arguments, id=call_id(name, at)) for at, (name, arguments) in enumerate(self.calls)]
        return assistant(self.content, calls)


def _one(name: str, arguments: Arguments, **rules: Any) -> ProbeTurn:
    return ProbeTurn(name, ((PROBE_TOOL.name, arguments),), **rules)


_WORDS: Arguments = {"word": "red fox", "more": "den"}
PROBES = (
    _one("a call", _WORDS, required=True),
    _one("text before a call", {"word": "fox"}, content=SPOKEN, required=True),
    ProbeTurn("several calls", ((PROBE_TOOL.name, {"word": "fox"}), (_OTHER_TOOL.name, {"more": "hare"}))),
    _one("no arguments", {}),
    _one("numbers", {"count": -3, "ratio": 2.5}),
    _one("booleans", {"flag": True}),
    _one("null", {"nothing": None}),
    _one("lists", {"items": ["a", 1, True]}),
    _one("objects", {"options": {"depth": {"most": 3}, "names": ["a", "b"]}}),
    _one("line breaks", {"word": "def f(x):\n    return x\n\n# end", "more": "den"}),
    _one("quotes", {"word": 'say "hi", it\'s \\n', "more": "den"}),
    _one("tags", {"word": "<b>bold</b> & <br/>", "more": "den"}),
    _one("unicode", {"word": "naïve ☃ 🦊 日本語", "more": "den"}),
    _one("text that looks like a number", {"word": "5", "count": 5}),
)


@dataclass(frozen=True)
class ParserProof:
    """The parser of a template, and what was proven about it.

    Attributes:
        name: the parser's name, `derived` for one that was built from the template, empty if there is none.
        parser: the parser, None if no parser reads back the calls that the template renders.
        proven: whether rendered calls were read back. False if the template renders no calls: the parser is then the
            one whose marks stand in the template.
        unread: names of the probes whose calls were not read back exactly.
        why: what was tried and what came, if there is no parser.
    """

    name: str
    parser: Parser | None
    proven: bool
    unread: tuple[str, ...] = ()
    why: str = ""


class RenderedTurn(NamedTuple):
    """A probe, and the text that the policy would have generated for it."""

    probe: ProbeTurn
    text: str


def choose_parser(template: ChatTemplate, encoder: SafeEncoder, ends: EndOfTurn) -> ParserProof:
    """Return the parser that reads back every required probe, and most of the others.

    The parser whose marks stand in the template is tried first, then the others, then one that is derived from what the
    template renders. If the template renders no calls, nothing can be read back, and the marks decide.
    """
    hint = parser_for_template(template.source)
    if not ends.renders_calls:
        return ParserProof(hint or "", get_parser(hint) if hint else None, False)
    why = ""
    for call_id in _CALL_IDS:
        turns = list(rendered_turns(template, encoder, ends, call_id))
        best = _best([*([hint] if hint else []), *own_parsers()], turns)
        if best is not None:
            return best
        why = why or _refusal(turns)
    return ParserProof("", None, False, why=why)


def _best(names: Sequence[str], turns: Sequence[RenderedTurn]) -> ParserProof | None:
    best: ParserProof | None = None
    best_score: tuple[int, int] | None = None
    for name in dict.fromkeys(names):
        parser = get_parser(name)
        reading = read_back(parser, turns)
        if reading is None:
            continue
        score = (len(reading.unread), reading.leftover)
        if best_score is None or score < best_score:
            best_score, best = score, ParserProof(name, parser, True, reading.unread)
        if score == (0, 0):
            break
    return best


def rendered_turns(
    template: ChatTemplate, encoder: SafeEncoder, ends: EndOfTurn, call_id: CallId = _CALL_IDS[0]
) -> Iterator[RenderedTurn]:
    """Render the probes that the template does not refuse."""
    tools = [tool.to_openai() for tool in _SCHEMAS.values()]
    asked: list[Message] = [user("x")]
    try:
        prompts = [template.render(asked, tools=tools, generation_prompt=wanted) for wanted in (True, False)]
    except TemplateError:
        return
    for probe in PROBES:
        try:
            whole = template.render([*asked, probe.message(call_id)], tools=tools, generation_prompt=False)
        except TemplateError:
            continue
        text = encoder.restore(turn_text(encoder, whole, prompts, ends))
        if probe.content and probe.content not in text:
            probe = probe._replace(content="")
        yield RenderedTurn(probe, text)


def turn_text(encoder: SafeEncoder, whole: str, prompts: Sequence[str], ends: EndOfTurn) -> str:
    """Return what the policy would have generated: from the generation prompt to the first token that ends a turn.

    `prompts` are the conversation before the turn with and without the generation prompt. A generation prompt may open
    thinking that the turn in history does not have.
    """
    start = max(len(_shared_controls(encoder, whole, prompt)) for prompt in prompts)
    stops = [at for end in ends.known if (at := whole.find(end, start)) != -1]
    return whole[start : min(stops, default=len(whole))]


def _shared_controls(encoder: SafeEncoder, text: str, other: str) -> str:
    """The shared beginning, which ends inside of no control token or tag."""
    shared = shared_beginning(text, other)
    if len(shared) == len(other):
        return shared
    cut = [match.start() for match in encoder.all_controls(text) if match.start() < len(shared) < match.end()]
    partial = _PARTIAL_TAG.search(shared)
    return shared[: min([*cut, partial.start() if partial else len(shared)])]


class ReadBack(NamedTuple):
    """The names of the optional probes that were not read back, and the length of content that no probe has."""

    unread: tuple[str, ...]
    leftover: int


def read_back(parser: Parser, turns: Sequence[RenderedTurn]) -> ReadBack | None:
    """Compare what a parser reads with the probes. None if a required probe was not read back exactly."""
    unread = []
    leftover = 0
    for probe, text in turns:
        parsed = parser(text, schemas=_SCHEMAS)
        calls = [(call.name, call.arguments) for call in parsed.calls]
        exact = not parsed.errors and same_calls(calls, probe.calls) and probe.content in parsed.content
        if not exact and probe.required:
            return None
        if not exact:
            unread.append(probe.name)
        leftover += len(parsed.visible_content.replace(probe.content, "").strip())
    return ReadBack(tuple(unread), leftover) if turns else None


def same_calls(calls: Sequence[tuple[str, Any]], others: Sequence[tuple[str, Any]]) -> bool:
    """Compare calls by their JSON: `True` is not 1, and 2 is not 2.0."""
    return json.dumps(calls, sort_keys=True) == json.dumps([list(call) for call in others], sort_keys=True)


def _refusal(turns: Sequence[RenderedTurn]) -> str:
    if not turns:
        return "the chat template renders no turn with calls of a probe tool"
    return f"no parser reads back the calls that the chat template renders, as {shorten(repr(turns[0].text))}"
