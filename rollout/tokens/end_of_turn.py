"""The end of an assistant's turn in rendered text, found by experiment.

A turn ends with the token that the policy samples when it is done: the same one always (`<|im_end|>`), one after an
answer and another after a tool call (gpt-oss), one that opens the tool's response already (Gemma 4), several in a row
(Cohere 2), another one once the conversation goes on (gpt-oss again), or none at all, so that the next role's marker
ends the turn (GLM 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message, assistant, tool, user

PROBE_IDS = ("call00000", "call00001", "call00002")
"""Ids of calls in rendered probes: nine letters or digits, which Mistral's templates insist on."""

_ID = "\0id\0"
"""Stands for the last call's id in what a template writes after the call's arguments, as Mistral's do."""


class Terminator(NamedTuple):
    """Text that a template writes after a turn's own text, up to the control token that ends it. `_ID` is the call's
    id."""

    text: str
    end: str


@dataclass(frozen=True)
class EndOfTurn:
    """Ends of turns in one template. `answer` is what the policy samples first, then others that the template gives
    it later; `call` is empty if the template does not render calls. If no token ends a turn, the next role's marker
    does: then there are `markers`, the user's first, and `call_text` behind the arguments of the last call."""

    answer: tuple[Terminator, ...]
    call: tuple[Terminator, ...]
    ends_with_next_role: bool
    call_text: str | None
    markers: tuple[str, ...]
    json_arguments: bool

    @property
    def renders_calls(self) -> bool:
        return bool(self.call) or self.call_text is not None

    @property
    def history(self) -> Terminator:
        return self.answer[-1] if self.answer else Terminator(self.markers[0], self.markers[0])

    @property
    def sampled(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(terminator.end for terminator in self.answer[:1] + self.call), *self.markers]))

    @property
    def known(self) -> tuple[str, ...]:
        """All tokens that end a turn, those that only the template writes included."""
        return tuple(dict.fromkeys([*self.sampled, *(terminator.end for terminator in self.answer)]))

    def cut(self, encoder: SafeEncoder, text: str, mark: str, turn: Message) -> tuple[str, str]:
        """Split rendered text after the turn whose last written word is `mark`: the token that ends it, and the text
        behind."""
        at = text.rfind(mark)
        calls = turn.get("tool_calls")
        call_id = calls[-1]["id"] if calls else ""
        if at != -1:
            at += len(mark)
            for terminator in self.call if calls else self.answer:
                written = terminator.text.replace(_ID, call_id)
                if text.startswith(written, at):
                    return terminator.end, text[at + len(written) :]
            written = (self.call_text or "").replace(_ID, call_id) if calls else ""
            if self.ends_with_next_role and text.startswith(written, at):
                start = at + len(written)
                control = encoder.first_control(text, start)
                if control is not None and not text[start : control.start()].strip():
                    return control.group(), text[control.end() :]
        raise TemplateError(
            "the chat template drops an assistant message, or ends its turn in another way, once such messages follow, "
            "so the conversation cannot be extended turn by turn"
        )


def called(mark: str, names: Sequence[str], ids: Sequence[str] = (), content: str = "") -> Message:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": ids[number] if ids else PROBE_IDS[number],
                "type": "function",
                "function": {"name": name, "arguments": {"x": mark}},
            }
            for number, name in enumerate(names)
        ],
    }


def find_end_of_turn(
    template: ChatTemplate,
    encoder: SafeEncoder,
    name: str,
    own_ends: Sequence[str] = (),
    inside: Mapping[str, str] | None = None,
) -> EndOfTurn:
    """Find how turns end, and set `template.json_arguments`.

    Args:
        template: the chat template.
        encoder: the encoder of its tokenizer.
        name: the name of a tool that may be called.
        own_ends: tokens that end a text according to the tokenizer and the model. If the template writes such a token
            behind a turn, it is the turn's end.
        inside: tokens that the template writes inside a turn as well, which therefore do not end it, with the text
            around each.

    Raises:
        TemplateError: no turn could ever end, or assistant messages are not rendered.
    """
    mark = encoder.nonce + "m"
    asked, again = user("x"), user("y")
    alone = _text_after(template, mark, [asked, assistant(mark)], generation_prompt=False)
    if alone is None:
        raise TemplateError("the chat template drops the content of assistant messages")
    later = _try(template, mark, [asked, assistant(mark), again])
    ending, seen = _run(encoder, alone), _run(encoder, later or "")
    openers = frozenset(terminator.end for terminator in _run(encoder, template.render([asked]))) - {*own_ends}
    closing = _Closing(own_ends, openers)
    if inside:
        shared = closing.of(_further(encoder, alone, later or "", inside))
        if shared is None:
            raise TemplateError(stands_inside(inside))
    else:
        shared = closing.of([here for here, there in zip(ending, seen, strict=False) if here == there])
    answer: tuple[Terminator, ...] = ()
    markers: tuple[str, ...] = ()
    if shared is not None:
        answer = (shared,)
    elif ending and ending[0].end not in openers:
        answer = ending[:1]
        after_user = _run(encoder, _try(template, mark, [user(mark)]) or "")
        # The turn ends otherwise once the conversation goes on, with a token that messages of others end with as well.
        if seen and seen[0].end in (ending[0].end, *(terminator.end for terminator in after_user[:1])):
            answer += seen[:1]
    elif seen:
        before_user = encoder.all_controls(template.render([user(mark)]).rpartition(mark)[0])
        if before_user and before_user[-1].group() == seen[0].end:
            markers = (seen[0].end,)
        else:  # an end that the template leaves out behind a last turn
            answer = seen[:1]
    else:
        raise TemplateError(
            "the chat template puts no special token after an assistant message, so no turn could end; "
            f"after the content it rendered {alone!r}"
        )

    ways = _call_terminators(template, encoder, mark, name, answer, closing)
    call = tuple(dict.fromkeys(way for way in ways if way.end))
    call_text = next((way.text for way in ways if not way.end), None)
    if markers and call_text is not None:
        after = _try(template, mark, [asked, called(mark, [name]), tool("z", tool_call_id=PROBE_IDS[0], name=name)])
        control = encoder.first_control(after or "", len(call_text.replace(_ID, PROBE_IDS[0])))
        if control is not None:
            markers = tuple(dict.fromkeys([*markers, control.group()]))
    return EndOfTurn(answer, call, bool(markers), call_text, markers, template.json_arguments)


class _Closing(NamedTuple):
    """Finds the end of a turn among the tokens that a template writes behind it whatever comes next. A template that
    ignores `add_generation_prompt` writes `openers`, which begin a message, behind every turn."""

    own_ends: Sequence[str]
    openers: Set[str]

    def of(self, run: Sequence[Terminator]) -> Terminator | None:
        known = [terminator for terminator in run if terminator.end in self.own_ends]
        before = list(itertools.takewhile(lambda terminator: terminator.end not in self.openers, run))
        chosen = known or before
        return chosen[-1] if chosen else None


def _call_terminators(
    template: ChatTemplate,
    encoder: SafeEncoder,
    mark: str,
    name: str,
    answer: Sequence[Terminator],
    closing: _Closing,
) -> list[Terminator]:
    """The terminators of a call and of two calls; sets `template.json_arguments` if the template wants it so."""
    for as_json in (False, True):
        template.json_arguments = as_json
        ways = [_ends_of_calls(template, encoder, mark, [name] * count, answer, closing) for count in (1, 2)]
        if any(ways):
            return [terminator for way in ways for terminator in way]
    template.json_arguments = False
    return []


def _ends_of_calls(
    template: ChatTemplate,
    encoder: SafeEncoder,
    mark: str,
    names: Sequence[str],
    answer: Sequence[Terminator],
    closing: _Closing,
) -> tuple[Terminator, ...]:
    """Return the terminators of the last call: as its turn is sampled, then as it is in history, if that differs.

    A terminator has no end if the template has none. There are no terminators if the template renders no calls.
    """
    message = called(mark, names)
    results = [tool("z", tool_call_id=PROBE_IDS[number], name=name) for number, name in enumerate(names)]
    alone = _try(template, mark, [user("x"), message], generation_prompt=False)
    later = _try(template, mark, [user("x"), message, *results])
    if alone is None or later is None:
        return ()
    alone, later = (text.replace(results[-1]["tool_call_id"], _ID) for text in (alone, later))
    if not answer:
        return (Terminator(alone, ""),) if later.startswith(alone) else ()
    shared = shared_beginning(alone, later)
    run = [Terminator(shared[: control.end()], control.group()) for control in encoder.all_controls(shared)]
    as_answer = _up_to(encoder, shared, answer[0].end)
    if as_answer is not None:
        return (as_answer,)
    sampled = closing.of(run)
    if sampled is None:
        # Apriel 1.5 writes the ids of calls only if other messages follow. So does 1.6 with the token that ends a turn.
        result = encoder.nonce + "r"
        further = [{**message, "content": result} for message in results]
        turn = (_try(template, mark, [user("x"), message, *further]) or "").partition(result)[0]
        in_history = _up_to(encoder, turn.replace(results[-1]["tool_call_id"], _ID), answer[0].end)
        if in_history is None:
            return ()
        last = _up_to(encoder, alone, answer[0].end)
        return (in_history,) if last is None else (last, in_history)
    if sampled.end in _between_calls(template, mark, names[0]):
        # It closes each call, and what the template writes next ends the turn: Gemma 4 opens the tool's response.
        follows = encoder.first_control(later, len(sampled.text))
        if follows is not None and not later[len(sampled.text) : follows.start()].strip():
            return (Terminator(later[: follows.end()], follows.group()),)
    return (sampled,)


def _up_to(encoder: SafeEncoder, text: str, end: str) -> Terminator | None:
    """Return the terminator that is the text up to its first `end`; None if that is not in it."""
    control = next((control for control in encoder.all_controls(text) if control.group() == end), None)
    return None if control is None else Terminator(text[: control.end()], end)


def _further(encoder: SafeEncoder, alone: str, later: str, inside: Mapping[str, str]) -> list[Terminator]:
    """The control tokens behind a turn that never stand inside a turn, whatever words are between them."""
    shared = shared_beginning(alone, later)
    controls = [control for control in encoder.all_controls(shared) if control.group() not in inside]
    return [Terminator(shared[: control.end()], control.group()) for control in controls]


def stands_inside(inside: Mapping[str, str]) -> str:
    """Return the error for stop tokens that stand inside a turn, given the text around each."""
    token, around = next(iter(inside.items()))
    return (
        f"the token that ends a turn, {token!r}, also stands inside a turn (the chat template writes {around!r}), so "
        "an engine would cut every such turn there. Use a chat template that writes a token of its own behind each "
        "turn, and name that token as eos_token_id in the model's generation_config.json"
    )


def _between_calls(template: ChatTemplate, mark: str, name: str) -> str:
    try:
        parts = template.render([user("x"), called(mark, [name, name])], generation_prompt=False).split(mark)
    except TemplateError:
        return ""
    return parts[1] if len(parts) == 3 else ""


def shared_beginning(text: str, other: str) -> str:
    pairs = zip(text, other, strict=False)
    return text[: next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))]


def _run(encoder: SafeEncoder, text: str) -> tuple[Terminator, ...]:
    run: list[Terminator] = []
    at = 0
    while (control := encoder.first_control(text, at)) is not None and not text[at : control.start()].strip():
        at = control.end()
        run.append(Terminator(text[:at], control.group()))
    return tuple(run)


def _text_after(
    template: ChatTemplate, mark: str, messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool = True
) -> str | None:
    text = template.render(cast(Sequence[Message], messages), generation_prompt=generation_prompt)
    _, middle, tail = text.rpartition(mark)
    return tail if middle else None


def _try(
    template: ChatTemplate, mark: str, messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool = True
) -> str | None:
    try:
        return _text_after(template, mark, messages, generation_prompt=generation_prompt)
    except TemplateError:
        return None
