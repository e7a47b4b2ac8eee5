"""Whether a chat template can be used turn by turn, case by case.

Each case is a conversation whose last turn is followed by new messages. The template renders the whole of it; the text
behind the turn's end is the truth, which `ChatRenderer.extend` has to give as token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from toolgym.rollout.tokenizer import holds_tokenizer, load_tokenizer
from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, called
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_analysis import TemplateFacts, analyze
from toolgym.tools.errors import ConfigError, TemplateError, missing_extra
from toolgym.tools.message import Message, assistant, system, tool, user
from toolgym.tools.schema import ToolSchema

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
except ImportError as error:
    raise missing_extra("rollout", "Checking a chat template", error) from error

_SPECIAL = re.compile(
    r"<\|\"\|>|<\|[^<>|\s'\"]+\|?>|<[^<>|\s'\"]+\|>|<｜[^<>\s]+｜>|<(?:start|end)_of_\w+>|\[gMASK\]|<sop>"
)
"""How special tokens are written in the templates that we know."""

_MARKERS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Tokens of their own as well, but not special ones."""

_PROBE_TOOL = ToolSchema(
    "lookup",
    "Look a word up.",
    {"type": "object", "properties": {"x": {"type": "string", "description": "The word."}}, "required": ["x"]},
)


class Status(StrEnum):
    """What a case showed."""

    APPEND_ONLY = "append-only"
    """The delta is exact, and the template repeats the earlier conversation unchanged."""
    EXACT = "exact by delta"
    """The delta is exact; rendering everything again would change what the policy saw before."""
    NOT_SUPPORTED = "not supported"
    """The conversation cannot go on so."""


@dataclass(frozen=True)
class Case:
    """One case and what it showed.

    Attributes:
        name: of the case.
        status: see `Status`.
        why: what the template does, where it is not append-only; otherwise empty.
        required: whether a template that does not support it cannot be used at all. The other cases are the
            template's choice.
    """

    name: str
    status: Status
    why: str
    required: bool


@dataclass(frozen=True)
class Report:
    """All cases of one template.

    Attributes:
        cases: see `Case`.
        facts: what was proven; None where the template cannot be used at all.
        tokenizer: where the tokenizer came from, in words.
    """

    cases: tuple[Case, ...]
    facts: TemplateFacts | None
    tokenizer: str

    @property
    def exact(self) -> bool:
        """Whether every required case is supported."""
        return all(case.status is not Status.NOT_SUPPORTED for case in self.cases if case.required)


class _Conversation(NamedTuple):
    name: str
    required: bool
    head: list[Message]
    turn: Message
    new: list[Message]
    cut_off: bool = False


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[ToolSchema] = (),
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    origin: str = "the model's own",
) -> Report:
    """Try all cases.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        tools: the tools that the template offers to the policy; default: a tool of one argument.
        template_kwargs: further variables for the template.
        origin: where the tokenizer came from, for the report.
    """
    tools = tools or [_PROBE_TOOL]
    try:
        renderer = ChatRenderer(tokenizer, tools, template_kwargs)
        checker = _Checker(renderer, tokenizer, template_kwargs)
    except TemplateError as error:
        return Report((Case("any turn at all", Status.NOT_SUPPORTED, str(error), True),), None, origin)
    cases = [checker.check(one) for one in _conversations(renderer, tools[0].name, checker.mark)]
    return Report((*cases, checker.check_safety()), renderer.facts, origin)


class _Checker:
    def __init__(
        self, renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None
    ) -> None:
        self.renderer = renderer
        self.encoder = SafeEncoder.of(tokenizer)
        self.template = ChatTemplate(tokenizer, renderer.tools, template_kwargs)
        self.ends = analyze(self.template, self.encoder, dict(template_kwargs or {})).ends
        self.mark = f"{self.encoder.nonce}m"

    def check(self, one: _Conversation) -> Case:
        try:
            status, why = self._look(one)
        except TemplateError as error:
            status, why = Status.NOT_SUPPORTED, str(error)
            if one.name == "parallel calls" and self.ends.renders_calls and not self.renderer.facts.parallel_calls:
                why = f"the chat template renders one call per message; with the calls kept as text: {why}"
        return Case(one.name, status, why, one.required)

    def _look(self, one: _Conversation) -> tuple[Status, str]:
        whole = self.template.render([*one.head, one.turn, *one.new])
        end, behind = self.ends.cut(self.encoder, whole, self.mark, one.turn)
        if one.cut_off:
            text = one.turn["content"]
            closing = self.ends.history.text
            truth = self.encoder.encode(closing + behind)
            given = self.renderer.extend(one.new, self.encoder.encode(text))
        else:
            truth = self.encoder.encode(end + behind)[1:]
            given = self.renderer.extend(one.new, [self.encoder.id_of(end)])
        if given != truth:
            return Status.NOT_SUPPORTED, (
                f"the template writes {behind!r} behind this turn, and {self.renderer.decode(given)!r} behind the same "
                "turn of a shorter conversation"
            )
        before = self.template.render(one.head)
        alone = self.template.render([*one.head, one.turn], generation_prompt=False)
        grown = whole[: len(whole) - len(behind)]
        if self.ends.ends_with_next_role:
            grown = grown[: grown.rindex(self.mark)]
        if not whole.startswith(before):
            if whole.startswith(before.removesuffix(self.renderer.facts.generation_prompt)):
                return Status.EXACT, "rendered again, the turn does not begin with its generation prompt"
            return Status.EXACT, "rendered again, earlier turns are changed"
        if not alone.startswith(grown):
            return Status.EXACT, "the turn is rendered otherwise once messages follow it"
        return Status.APPEND_ONLY, ""

    def check_safety(self) -> Case:
        """Whether tool results can hold the text of control tokens."""
        name, role = "control tokens in a result", "tool"
        text = " ".join([*self.encoder.contents, *self.encoder.contents])
        kinds = self.renderer.facts.plans
        if "one result" not in kinds:
            role = "user"
        try:
            calm, wild = (
                sum(token in self.renderer.added_ids for token in self.renderer.extend([_message(role, content)]))
                for content in ("calm", text)
            )
        except TemplateError as error:
            return Case(name, Status.NOT_SUPPORTED, str(error), True)
        if calm != wild:
            return Case(name, Status.NOT_SUPPORTED, f"{wild - calm} of them were read as control tokens", True)
        return Case(name, Status.EXACT, "they stay plain text", True)


def _message(role: str, content: str) -> Message:
    return tool(content, tool_call_id=PROBE_IDS[0], name=_PROBE_TOOL.name) if role == "tool" else user(content)


def _conversations(renderer: ChatRenderer, name: str, mark: str) -> list[_Conversation]:
    facts = renderer.facts

    def call(argument: str, count: int = 1) -> Message:
        if facts.tool_calls_rendered and (count == 1 or facts.parallel_calls):
            return called(argument, [name] * count)
        return assistant(f"{name}({argument}" * count)

    def thinking(message: Message) -> Message:
        return {**message, "reasoning_content": "Let me see.\nIt is a word."}

    def results(*contents: str) -> list[Message]:
        return [tool(text, tool_call_id=PROBE_IDS[at], name=name) for at, text in enumerate(contents)]

    asked = [system("Be brief."), user("What is a fox?")]
    try:
        renderer.prompt(asked)
    except TemplateError:  # no system prompts
        asked = asked[1:]
    one, answer = call(mark), assistant(f"An animal. {mark}")
    cycle = [*asked, call("fox"), *results("an animal")]
    odd = "naïve ☃ 🦊\u200d 日本語 \u0301 \t end"
    return [
        _Conversation("single call", True, asked, one, results("an animal")),
        _Conversation("parallel calls", False, asked, call(mark, 2), results("an animal", "a hunter")),
        _Conversation("second tool cycle", False, cycle, one, results("a hunter")),
        _Conversation("thinking", False, asked, thinking(one), results("an animal")),
        _Conversation(
            "thinking, then the user",
            False,
            [*asked, thinking(call("fox")), *results("an animal")],
            thinking(answer),
            [user("And a hare?")],
        ),
        _Conversation("retry by the user", True, asked, assistant(f"Look up {mark}"), [user("Call a tool.")]),
        _Conversation("new user turn", True, cycle, answer, [user("And a hare?")]),
        _Conversation("result and user", False, asked, one, [*results("an animal"), user("Go on.")]),
        _Conversation("system in the middle", False, asked, answer, [system("Now in French."), user("And a hare?")]),
        _Conversation("empty content", True, asked, one, results("")),
        _Conversation("unicode", True, asked, one, results(odd)),
        _Conversation("truncated turn", True, asked, assistant(f"An {mark}"), [user("Go on.")], cut_off=True),
    ]


# ---------------------------------------------------------------------- where a template comes from


def tokenizer_for(source: str | Path) -> tuple[PreTrainedTokenizerBase, str]:
    """The tokenizer to check a template with.

    Args:
        source: a folder with a tokenizer, a folder or file with nothing but a chat template, or a model's name on the
            hub. For what lies in a folder, no network is used.

    Returns:
        The tokenizer with its chat template, and in words where it came from.

    Raises:
        UnknownNameError: there is no such folder or file.
        ConfigError: it holds neither a tokenizer nor a chat template, or one that cannot be read.
    """
    path = Path(source)
    if path.is_file():
        if path.suffix not in (".jinja", ".jinja2", ".j2"):
            raise ConfigError(f"expected a folder or a .jinja file, got the file {str(source)!r}")
        return byte_tokenizer(_read(path)), _GUESSED
    if path.is_dir() and not holds_tokenizer(path):  # one that is there and broken is the user's to mend
        template = _template_in(path)
        if template is not None:
            return byte_tokenizer(template), _GUESSED
    return load_tokenizer(source), "the model's own"


_GUESSED = "none was found: bytes, and the markers that stand in the template"


def _template_in(folder: Path) -> str | None:
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        file = folder / name
        if not file.is_file():
            continue
        text = _read(file)
        if file.suffix == ".jinja":
            return text
        try:
            template = json.loads(text).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"expected a JSON object in {str(file)!r}: {error}") from error
        if isinstance(template, str):
            return template
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(file)!r}, which should be text in UTF-8: {error}") from error


def byte_tokenizer(template: str, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer for a chat template that came without one: a token per byte, and one per marker in the template.

    Args:
        template: the chat template's text.
        special: further special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    found = dict.fromkeys(["<bos>", "<eos>", *special, *_SPECIAL.findall(template)])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in found])
    markers = dict.fromkeys(_MARKERS.findall(template))
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer
