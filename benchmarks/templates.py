"""Which way to append messages gives the tokens that the chat template would: all of trl's templates, seven ways.

    python benchmarks/templates.py [--case "single call"] [--json]

The truth is the template's own rendering, by transformers, of the whole conversation: the text after the end
of the assistant's turn. A way is exact (Y) if it gives that text, wrong (N) if it gives another, and fails (E) if the
template raises. The others' ways are written here from what they do, on text, for one tokenizer per template; so no
way is held back by the tokenizer. Where a turn has no end of its own (GLM 4), the next marker may be given or not.

ours                      `ChatRenderer.extend`
stand-in, cut at the end  TRL: a dummy user and a call of the first tool, cut after the last end-of-turn token (TRL has
                          results only; for other messages, a dummy answer takes the call's place)
fixed base                SkyRL: a system and a user message, always the same, cut likewise
alone                     verl before 0.9: the new messages alone, without the system prompt that a lone message gets
alone + separator         verl 0.9: the same after what follows an end of turn
empty system              ROLL: after a system message without content
re-render                 everything, minus the text as it was rendered before
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trl

from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.errors import TemplateError
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import Message, assistant, system, tool, user

TOOL = CodeInterpreterTool.default_schema
MARK = "xyzzy"
TOOL_CAPABLE = [
    "deepseekv3",
    "diffusion_gemma",
    "gemma4",
    "gemma4_v2",
    "gemma4_v3",
    "gemma4_v4",
    "gemma4_v5",
    "glm4moe",
    "gptoss",
    "lfm2_2_5",
    "lfm2_2_5_v2",
    "lfm2_2_5_vl",
    "lfm2_v2",
    "llama3_1",
    "llama3_2",
    "muse_glimmer",
    "nemotron_3_5_lightning",
    "nemotron_3_nano",
    "nemotron_3_super",
    "nemotron_3_ultra",
    "qwen2_5",
    "qwen3",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
    "qwen3_8",
    "qwen3_instruct_2507",
    "qwen3_vl",
]


def call(*codes: str) -> Message:
    """An assistant's turn that calls the tool once per code."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"call_{at}", "type": "function", "function": {"name": TOOL.name, "arguments": {"code": code}}}
            for at, code in enumerate(codes)
        ],
    }


def results(*texts: str) -> list[Message]:
    """Answers to those calls."""
    return [tool(text, tool_call_id=f"call_{at}", name=TOOL.name) for at, text in enumerate(texts)]


ASKED = [system("Be brief."), user("What is 6 * 7?")]
CASES: dict[str, tuple[list[Message], Message, list[Message]]] = {
    "single call": (ASKED, call(MARK), results("42")),
    "parallel calls": (ASKED, call("1", MARK), results("42", "43")),
    "retry by the user": (ASKED, assistant(f"Call {MARK}"), [user("Use the tool.")]),
    "new user turn": ([*ASKED, call("1"), *results("42")], assistant(f"It is {MARK}"), [user("And 7 * 7?")]),
    "system in the middle": (ASKED, assistant(f"It is {MARK}"), [system("Now in French."), user("And 7 * 7?")]),
}


class Template:
    """One chat template, rendered by transformers."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = byte_tokenizer(path.read_text(encoding="utf-8"))
        self.chat = ChatRenderer(self.tokenizer, [TOOL])
        self.facts = self.chat.facts
        self.ends = tuple(dict.fromkeys([*self.facts.ends_of_turn, self.facts.end_of_turn_in_history]))

    def render(self, messages: Sequence[Any], *, prompt: bool, tools: bool = False) -> str:
        """Text; the arguments of calls as JSON text for templates that want it so."""
        shown = json.loads(json.dumps(messages))
        if self.facts.json_arguments:
            for one in shown:
                for made in one.get("tool_calls", ()):
                    made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
        text: str = self.tokenizer.apply_chat_template(
            shown, tools=self.chat.tools if tools else None, add_generation_prompt=prompt, tokenize=False
        )
        return text

    def after_the_turn(self, text: str, turn: Message) -> str:
        """The text after the end of the turn that has the mark."""
        tail = text[text.rindex(MARK) + len(MARK) :]
        wanted = self.facts.ends_of_turn[-1:] if "tool_calls" in turn else self.ends
        if self.facts.end_of_turn_is_marker and "tool_calls" not in turn:
            wanted = (*self.ends, "<|system|>")
        found = [tail.index(end) + len(end) for end in wanted if end in tail]
        return tail[min(found) :]

    def cut_at_the_end(self, text: str) -> str:
        """Text up to its last end-of-turn token; all of it if there is none."""
        if self.facts.end_of_turn_is_marker:
            return text
        at = max((text.rfind(end) + len(end) for end in self.ends if end in text), default=len(text))
        return text[:at]


Way = Callable[[Template, list[Message], Message, list[Message]], str]


def ours(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    return template.chat.decode(template.chat.extend(new, earlier=head))


def stand_in(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    dummy: list[Any] = [user("dummy"), assistant("")]
    if new[0]["role"] == "tool":
        dummy[1]["tool_calls"] = [{"type": "function", "function": {"name": new[0].get("name", ""), "arguments": {}}}]
    base = template.cut_at_the_end(template.render(dummy, prompt=False))
    return template.render([*dummy, *new], prompt=True)[len(base) :]


def fixed_base(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    fixed = [system("You are a helpful assistant."), user("I am a user.")]
    base = template.cut_at_the_end(template.render(fixed, prompt=False))
    return template.render([*fixed, *new], prompt=True)[len(base) :]


def alone(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    once, twice = (template.render([user("")] * count, prompt=False) for count in (1, 2))
    own_system = once[: len(once) - (len(twice) - len(once))]
    return template.render(new, prompt=True)[len(own_system) :]


def alone_with_separator(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    finished = template.render([user("x"), assistant("y")], prompt=False)
    return finished[len(template.cut_at_the_end(finished)) :] + alone(template, head, turn, new)


def empty_system(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    mock = [system("")]
    return template.render([*mock, *new], prompt=True)[len(template.render(mock, prompt=False)) :]


def re_render(template: Template, head: list[Message], turn: Message, new: list[Message]) -> str:
    """See the module."""
    before = template.render([*head, turn], prompt=False, tools=True)
    return template.render([*head, turn, *new], prompt=True, tools=True)[len(before) :]


WAYS: dict[str, Way] = {
    "ours": ours,
    "stand-in, cut at the end (TRL)": stand_in,
    "fixed base (SkyRL)": fixed_base,
    "alone (verl before 0.9)": alone,
    "alone + separator (verl 0.9)": alone_with_separator,
    "empty system (ROLL)": empty_system,
    "re-render": re_render,
}


def measure(template: Template, case: str) -> str:
    """A letter per way: Y exact, N wrong, E raised; or dashes where the template cannot render the conversation."""
    head, turn, new = CASES[case]
    if "tool_calls" in turn and not template.facts.tool_calls_rendered:
        turn = assistant(f"{TOOL.name}({MARK})")
    try:
        whole = template.render([*head, turn, *new], prompt=True, tools=True)
        truth = template.after_the_turn(whole, turn)
    except Exception:  # noqa: BLE001  templates raise anything
        return "-" * len(WAYS)
    if not all(message["content"] in truth for message in new):
        return "-" * len(WAYS)  # it moves the new message, or leaves it out
    right = {truth}
    if template.facts.end_of_turn_is_marker:
        right |= {whole[whole.rindex(truth) - len(end) :] for end in (*template.ends, "<|system|>")}
    letters = ""
    for way in WAYS.values():
        try:
            letters += "Y" if way(template, head, turn, new) in right else "N"
        except Exception:  # noqa: BLE001
            letters += "E"
    return letters


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="single call", help="the conversation of the first table")
    parser.add_argument("--json", action="store_true", help="print all letters as JSON")
    given = parser.parse_args()
    letters: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        try:
            template = Template(path)
        except TemplateError as error:
            refused[path.stem] = str(error)
            continue
        letters[path.stem] = {case: measure(template, case) for case in CASES}
    if given.json:
        print(json.dumps({"ways": list(WAYS), "letters": letters, "refused": refused}, indent=1))
        return
    print(f"{given.case}; columns: {', '.join(WAYS)}")
    for title, names in (
        (f"{len(TOOL_CAPABLE)} tool-capable originals", TOOL_CAPABLE),
        ("the rest of trl's", [name for name in letters if name not in TOOL_CAPABLE]),
    ):
        print(f"\n{title}")
        for name in names:
            print(f"  {name:34s} {' '.join(letters[name][given.case])}")
    for name, why in refused.items():
        print(f"  {name:34s} refused: {why}")
    print(
        f"\ntotals over the {len(TOOL_CAPABLE)} (exact/wrong/raised, of the templates that can have the conversation)"
    )
    for case in CASES:
        able = [letters[name][case] for name in TOOL_CAPABLE if "-" not in letters[name][case]]
        print(f"  {case} ({len(able)} templates)")
        for column, way in enumerate(WAYS):
            counts = Counter(row[column] for row in able)
            print(f"    {way:34s} {counts['Y']:3d} / {counts['N']:3d} / {counts['E']:3d}")


if __name__ == "__main__":
    main()
