"""Choose the parser that reads back what a chat template writes.

A template shows the policy its own earlier calls, so it writes them as its model does. The template renders turns with
known calls under its own prompt, and a parser is right if it gives back exactly these calls and the text before them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from toolgym.rollout.tokens import call_format
from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, EndOfTurn, shared_beginning
from toolgym.rollout.tokens.marked_turns import MarkedTurns, find_thinking_tags
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.tools.errors import TemplateError, shorten
from toolgym.tools.message import Message, assistant, tool_call, user
from toolgym.tools.parsers.base import ParsedTurn, Parser
from toolgym.tools.parsers.derived import derived_parser, read_derived_turn
from toolgym.tools.parsers.registry import get_parser, own_parsers, parser_for_template
from toolgym.tools.parsers.scan import scan
from toolgym.tools.schema import ToolSchema

Arguments = dict[str, Any]
CallId = Callable[[str, int], str]

_REMEMBERED: dict[str, ParserProof] = {}
_MOST_REMEMBERED = 64

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
            "items": {"type": "array", "items": {"type": "string"}},
            "marks": {"type": "array", "items": {"type": ["integer", "boolean"]}},
            "options": {
                "type": "object",
                "properties": {
                    "depth": {"type": "object", "properties": {"most": {"type": "integer"}}},
                    "names": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
)

_OTHER_TOOL = ToolSchema("second_tool", "Probe it, too.", PROBE_TOOL.parameters)
_UNUSUAL = ("nothing",)
"""Parameters that are not shown to templates: some fail on the type null."""

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
    _one("lists", {"items": ["a", "5"], "marks": [1, True]}),
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


def choose_parser(template: ChatTemplate, encoder: SafeEncoder, ends: EndOfTurn, variables: object) -> ParserProof:
    """Return the parser that reads back every required probe, and most of the others.

    The parser whose marks stand in the template is tried first, then the others, then those that are derived from what
    the template renders. If the template renders no calls, nothing can be read back, and the marks decide. If no parser
    reads all required probes, the parser of the marks is returned if it reads any: its format is shown in the
    instructions then, and the template cannot write some values in it.

    Args:
        template: the chat template.
        encoder: the encoder of its tokenizer.
        ends: how turns end.
        variables: the template's variables. The proof is remembered for the same template and variables.
    """
    parts = (template.source, template.special_tokens, encoder.contents, ends.sampled, repr(variables))
    key = json.dumps(parts, sort_keys=True, default=repr)
    proof = _REMEMBERED.get(key)
    if proof is None:
        if len(_REMEMBERED) >= _MOST_REMEMBERED:
            _REMEMBERED.clear()
        proof = _REMEMBERED[key] = _choose(template, encoder, ends)
    return proof


def _choose(template: ChatTemplate, encoder: SafeEncoder, ends: EndOfTurn) -> ParserProof:
    hint = parser_for_template(template.source)
    if not ends.renders_calls:
        return ParserProof(hint or "", get_parser(hint) if hint else None, False)
    why = ""
    for call_id in _CALL_IDS:
        probes = _Probes(template, encoder, ends, call_id)
        turns = list(probes.turns())
        if hint and not turns:  # the template refuses the tools of the probes
            return ParserProof(hint, get_parser(hint), False)
        best = _best(_own(hint), turns)
        marked = best is not None and best[1].name == hint and not best[1].unread
        if not marked and (best is None or best[0] > (0, 0)):
            best = min(filter(None, (best, _best(probes.derived(), turns))), key=lambda item: item[0], default=None)
        if best is not None:
            return _with_nulls(best[1], probes)
        why = why or _refusal(turns)
        if hint and (unread := _unread(get_parser(hint), turns)) and len(unread) < len(turns):
            return ParserProof(hint, get_parser(hint), True, unread)
    return ParserProof("", None, False, why=why)


def _with_nulls(proof: ParserProof, probes: _Probes) -> ParserProof:
    """Let the parser read as null, for a string that may be null, only what the template writes for null.

    In formats without quotes a parser cannot tell the text "None" from null, and templates differ in what they write.
    """
    parser = proof.parser
    written = probes.write([(PROBE_TOOL.name, {"word": None})], "")
    if written is None or not isinstance(parser, functools.partial) or parser.func not in (scan, read_derived_turn):
        return proof
    turn = parser(written, schemas=_SCHEMAS)
    value = turn.calls[0].arguments.get("word") if turn.calls and not turn.errors else None
    return replace(proof, parser=functools.partial(parser, nulls=(value,))) if isinstance(value, str) else proof


def _own(hint: str | None) -> Iterator[tuple[str, Parser]]:
    for name in dict.fromkeys([*([hint] if hint else []), *own_parsers()]):
        yield name, get_parser(name)


def _best(
    parsers: Iterable[tuple[str, Parser]], turns: Sequence[RenderedTurn]
) -> tuple[tuple[int, int], ParserProof] | None:
    """Return the best of the parsers that read all required probes, with its number of unread probes and of left-over
    letters."""
    best: tuple[tuple[int, int], ParserProof] | None = None
    for name, parser in parsers:
        reading = read_back(parser, turns)
        if reading is None:
            continue
        score = (len(reading.unread), reading.leftover)
        if best is None or score < best[0]:
            best = score, ParserProof(name, parser, True, reading.unread)
        if score == (0, 0):
            break
    return best


def _shown_tool(tool: ToolSchema) -> dict[str, Any]:
    described = {key: {**value, "description": "A value."} for key, value in tool.parameters["properties"].items()}
    properties = {key: value for key, value in described.items() if key not in _UNUSUAL}
    return ToolSchema(tool.name, tool.description, {"type": "object", "properties": properties}).to_openai()


class _Probes:
    """Renders turns with calls under the shortest prompt."""

    def __init__(self, template: ChatTemplate, encoder: SafeEncoder, ends: EndOfTurn, call_id: CallId) -> None:
        self._template, self._encoder, self._ends, self._call_id = template, encoder, ends, call_id
        self._asked: list[Message] = [user("x")]
        self._tools = [_shown_tool(tool) for tool in _SCHEMAS.values()]
        self._prompts: list[str] = []
        try:
            self._prompts = [self._render([], generation_prompt=wanted) for wanted in (True, False)]
        except TemplateError:
            return

    def turns(self) -> Iterator[RenderedTurn]:
        """Render the probes that the template does not refuse."""
        for probe in PROBES:
            text = self.write(probe.calls, probe.content)
            if text is None or (
                len(probe.calls) > 1 and not all(_shown(arguments, text) for _, arguments in probe.calls)
            ):
                continue
            yield RenderedTurn(probe if probe.content in text else probe._replace(content=""), text)

    def write(self, calls: Sequence[tuple[str, Arguments]], content: str) -> str | None:
        """Return the text that the policy would have generated for a turn; None if the template refuses it."""
        if not self._prompts:
            return None
        message = ProbeTurn("", tuple(calls), content).message(self._call_id)
        try:
            whole = self._render([message], generation_prompt=False)
        except TemplateError:
            return None
        return self._encoder.restore(turn_text(self._encoder, whole, self._prompts, self._ends))

    def derived(self) -> Iterator[tuple[str, Parser]]:
        """Build parsers from the texts around the values of rendered calls."""
        ids = [self._call_id(name, at) for at, name in enumerate(call_format.NAMES)]
        turns = MarkedTurns(self._template, self._encoder, name=PROBE_TOOL.name, tools=self._tools)
        tags = find_thinking_tags(turns, self._ends, self._prompts[0][len(self._prompts[1]) :] if self._prompts else "")
        thinking = [(tags.opens, tags.closes)] if tags is not None and tags.closes_thinking_only else []
        for form in call_format.derive_formats(self.write, ids, thinking):
            parser = derived_parser(form)
            if parser is not None:
                yield "derived", parser

    def _render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        return self._template.render([*self._asked, *messages], tools=self._tools, generation_prompt=generation_prompt)


def turn_text(encoder: SafeEncoder, whole: str, prompts: Sequence[str], ends: EndOfTurn) -> str:
    """Return what the policy would have generated: from the generation prompt to the first token that ends a turn.

    `prompts` are the conversation before the turn with and without the generation prompt. A generation prompt may open
    thinking that the turn in history does not have.
    """
    start = max(len(_shared_controls(encoder, whole, prompt)) for prompt in prompts)
    stops = [at for end in ends.sampled if (at := whole.find(end, start)) != -1]
    return whole[start : min(stops, default=len(whole))]


def _shared_controls(encoder: SafeEncoder, text: str, other: str) -> str:
    """The shared beginning, which ends inside of no control token or tag."""
    shared = shared_beginning(text, other)
    if len(shared) == len(other):
        return shared
    cut = [match.start() for match in encoder.all_controls(text) if match.start() < len(shared) < match.end()]
    partial = _PARTIAL_TAG.search(shared)
    return shared[: min([*cut, partial.start() if partial else len(shared)])]


def _unread(parser: Parser, turns: Sequence[RenderedTurn]) -> tuple[str, ...]:
    return tuple(probe.name for probe, text in turns if not _is_exact(parser(text, schemas=_SCHEMAS), probe))


def _is_exact(parsed: ParsedTurn, probe: ProbeTurn) -> bool:
    calls = [(call.name, call.arguments) for call in parsed.calls]
    return (
        not parsed.errors
        and same_calls(calls, probe.calls)
        and probe.content in parsed.content + (parsed.reasoning or "")
    )


def _shown(arguments: Arguments, text: str) -> bool:
    return all(str(value) in text for value in arguments.values())


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
        exact = _is_exact(parsed, probe)
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
