"""Messages and tools as a chat template may see them: nothing but the policy's own writing holds control tokens.

*Foreign* is all text that the policy did not sample: results, users, tasks, and the tools' schemas, which come from
servers of strangers. `SafeEncoder.protect` hides the control tokens in it, and pieces that the template could complete.

An assistant's message that a task brings is foreign too, but shows how a policy writes. There the tokens stay that the
template itself writes inside of a turn, as `<think>` and `<tool_call>`; those that end a turn or begin a message go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, cast

from toolgym.rollout.tokens.chat_template import ChatTemplate, check_message
from toolgym.rollout.tokens.end_of_turn import called
from toolgym.rollout.tokens.marked_turns import THINK
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.switch_words import compared_words
from toolgym.rollout.tokens.template_analysis import TemplateAnalysis
from toolgym.tools.errors import TemplateError
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Content, Message, images_of, text_of, user

try:
    from transformers import PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

_OWN = frozenset({"content", "reasoning_content", "reasoning", "thinking"})
"""Parts of an assistant's message that the policy wrote itself."""

_LOOKED_AT = frozenset(
    (
        *("type", "function", "name", "description", "parameters", "strict", "return", "response", "properties"),
        *("required", "items", "enum", "default", "nullable", "anyOf", "oneOf", "allOf", "additionalProperties"),
        *("const", "format", "title", "examples", "minimum", "maximum", "minLength", "maxLength", "$ref", "$defs"),
        *("string", "integer", "number", "boolean", "object", "array", "null"),
    )
)
"""Words of a schema that templates ask for or compare. They stay, unless they are a control token as a whole."""


def template_with_tools(
    tokenizer: PreTrainedTokenizerBase,
    encoder: SafeEncoder,
    tools: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> ChatTemplate:
    """The tokenizer's chat template, showing tools in the OpenAI shape, whose texts become no control token. Pieces of
    one are hidden as well, unless the template then writes another text (some sort by names, or change their case),
    and none of them becomes a control token. Raises TemplateError as `ChatTemplate` does."""

    def part(text: str) -> str:
        return encoder.protect_whole(text) if text in _LOOKED_AT else encoder.protect(text)

    now = now or datetime.now()
    whole, parts = ([_map_strings(tool, change) for tool in tools] for change in (encoder.protect_whole, part))
    template = ChatTemplate(tokenizer, parts, variables, now)
    if whole == parts:
        return template
    plain = ChatTemplate(tokenizer, whole, variables, now)
    try:
        hidden, shown = (each.render([user("x")]) for each in (template, plain))
    except TemplateError:  # it shows no tools to a user who says no more
        return template
    same_text = encoder.restore(hidden) == encoder.restore(shown)
    return template if same_text or _controls(encoder, hidden) != _controls(encoder, shown) else plain


class SafeMessages:
    """Makes messages safe for one chat template."""

    def __init__(self, template: ChatTemplate, encoder: SafeEncoder, analysis: TemplateAnalysis) -> None:
        self._template, self._encoder, self._analysis = template, encoder, analysis
        self._looked_for = frozenset(compared_words(template)) if analysis.facts.switch_words else frozenset()

    def __call__(self, messages: Sequence[Message], examples: Collection[Message] = ()) -> list[Message]:
        """Messages as the template may see them. An assistant's is the policy's own, unless an equal one is among
        the `examples`, which came with the task."""
        for message in messages:
            check_message(message)
        return [self._safe(message, examples) for message in messages]

    @cached_property
    def turn_tokens(self) -> frozenset[str]:
        """The control tokens that the template writes inside of a turn, and not around one."""
        facts, asked = self._analysis.facts, user("x")
        thinking: Any = {**called("x", ["f"]), "reasoning_content": "x"}
        around = self._written([asked]) | set(self._analysis.ends.known)
        # Tokens of a turn that some templates write into the generation prompt.
        tags = {*THINK[:2], *_controls(self._encoder, "".join(facts.thinking[:2]))} - set(self._analysis.ends.known)
        around |= set(_controls(self._encoder, facts.generation_prompt)) - tags
        return frozenset((self._written([asked, thinking]) - around) | tags)

    def _protect(self, text: str) -> str:
        """Hide control tokens, and pieces of one unless the template itself looks for the text, such as `/think`."""
        if text.strip() in self._looked_for:
            return self._encoder.protect_whole(text)
        return self._encoder.protect(text)

    def _written(self, messages: list[Message]) -> set[str]:
        try:
            return set(_controls(self._encoder, self._template.render(messages, generation_prompt=False, tools=())))
        except TemplateError:  # some templates render no calls
            return set()

    def _safe(self, message: Message, examples: Collection[Message]) -> Message:
        protect = self._protect
        fields = _OWN if message["role"] == "assistant" else ()
        safe: dict[str, Any] = {}
        value: Any
        for key, value in message.items():
            if key == "role" or key in fields:
                safe[key] = value
            elif isinstance(value, str):
                safe[key] = protect(value)
            elif key == "content" and isinstance(value, list):
                safe[key] = _safe_parts(value, protect)
            elif key == "tool_calls" and value:
                safe[key] = [_safe_call(call, self._encoder) for call in value]
            elif value is not None:
                safe[key] = _map_strings(value, self._encoder.protect_whole)
        if fields and message in examples:
            shown = {key: text for key, text in safe.items() if key in fields and isinstance(text, str)}
            safe.update({key: self._encoder.protect(text, self.turn_tokens) for key, text in shown.items()})
        return cast(Message, safe)


def _controls(encoder: SafeEncoder, text: str) -> list[str]:
    return [match.group() for match in encoder.all_controls(text)]


def _safe_parts(content: Content, protect: Callable[[str], str]) -> Any:
    """A content as chat templates take it: parts if it has images, which stand for themselves."""
    if isinstance(content, str) or not images_of(content):
        return protect(text_of(content))
    return [
        {"type": "text", "text": protect(part["text"])} if part["type"] == "text" else {"type": "image"}
        for part in content
    ]


def _safe_call(call: Mapping[str, Any], encoder: SafeEncoder) -> dict[str, Any]:
    function = call["function"]
    arguments = _map_strings(function.get("arguments", {}), encoder.protect)
    safe: dict[str, Any] = {
        key: encoder.protect(call["id"]) if key == "id" else _map_strings(call[key], encoder.protect_whole)
        for key in call
    }
    return {**safe, "function": {"name": encoder.protect(function["name"]), "arguments": arguments}}


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    return value
