"""A tokenizer's chat template as a function from messages to text, the same one for a whole run.

It renders as `apply_chat_template` does, but calls the compiled template directly, which is several times faster; keeps
the date of its making, so that a conversation does not change at midnight; and gives tool calls' arguments as the JSON
text that some templates want.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from toolgym.tools.errors import ConfigError, TemplateError
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Message, require_content

try:
    from jinja2 import Environment, Template, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import _compile_jinja_template
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

ROLES = ("system", "user", "assistant", "tool")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names for the thinking of a message. Templates read one of them."""


_NAMES_OF_DICTS = frozenset(dir(dict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Remembers whether an attribute is safe, which depends on the object's type and the name only. `message.role`
    is looked up as a key at once if a dict has no attribute of that name; the sandbox gets there by way of an
    exception."""

    answers: dict[tuple[type, str], bool]

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _NAMES_OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (type(obj), attr)
        safe = self.answers.get(key)
        if safe is None:
            if len(self.answers) > 1000:  # names can come from data
                self.answers.clear()
            safe = self.answers[key] = super().is_safe_attribute(obj, attr, value)
        return safe


@lru_cache(maxsize=64)
def _compile(source: str) -> Template:
    """A template in the environment of transformers, with that memory. It takes up to 0.3 s, so each is kept."""
    environment: Environment = _compile_jinja_template("").environment
    if type(environment) is not ImmutableSandboxedEnvironment:
        return environment.from_string(source)  # another version's; it may have its own rules
    copy = environment.overlay()
    copy.__class__ = _Sandbox
    assert isinstance(copy, _Sandbox)
    copy.answers = {}
    return copy.from_string(source)


class ChatTemplate:
    """Renders conversations. `tools` are in the OpenAI shape and safe to render; `fewest_tools` are for a text that
    does not depend on them. `json_arguments` says whether the template wants the arguments of tool calls as JSON
    text, `content_parts` whether it drops a content that is a text and no list of parts. Raises TemplateError if the
    tokenizer has no chat template, or it does not compile."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError("the tokenizer has no chat template; give it one in `tokenizer.chat_template`")
        self.tools = list(tools)
        self.json_arguments = False
        self._now = now or datetime.now()
        try:
            self.source: str = tokenizer.get_chat_template(None, self.tools or None)
            self._compiled = _compile(self.source)
        except Exception as error:  # a template is a program of its own
            raise TemplateError(f"the chat template cannot be used: {type(error).__name__}: {error}") from error
        self.uses_date = "strftime_now" in self.source
        self.special_tokens = dict(tokenizer.special_tokens_map)
        self._variables = {
            **self._compiled.globals,  # given here: jinja2 would copy them anew at each rendering
            **self.special_tokens,
            "documents": None,
            "strftime_now": self._now.strftime,
            **(variables or {}),
        }
        self.fewest_tools: list[Mapping[str, Any]] | None = None
        if self.tools:
            fewest: tuple[list[Mapping[str, Any]] | None, ...] = (None, [])
            self.fewest_tools = next((few for few in fewest if self._tried("x", few) is not None), self.tools[:1])
        alone, part = ("xyz" in (self._tried(shown, self.fewest_tools) or "") for shown in ("xyz", _as_parts("xyz")))
        self.content_parts = part and not alone

    @property
    def tree(self) -> nodes.Template:
        """The syntax tree of the template."""
        return self._compiled.environment.parse(self.source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render messages. With empty `tools`, `fewest_tools` are shown instead of the conversation's. Raises
        TemplateError with the template's own words if it refuses the messages or fails on them."""
        shown = (self.tools or None) if tools is None else (list(tools) or self.fewest_tools)
        try:
            text = self._text([self._as_expected(message) for message in messages], shown, generation_prompt)
        except Exception as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        return text

    def _tried(self, content: Any, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        try:
            return self._text([{"role": "user", "content": content}], tools, True)
        except Exception:  # noqa: BLE001  a template is a program of its own
            return None

    def _text(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None, generation_prompt: bool
    ) -> str:
        variables = {
            **self._variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": generation_prompt,
        }
        template = self._compiled
        return "".join(template.root_render_func(template.new_context(variables, shared=True)))

    def _as_expected(self, message: Message) -> dict[str, Any]:
        changed: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
        if message["role"] == "assistant":
            changed.setdefault("content", "")
        if self.content_parts and isinstance(changed["content"], str):
            changed["content"] = _as_parts(changed["content"])
        if message["role"] != "assistant":
            return changed
        reasoning = next((changed[name] for name in REASONING_FIELDS if name in changed), None)
        if reasoning is not None:  # templates differ in what they call it
            changed = {**dict.fromkeys(REASONING_FIELDS, reasoning), **changed, "reasoning_content": reasoning}
        if self.json_arguments and message.get("tool_calls"):
            changed["tool_calls"] = [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                    },
                }
                for call in message["tool_calls"]
            ]
        return changed


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def check_message(message: Message) -> None:
    role: Any = message.get("role")
    content: Any = message.get("content")
    if role not in ROLES:
        raise TemplateError(f"a message's role is one of {', '.join(ROLES)}, got {role!r}")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return
    if isinstance(content, list):
        if content and role != "assistant":
            with contextlib.suppress(ConfigError):
                require_content(content)
                return
        kinds = sorted(
            {str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__ for part in content}
        )
        raise TemplateError(
            "the content of a message is text, or, unless it is the assistant's, parts of type text and image_url "
            f"(a data URL); got a list with parts of type {', '.join(kinds) or 'none'} in a {role} message"
        )
    raise TemplateError(f"the content of a message is text, got {type(content).__name__} in a {role} message")
