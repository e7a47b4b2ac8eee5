"""Exact tokens: what the model saw is what the trainer gets.

Three rules hold here.

1. Generated ids are kept as generated; they are never decoded and encoded again.
2. After a turn, only the new messages are rendered, as the *delta* that the chat template puts between the turn's
   end-of-turn token and the next generation. The delta is rendered behind a small stand-in conversation, so its cost
   depends neither on the history nor on the tools. (Measured on 28 tool-capable templates, this is exact on 27; the
   stand-in's assistant message must call the tools that the new messages answer.)
3. Text from tools, users and tasks never becomes a special token. The tokenizer's added tokens are recognised only
   where the template itself wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from toolgym.tools.errors import TemplateError, missing_extra
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema

try:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

_MARK = "toolgym-mark-7f3a"
"""Stands for content whose place in the rendered text must be found again."""

_PRIVATE = (0xF0000, 0x10FFFD)
"""Code points of planes 15 and 16, which Unicode leaves to private use."""


class SafeEncoder:
    """Encodes rendered text in which some strings must not be read as special tokens.

    A string that must not be read so is *disarmed* before the template sees it: every occurrence of an added token's
    text is replaced by one private-use character. After rendering, the text is split at the real added tokens, which
    only the template can have written; the pieces between them are armed again and encoded by a copy of the tokenizer
    that has no added tokens at all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content: (index, token) for index, token in tokenizer.added_tokens_decoder.items()}
        self.added_ids = frozenset(index for index, _ in self._added.values())
        contents = sorted(self._added, key=len, reverse=True)
        self._order = contents
        self._find = re.compile("|".join(map(re.escape, contents))) if contents else None
        # An added token may swallow white space on its sides; splitting has to do the same.
        self._split = (
            re.compile(
                "|".join(
                    (r"\s*" if self._added[text][1].lstrip else "")
                    + f"({re.escape(text)})"
                    + (r"\s*" if self._added[text][1].rstrip else "")
                    for text in contents
                )
            )
            if contents
            else None
        )
        self._plain: Tokenizer | None = None

    def is_armed(self, text: str) -> bool:
        """Whether the text holds the text of an added token."""
        return self._find is not None and self._find.search(text) is not None

    def free_block(self, texts: Sequence[str]) -> int:
        """The first code point of a block of private-use characters, one per added token, that no text uses."""
        used = {ord(char) for text in texts for char in text if ord(char) >= _PRIVATE[0]}
        size = max(1, len(self._order))
        for start in range(_PRIVATE[0], _PRIVATE[1] - size, size):
            if not any(start <= point < start + size for point in used):
                return start
        raise TemplateError("the conversation uses every private-use character there is; it cannot be encoded safely")

    def disarm(self, text: str, block: int) -> str:
        """Replace each occurrence of an added token's text by its private-use character."""
        if self._find is None:
            return text
        return self._find.sub(lambda match: chr(block + self._order.index(match.group())), text)

    def encode(self, text: str, block: int | None = None) -> list[int]:
        """Encode rendered text.

        Args:
            text: what the template rendered.
            block: the block that `disarm` used, or None when nothing was disarmed.

        Returns:
            Token ids; added tokens only where the template wrote them.
        """
        if block is None or self._split is None:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
            return ids
        ids, at = [], 0
        for match in self._split.finditer(text):
            ids += self._encode_plain(self._arm(text[at : match.start()], block))
            content = next(group for group in match.groups() if group is not None)
            ids.append(self._added[content][0])
            at = match.end()
        return ids + self._encode_plain(self._arm(text[at:], block))

    def _arm(self, text: str, block: int) -> str:
        end = block + len(self._order)
        return "".join(self._order[ord(c) - block] if block <= ord(c) < end else c for c in text)

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        if self._plain is None:
            self._plain = _without_added_tokens(self._tokenizer)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self.added_ids.isdisjoint(ids) or len(text) == 1:
            return ids
        # A model whose vocabulary lists the special token may merge up to it; no piece shorter than it can.
        middle = len(text) // 2
        return self._encode_plain(text[:middle]) + self._encode_plain(text[middle:])


class Chat:
    """Turns one conversation with one set of tools into token ids, turn by turn.

    Args:
        tokenizer: a Hugging Face fast tokenizer with a chat template.
        tools: what the policy is told it may call.
        template_kwargs: further variables for the template, for example `{"enable_thinking": False}`.

    Raises:
        TemplateError: the tokenizer has no chat template, or the template marks no end of turn that can be sampled.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[ToolSchema] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError("the tokenizer has no chat template; give it one in `tokenizer.chat_template`")
        if not getattr(tokenizer, "is_fast", False):
            raise TemplateError(
                f"a fast tokenizer is needed (one with a tokenizer.json), got {type(tokenizer).__name__}"
            )
        self.tokenizer = tokenizer
        self.tools = [schema.to_openai() for schema in tools]
        self._kwargs = dict(template_kwargs or {})
        self._encoder = SafeEncoder(tokenizer)
        self._user: Message = {"role": "user", "content": "x"}
        try:
            self._head = self.render([self._user], tools=False)
            self.end_of_turn, self.end_of_turn_id = self._find_end_of_turn()
        except TemplateError:
            raise
        except Exception as error:  # a template is a program of its own
            raise TemplateError(f"the chat template cannot be used: {type(error).__name__}: {error}") from error

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The ids that end a turn."""
        return (self.end_of_turn_id,)

    @property
    def added_ids(self) -> frozenset[int]:
        """Ids of all special and added tokens."""
        return self._encoder.added_ids

    # ------------------------------------------------------------------ tokens

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to the point where the policy speaks.

        Args:
            messages: all messages so far. Contents of assistant messages are the policy's own writing and may contain
                special tokens; nothing else may.
        """
        block, safe = self._disarm(messages)
        return self._encoder.encode(self.render(safe), block)

    def extend(self, messages: Sequence[Message]) -> list[int]:
        """Token ids to append after a turn that ended with its end-of-turn token.

        Args:
            messages: the new messages, not the assistant's own. All tool results of a turn at once: some templates
                put them into one common turn.

        Returns:
            What the template puts between the end of the turn and the next generation, both separators included.
        """
        block, safe = self._disarm(messages)
        return self._encoder.encode(self._delta(safe), block)

    def ends_turn(self, token_ids: Sequence[int]) -> bool:
        """Whether generated ids end with the end-of-turn token."""
        return bool(token_ids) and token_ids[-1] == self.end_of_turn_id

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a generated turn, without its end-of-turn token."""
        return self.decode(token_ids[:-1] if self.ends_turn(token_ids) else token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of any ids, special tokens included."""
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    # ------------------------------------------------------------------ text

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True, tools: bool = True) -> str:
        """What the template makes of messages, as text."""
        rendered: str = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=(self.tools or None) if tools else None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        return rendered

    def exact_message(self, text: str, message: Message) -> Message:
        """The assistant message to store for a turn, such that the template renders it to what was generated.

        Args:
            text: the turn's text as generated.
            message: the env's reading of it.

        Returns:
            `message` where the template renders it exactly to `text`; otherwise the text itself as content.
        """
        if message.get("content") == text and "tool_calls" not in message:
            return message
        try:
            rendered = self.render([self._user, message], generation_prompt=False, tools=False)
        except Exception:  # noqa: BLE001  templates refuse what they do not know, such as two calls in one turn
            rendered = ""
        if rendered.startswith(self._head + text + self.end_of_turn):
            return message
        return {"role": "assistant", "content": text}

    def _delta(self, messages: Sequence[Message]) -> str:
        answered = [message for message in messages if message["role"] == "tool"]
        stand_in: Message = {"role": "assistant", "content": _MARK}
        if answered:
            stand_in["tool_calls"] = [
                {
                    "id": message.get("tool_call_id", ""),
                    "type": "function",
                    "function": {"name": message.get("name", ""), "arguments": {}},
                }
                for message in answered
            ]
        text = self.render([self._user, stand_in, *messages], tools=False)
        return self._after_stand_in(text)

    def _after_stand_in(self, text: str) -> str:
        at = text.find(_MARK)
        end = text.find(self.end_of_turn, at)
        if at == -1 or end == -1:
            raise TemplateError(
                "the chat template drops an assistant message or its end of turn once other messages follow, "
                "so the conversation cannot be extended turn by turn"
            )
        return text[end + len(self.end_of_turn) :]

    def _find_end_of_turn(self) -> tuple[str, int]:
        """The first special token that the template puts behind an assistant message's content."""
        text = self.render([self._user, {"role": "assistant", "content": _MARK}], generation_prompt=False, tools=False)
        before, found, tail = text.rpartition(_MARK)
        if not found:
            raise TemplateError("the chat template drops the content of assistant messages")
        for token_id in self._encoder.encode(tail):
            if token_id in self._encoder.added_ids:
                content: str = self.tokenizer.added_tokens_decoder[token_id].content
                return content, token_id
        raise TemplateError(
            "the chat template puts no special token behind an assistant message, so no turn could end; "
            f"it rendered {before[-40:] + _MARK + tail!r}"
        )

    def _disarm(self, messages: Sequence[Message]) -> tuple[int | None, list[Message]]:
        """Return the block used (None when there was nothing to disarm) and messages that are safe to render."""
        foreign = [text for message in messages for text in _foreign_texts(message)]
        if not any(self._encoder.is_armed(text) for text in foreign):
            return None, list(messages)
        block = self._encoder.free_block([*foreign, *(message["content"] for message in messages)])
        return block, [_map_foreign(message, lambda text: self._encoder.disarm(text, block)) for message in messages]


def _foreign_texts(message: Message) -> list[str]:
    """All strings of a message that the policy did not write as tokens of its own."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    _map_foreign(message, note)
    return texts


def _map_foreign(message: Message, change: Callable[[str], str]) -> Message:
    """Copy a message with a function applied to every string in it, but for its role and an assistant's content."""
    changed: dict[str, Any] = {}
    for key, value in message.items():
        own = key == "role" or (key == "content" and message["role"] == "assistant")
        changed[key] = value if own else _map_strings(value, change)
    return cast(Message, changed)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    return value


def _without_added_tokens(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(state))
