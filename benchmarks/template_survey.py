"""Whether chat templates are exact where `toolgym check-template` says so, by ways that it does not use.

    python benchmarks/template_survey.py --folder FOLDER [--list]

FOLDER holds chat templates (`*.jinja*`, at any depth). Each template is rendered by transformers, with words, errors
and turns that real conversations have, and compared with what a `ChatRenderer` gives. A template is one of these:

* exact: every comparison holds;
* refused: `ChatRenderer` refuses it, or the conversation, by name;
* falsely exact: `toolgym check-template` calls it exact, and a comparison fails. The names of the comparisons are
  `stop` (no stop token is inside a turn), `thinking` (the thought is read back and is not in the answer) and `delta`
  (a delta equals the end of the whole conversation).

For each exact template, turns of ten shapes are also read by the renderer's parser and rendered again, as with
`history="template"`, and compared with what transformers renders of the turns that were written. With `--list`, the
last column names the shapes that differ.

Templates that do not mention tools, and copies, are skipped. Each template gets a tokenizer with one token for each
byte and each marker. The exit status is 1 if a template is falsely exact.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from template_table import templates
from transformers import PreTrainedTokenizerBase

from toolgym.rollout.tokens.parser_choice import turn_text
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer, check_template
from toolgym.tools.errors import TemplateError
from toolgym.tools.schema import ToolSchema

TOOL = ToolSchema("look", "Look it up.", {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]})
MARK, THOUGHT, ANSWER = "qqmarkqq", "qqthoughtqq", "qqanswerqq"
SWITCHES = (
    *("/no_think", "/think", "/no_thinking", "<|think_off|>", "<|think_on|>", "detailed thinking on", "/nothink"),
    *("thinking: off", "enable_thinking", "</think>", "reasoning effort: low", "no_think", "ENABLE_THINKING"),
)
ERRORS = (
    "Error: no such file",
    "Traceback (most recent call last):",
    '{"error": "failed to run"}',
    "command not found",
)
_TAG = re.compile(r"<[|｜]?[^<>\s|｜]+[|｜]?>|\[/?[A-Z_]+\]")

Message = dict[str, Any]


class Verdict(NamedTuple):
    """What a template is, and why it is not exact."""

    name: str
    verdict: str
    why: str = ""
    other_history: tuple[str, ...] = ()


def survey(path: Path) -> Verdict:
    """Return the verdict on one template."""
    template = path.read_text(encoding="utf-8")
    name = f"{path.parent.name}/{path.stem}"
    try:
        tokenizer = tokenizer_of(template)
        if not check_template(tokenizer, [TOOL]).exact:
            return Verdict(name, "refused")
        renderer = ChatRenderer(tokenizer, [TOOL])
        reads_calls = renderer.parser is not None
        if not reads_calls:
            renderer = ChatRenderer(tokenizer, [TOOL], parser="hermes")
    except TemplateError as error:
        return Verdict(name, "refused", str(error))
    for kind, check in (("stop", stops_inside), ("thinking", lost_thinking), ("delta", wrong_deltas)):
        why = next(check(renderer, tokenizer), None)
        if why is not None:
            return Verdict(name, "falsely exact", f"{kind}: {why}")
    return Verdict(name, "exact", other_history=tuple(other_histories(renderer, tokenizer)) if reads_calls else ())


def tokenizer_of(template: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer with the markers in a template. If it builds their names, those in rendered text are taken."""
    tokenizer = byte_tokenizer(template)
    try:
        ChatRenderer(tokenizer)
    except TemplateError:
        text = render(tokenizer, [turn("user", "x"), turn("assistant", "y"), turn("user", "z")]) or ""
        tokenizer = byte_tokenizer(template, _TAG.findall(text))
    return tokenizer


def turn(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(argument: str, content: str = "", **more: Any) -> Message:
    function = {"name": "look", "arguments": {"x": argument}}
    return turn(
        "assistant", content, tool_calls=[{"id": "call00000", "type": "function", "function": function}], **more
    )


def result(content: str) -> Message:
    return turn("tool", content, tool_call_id="call00000", name="look")


def thinking(thought: str) -> Message:
    return dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)


def render(tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, prompt: bool = True) -> str | None:
    """What transformers renders; None if the template refuses the messages."""
    for as_json in (False, True):
        shown = [dict(message) for message in messages]
        for message in shown:
            if as_json and "tool_calls" in message:
                message["tool_calls"] = [with_json_arguments(asked) for asked in message["tool_calls"]]
        try:
            text: str = tokenizer.apply_chat_template(
                shown, tools=[TOOL.to_openai()], add_generation_prompt=prompt, tokenize=False
            )
        except Exception:  # noqa: BLE001  a template may raise anything; the next form of the messages is tried
            continue
        return text
    return None


def with_json_arguments(asked: Message) -> Message:
    function = asked["function"]
    return {**asked, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def stops_inside(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Stop tokens between the first and the last word of a turn that the template writes."""
    stops = [renderer.decode([token]) for token in renderer.stop_token_ids]
    first, asked = THOUGHT, turn("user", "x")
    turns = [
        turn("assistant", MARK, **thinking(first)),
        call(MARK, **thinking(first)),
        call(MARK, ANSWER, **thinking(first)),
        call(MARK, first),
    ]
    for message in turns:
        text = render(tokenizer, [asked, message], prompt=False) or ""
        if 0 <= text.find(first) < text.find(MARK) and (MARK not in text[: text.find(first)]):
            inside = text[text.index(first) : text.rindex(MARK)]
            yield from (f"{stop!r} in {inside!r}" for stop in stops if stop and stop in inside)


def lost_thinking(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Thoughts of a whole turn that are not split from its answer."""
    asked = [turn("user", "x")]
    before = render(tokenizer, asked) or ""
    whole = render(tokenizer, [*asked, turn("assistant", ANSWER, **thinking(THOUGHT))], prompt=False) or ""
    if not whole.startswith(before) or not 0 <= whole.find(THOUGHT) < whole.find(ANSWER):
        return
    ends = [whole.find(end, whole.index(ANSWER)) for end in renderer.facts.ends_of_turn]
    text = whole[len(before) : min((end for end in ends if end >= 0), default=len(whole))]
    parsed = renderer.parse_text(text)
    if THOUGHT in parsed.visible_content or ANSWER not in parsed.visible_content:
        yield f"the turn {text!r} says {parsed.visible_content!r}"
    message = renderer.part_reasoning(parsed.message, starts_open=renderer.opens_thinking)
    if message.get("reasoning_content") != THOUGHT or message["content"] != ANSWER:
        yield f"the turn {text!r} was read as {message!r}"


def wrong_deltas(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Deltas that differ from the whole conversation's."""
    controls = renderer._encoder.contents
    for earlier in conversations():
        try:
            renderer.prompt(earlier)  # type: ignore[arg-type]
        except TemplateError:
            continue
        if any(control in message["content"] for message in earlier for control in controls):
            continue  # a control token in foreign text means nothing, in the prompt and after it
        for message, new in ((call(MARK), [result("an animal")]), (turn("assistant", MARK), [turn("user", "More.")])):
            whole = render(tokenizer, [*earlier, message, *new])
            if whole is None or MARK not in whole:
                continue
            try:
                end, delta = renderer._delta(renderer.safe(new), earlier)  # type: ignore[arg-type]
            except TemplateError:
                continue
            truth = whole[whole.rindex(MARK) + len(MARK) :]
            if not truth.endswith(end + renderer._encoder.restore(delta)):
                contents = [message["content"] for message in earlier]
                yield f"after {contents}: {delta!r}, expected {truth!r}"
    yield from wrong_deltas_after_words(renderer, tokenizer)


def wrong_deltas_after_words(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Deltas that differ after a turn that has a word itself."""
    asked, new = turn("user", "x"), [turn("user", "More.")]
    for word in SWITCHES:
        if any(control in word for control in renderer._encoder.contents):
            continue
        text = f"So be it: {word}. {MARK}"
        whole = render(tokenizer, [asked, turn("assistant", text), *new])
        if whole is None or text not in whole:
            continue
        try:
            end, delta = renderer._delta(renderer.safe(new), [asked], text.removesuffix(MARK))  # type: ignore
        except TemplateError:
            continue
        truth = whole[whole.rindex(MARK) + len(MARK) :]
        if not truth.endswith(end + renderer._encoder.restore(delta)):
            yield f"after a turn with {word!r}: {delta!r}, expected {truth!r}"


def other_histories(renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The shapes of turns that are rendered otherwise once the renderer has read them."""
    asked = [turn("system", "Be brief."), turn("user", "x")]
    if render(tokenizer, asked) is None:
        asked = asked[1:]
    prompts = [render(tokenizer, asked, prompt=wanted) or "" for wanted in (True, False)]
    for name, (message, new) in shapes().items():
        whole = render(tokenizer, [*asked, message], prompt=False)
        truth = render(tokenizer, [*asked, message, *new])
        if whole is None or truth is None:
            continue
        text = turn_text(renderer._encoder, whole, prompts, renderer._ends)
        starts_open = whole[: whole.find(text)].rstrip().endswith(renderer.thinking.opens)
        parsed = renderer.parse_text(text, starts_open=starts_open)
        reading: Any = renderer.part_reasoning(parsed.message, starts_open=starts_open)
        ids = [asked["id"] for asked in message.get("tool_calls", ())]
        if "tool_calls" in reading and len(reading["tool_calls"]) == len(ids):
            reading["tool_calls"] = [{**call, "id": id} for call, id in zip(reading["tool_calls"], ids, strict=True)]
        try:
            shown = renderer.render([*asked, reading, *new])  # type: ignore[list-item]
        except TemplateError as error:
            shown = str(error)
        if shown != truth:
            yield name


def shapes() -> dict[str, tuple[Message, list[Message]]]:
    """Turns of the shapes that models write, and what follows each."""
    odd = "naïve ☃ 🦊 日本語 \n\n end"
    done, more = [result("an animal")], [turn("user", "More.")]
    two = call("a")
    two["tool_calls"] = [{**two["tool_calls"][0], "id": f"call0000{at}"} for at in range(2)]
    results = [{**result(text), "tool_call_id": f"call0000{at}"} for at, text in enumerate(("an animal", ""))]
    return {
        "answer": (turn("assistant", "An animal."), more),
        "thinking": (turn("assistant", "An animal.", **thinking("Let me see.\nHm.")), more),
        "call": (call("fox"), done),
        "text and call": (call("fox", "I will look it up."), done),
        "thinking and call": (call("fox", **thinking("Let me see.")), done),
        "thinking, text and call": (call("fox", "I will look it up.", **thinking("Let me see.")), done),
        "tool error": (call("fox"), [result("Error: no such file")]),
        "several calls": (two, results),
        "unicode": (call(odd, "Schön."), [result(odd)]),
        "long text": (call("word " * 300), [result("word " * 300)]),
        "user after a tool": (call("fox", **thinking("Hm.")), [*done, turn("assistant", "An animal."), *more]),
    }


def conversations() -> Iterator[list[Message]]:
    """Conversations with words that templates look for, and with failing tools."""
    asked = turn("user", "x")
    for word in SWITCHES:
        for text in (word, f"Be brief. {word}", f"{word} Be brief."):
            yield [turn("system", text), asked]
            yield [turn("system", "Be brief."), turn("user", text)]
            yield [turn("system", "Be brief."), asked, turn("assistant", "Yes."), turn("user", text)]
            yield [asked, call("a"), result(text)]
    for error in ERRORS:
        for count in (1, 2, 3, 4):
            yield [asked, *[message for _ in range(count) for message in (call("a"), result(error))]]
    few = [turn("user", "y"), call("b"), result("an animal"), turn("assistant", "An animal."), asked]
    yield few
    yield [turn("system", "Be brief. Today is 2026-11-29."), *few]
    yield [turn("system", "# Rules\n\n1. Be brief.\n2. Be kind.\n" * 20), turn("user", "x " * 500)]
    yield [turn("system", "/no_think"), turn("user", "/think")]
    yield [turn("system", "/think"), turn("user", "/no_think"), turn("assistant", "Yes."), turn("user", "/think")]


def main() -> int:
    """Print the counts, and each template that is falsely exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="chat templates at any depth")
    parser.add_argument("--list", action="store_true", help="print every template")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    counts, same = Counter[str](), 0
    for verdict in map(survey, templates(arguments.folder)):
        counts[verdict.verdict] += 1
        if arguments.list or verdict.verdict == "falsely exact":
            print(verdict.name, verdict.verdict, verdict.why, ", ".join(verdict.other_history), sep="\t", flush=True)
        same += verdict.verdict == "exact" and not verdict.other_history
    shares = ", ".join(f"{counts[name]} {name}" for name in ("exact", "refused", "falsely exact"))
    print(f"{counts.total()} templates: {shares}; the history of {same} exact ones is transformers' own in all shapes")
    return 1 if counts["falsely exact"] else 0


if __name__ == "__main__":
    sys.exit(main())
