"""Whether a chat template can be used turn by turn, case by case.

Each case is a conversation whose last turn is followed by new messages. What is right is found without the code under
test: transformers renders the whole conversation and encodes it. The ids that an episode would hold have to be the same
ones: those of `ChatRenderer.prompt`, the turn's, and those of `ChatRenderer.extend`.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from toolgym.rollout.models.images import ImageProcessor, picture
from toolgym.rollout.models.processor import processor_of
from toolgym.rollout.models.tokenizer import holds_tokenizer, load_tokenizer
from toolgym.rollout.tokens.chat_template import REASONING_FIELDS
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, called
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_analysis import TemplateFacts
from toolgym.tools.errors import ConfigError, TemplateError
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import (
    Content,
    ImagePart,
    Message,
    assistant,
    image,
    images_of,
    system,
    text_part,
    tool,
    user,
)
from toolgym.tools.schema import ToolSchema

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
    from transformers.utils.chat_template_utils import _compile_jinja_template
except ImportError as error:
    raise missing_extra("rollout", "Checking a chat template", error) from error

_SPECIAL = re.compile(
    r"<\|\"\|>|<\|[^<>|\s'\"]+\|?>|<[^<>|\s'\"]+\|>|<｜[^<>\s]+｜>|<(?:start|end|beginning)_\w+>|</?\w+:\w+>|<(?:/?s|sop|sep|escape)>"
    r"|\[gMASK\]|\[\|\w+\|\]|\[/?[A-Z]+(?:_[A-Z]+)*\]|\]~!?b\[|\[e~\["
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
    APPEND_ONLY = "append-only"
    """The delta is exact, and the template repeats the earlier conversation unchanged."""
    EXACT = "exact by delta"
    """The delta is exact; rendering everything again would change what the policy saw before."""
    NOT_SUPPORTED = "not supported"
    """The conversation cannot go on so: `ChatRenderer` refuses it."""
    WRONG = "wrong"
    """`ChatRenderer` gives other tokens than the template."""


@dataclass(frozen=True)
class Case:
    """One case and what it showed: `why` is the reason why it is not append-only. `required` ones every template
    must support."""

    name: str
    status: Status
    why: str
    required: bool


@dataclass(frozen=True)
class TemplateReport:
    """All cases of one template, and the proven facts; None if the template cannot be used at all."""

    cases: tuple[Case, ...]
    facts: TemplateFacts | None
    tokenizer: str

    @property
    def exact(self) -> bool:
        """Whether every required case is supported, and no case is wrong."""
        refused = any(case.status is Status.NOT_SUPPORTED for case in self.cases if case.required)
        return not refused and all(case.status is not Status.WRONG for case in self.cases)


class _Conversation(NamedTuple):
    name: str
    required: bool
    head: list[Message]
    turn: Message
    new: list[Message]
    cut_off: bool = False


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[ToolSchema] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    origin: str = "the model's own",
    processor: ImageProcessor | None = None,
) -> TemplateReport:
    """Try all cases, each with and without a system prompt if the template takes one. `tools` may be none; the
    default is a tool of one argument. `origin` says where the tokenizer came from. With a `processor` (default: that
    beside the tokenizer) there are cases of images, whose ids are compared with its own."""
    cases: dict[str, Case] = {}
    try:
        processor = processor or processor_of(tokenizer)
    except ConfigError as error:
        cases["images"] = Case("images", Status.NOT_SUPPORTED, str(error), False)
    offered = [_PROBE_TOOL] if tools is None else list(tools)
    now = datetime.now()
    try:
        renderer = ChatRenderer(tokenizer, offered, template_kwargs, now=now, processor=processor)
        checker = _Checker(renderer, now, template_kwargs or {}, processor)
    except TemplateError as error:
        return TemplateReport((Case("any turn at all", Status.NOT_SUPPORTED, str(error), True),), None, origin)
    asked = [user("What is a fox?")]
    heads = [head for head in ([system("Be brief."), *asked], asked) if not checker.refusal(head)]
    if not heads:
        return TemplateReport(
            (Case("any prompt at all", Status.NOT_SUPPORTED, checker.refusal(asked), True),), None, origin
        )
    name = (offered or [_PROBE_TOOL])[0].name
    for case in (checker.check(asked) for head in heads for asked in _conversations(checker, head, name)):
        known = cases.setdefault(case.name, case)
        if _ORDER.index(case.status) > _ORDER.index(known.status):
            cases[case.name] = case
    return TemplateReport((*cases.values(), checker.check_safety(asked, name)), checker.renderer.facts, origin)


_ORDER = tuple(Status)


class _Checker:
    def __init__(
        self, renderer: ChatRenderer, now: datetime, variables: Mapping[str, Any], processor: ImageProcessor | None
    ) -> None:
        self.renderer, self.facts, self.processor = renderer, renderer.facts, processor
        self.tokenizer = renderer.tokenizer
        self.encoder = SafeEncoder.of(self.tokenizer)
        self.mark = f"{self.encoder.nonce}m"
        self.ends = (*self.facts.ends_of_turn, self.facts.end_of_turn_in_history)
        self.variables, self.now = dict(variables), now

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """By transformers itself; arguments as text if nothing else will do."""
        shown = json.loads(json.dumps(messages))
        for message in shown:
            if isinstance(message["content"], list):
                message["content"] = [
                    part if part["type"] == "text" else {"type": "image"} for part in message["content"]
                ]
            elif self.facts.content_parts:
                message["content"] = [{"type": "text", "text": message["content"]}]
        if self.facts.json_arguments:
            for function in (call["function"] for message in shown for call in message.get("tool_calls", ())):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        try:
            if self.facts.uses_date:  # transformers would write the present one, which some templates do to the second
                return self._of_now(shown, generation_prompt)
            text: str = self.tokenizer.apply_chat_template(
                shown,
                tools=self.renderer.tools or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.variables,
            )
        except Exception as error:  # a template is a program of its own
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        return text

    def _of_now(self, messages: list[Message], generation_prompt: bool) -> str:
        tools = self.renderer.tools or None
        template = _compile_jinja_template(self.tokenizer.get_chat_template(None, tools))
        values = {**self.tokenizer.special_tokens_map, **self.variables, "strftime_now": self.now.strftime}
        text: str = template.render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=generation_prompt, **values
        )
        return text

    def refusal(self, messages: Sequence[Message]) -> str:
        try:
            self.render(messages)
        except TemplateError as error:
            return str(error)
        return ""

    def encode(self, text: str) -> list[int]:
        count = 0 if self.processor is None else text.count(self.processor.image_token)
        if not count or self.processor is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        pictures = [picture(url) for url in images_of([_picture()])] * count
        return list(self.processor.processor(text=[text], images=pictures, add_special_tokens=False)["input_ids"][0])

    def check(self, conversation: _Conversation) -> Case:
        try:
            status, why = self._look(conversation)
        except TemplateError as error:
            status, why = Status.NOT_SUPPORTED, str(error)
            if (
                conversation.name == "parallel calls"
                and self.facts.tool_calls_rendered
                and not self.facts.parallel_calls
            ):
                why = f"the chat template renders one call per message; with the calls kept as text: {why}"
        return Case(conversation.name, status, why, conversation.required)

    def _look(self, conversation: _Conversation) -> tuple[Status, str]:
        before = self.render(conversation.head)
        prompt = self.renderer.prompt(conversation.head)
        if prompt != self.encode(before):
            return (
                Status.WRONG,
                f"the template writes the prompt {before!r}, and it is {self.renderer.decode(prompt)!r}",
            )
        whole = self.render([*conversation.head, conversation.turn, *conversation.new])
        at = whole.rfind(self.mark)
        if at == -1:
            raise TemplateError("the chat template drops an assistant message once such messages follow")
        at += len(self.mark)
        # The turn is what the policy writes up to its end. A turn that was cut, or ends with a marker, has none yet.
        ends = [whole.index(end, at) + len(end) for end in self.ends if end in whole[at:]]
        marker = self.facts.end_of_turn_is_marker  # which belongs to the next message, and may be one of another role
        first = self.encoder.first_control(whole, at)
        other = (
            marker and "tool_calls" not in conversation.turn and first is not None and first.group() not in self.ends
        )
        if conversation.cut_off or other or not ends:
            ends = [at]
        # Encoded from the mark on: what swallows white space behind it does so here as well.
        word = (self.renderer.thinking.closes if self.renderer.opens_thinking else "") + self.mark
        turn = self.encode(word + whole[at : min(ends)])
        truth = self.encode(word + whole[at:])
        extended = turn + self.renderer.extend(conversation.new, turn, earlier=conversation.head)
        if extended != truth:
            return Status.WRONG, (
                f"the template writes {self.renderer.decode(truth)!r} from the turn's last word on, and it is "
                f"{self.renderer.decode(extended)!r}"
            )
        alone = self.render([*conversation.head, conversation.turn], generation_prompt=False)
        if not whole.startswith(before):
            if whole.startswith(before.removesuffix(self.facts.generation_prompt)):
                return Status.EXACT, "rendered again, the turn does not begin with its generation prompt"
            return Status.EXACT, "rendered again, earlier turns are changed"
        if not alone.startswith(whole[: at if marker else min(ends)]):
            return Status.EXACT, "the turn is rendered otherwise once messages follow it"
        return Status.APPEND_ONLY, ""

    def check_safety(self, head: list[Message], name: str) -> Case:
        case, results = "control tokens in a result", "one result" in self.facts.plans
        text = " ".join([*self.encoder.contents, *self.encoder.contents])

        def controls(content: str) -> int:
            new = tool(content, tool_call_id=PROBE_IDS[0], name=name) if results else user(content)
            return sum(token in self.renderer.added_ids for token in self.renderer.extend([new], earlier=head))

        try:
            calm, wild = controls("calm"), controls(text)
        except TemplateError as error:
            return Case(case, Status.NOT_SUPPORTED, str(error), True)
        if calm != wild:
            return Case(case, Status.WRONG, f"{wild - calm} of them were read as control tokens", True)
        return Case(case, Status.EXACT, "they stay plain text", True)


def _conversations(checker: _Checker, asked: list[Message], name: str) -> list[_Conversation]:
    facts, mark = checker.facts, checker.mark

    def call(argument: str, count: int = 1, ids: Sequence[str] = PROBE_IDS) -> Message:
        if facts.tool_calls_rendered and (count == 1 or facts.parallel_calls):
            return called(argument, [name] * count, ids)
        return assistant(f"{name}({argument}" * count)

    def results(*contents: str, ids: Sequence[str] = PROBE_IDS) -> list[Message]:
        return [tool(text, tool_call_id=ids[at], name=name) for at, text in enumerate(contents)]

    def earlier(number: int, content: str) -> list[Message]:
        ids = [f"earlier{number:02}"]
        return [call("fox", ids=ids), *results(content, ids=ids)]

    def thinking(message: Message) -> Message:
        thought = "Let me see.\nIt is a word."
        return {**message, **dict.fromkeys(REASONING_FIELDS, thought)}  # type: ignore[typeddict-item]

    asking, answer = call(mark), assistant(f"An animal. {mark}")
    result, hare = results("an animal"), user("And a hare?")
    first = earlier(1, "a beast")
    cycle = [*asked, *first]
    later = [*cycle, assistant("It is an animal."), hare]
    thought = [*asked, thinking(first[0]), first[1]]
    odd = "naïve ☃ 🦊\u200d 日本語 \u0301 \t end"
    cases = [
        ("single call", True, asked, asking, result),
        ("parallel calls", False, asked, call(mark, 2), results("an animal", "a hunter")),
        ("second tool cycle", True, cycle, asking, results("a hunter")),
        ("third tool cycle", True, [*cycle, *earlier(2, "a pet")], asking, results("a hunter")),
        ("tool cycle in a later turn", True, later, asking, results("a hunter")),
        ("parallel calls, second tool cycle", False, cycle, call(mark, 2), results("an animal", "a hunter")),
        ("thinking", False, asked, thinking(asking), result),
        ("thinking, second tool cycle", False, thought, thinking(asking), results("a hunter")),
        ("thinking, then the user", False, thought, thinking(answer), [hare]),
        ("retry by the user", True, asked, assistant(f"Look up {mark}"), [user("Call a tool.")]),
        ("new user turn", True, cycle, answer, [hare]),
        ("second new user turn", True, [*later, *earlier(2, "it too")], answer, [user("Thanks.")]),
        ("result and user", False, asked, asking, [*result, user("Go on.")]),
        ("result and system", False, asked, asking, [*result, system("Now in French.")]),
        ("system in the middle", False, asked, answer, [system("Now in French."), hare]),
        ("empty content", True, asked, asking, results("")),
        ("unicode", True, asked, asking, results(odd)),
    ]
    if checker.processor is not None:
        shown: Content = [text_part("What is it?\n"), _picture()]
        seen: Content = [_picture(), text_part("\nAnd here?")]
        pictured = [*asked[:-1], user(shown)]
        pictured_result = [tool(shown, tool_call_id=PROBE_IDS[0], name=name)]
        cases += [
            ("image of the user", False, pictured, answer, [hare]),
            ("image in a result", False, asked, asking, pictured_result),
            ("image in a later turn", False, pictured, answer, [user(seen)]),
        ]
    return [
        *(_Conversation(*case) for case in cases),
        _Conversation("truncated turn", True, asked, assistant(f"An {mark}"), [user("Go on.")], cut_off=True),
    ]


@functools.cache
def _picture() -> ImagePart:
    from PIL import Image  # each processor needs it

    data = io.BytesIO()
    Image.new("RGB", (96, 64), "red").save(data, "PNG")
    return image(data.getvalue())


def tokenizer_for(source: str | Path, special: Sequence[str] = ()) -> tuple[PreTrainedTokenizerBase, str]:
    """The tokenizer to check a template with, and in words where it came from.

    `source` is a folder with a tokenizer, a folder or file with nothing but a chat template, or a model's name on the
    hub. `special` are further tokens of a template that came without a tokenizer. No network is used for a folder.

    Raises:
        UnknownNameError: there is no such folder or file.
        ConfigError: it holds neither a tokenizer nor a chat template, or one that cannot be read; or it has a
            tokenizer, and special tokens are given.
    """
    path = Path(source)
    if path.is_file():
        if path.suffix not in (".jinja", ".jinja2", ".j2"):
            raise ConfigError(f"expected a folder or a .jinja file, got the file {str(source)!r}")
        return byte_tokenizer(_read(path), special), GUESSED
    if path.is_dir() and not holds_tokenizer(path):  # one that is there and broken is the user's to mend
        template = _template_in(path)
        if template is not None:
            return byte_tokenizer(template, special), GUESSED
    if special:
        raise ConfigError(f"special tokens are for a template without a tokenizer, and {str(source)!r} has one")
    return load_tokenizer(source), "the model's own"


GUESSED = "none was found: bytes, and the markers that stand in the template"


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
    """A tokenizer for a chat template that came without one: a token per byte, and one per marker in the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = dict.fromkeys(["<bos>", "<eos>", *special, *_SPECIAL.findall(template)])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in names])
    markers = dict.fromkeys(_MARKERS.findall(template))
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer
