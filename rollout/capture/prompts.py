"""Messages of an agent as chat templates take them, and the renderers of its sets of tools."""

from __future__ import annotations

import asyncio
import hashlib
import json
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgym.rollout.capture.agent_call import IMAGE, AgentMessage, CallRefusedError, WrittenCall
from toolgym.rollout.capture.canonical import arguments_of
from toolgym.rollout.capture.wires.unreadable import note
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.run_episode import policy_renderer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_analysis import delta_kind
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, TemplateError
from toolgym.tools.message import (
    Content,
    Message,
    assistant,
    image_part,
    images_of,
    joined,
    system,
    text_part,
    tool,
    tool_call,
    user,
)
from toolgym.tools.schema import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_RECENT = 64
"""Renderers that are kept though no open session has called with them."""

_PATIENCE = 120.0
"""Wall seconds for making a renderer: the chat template is analyzed with the tools in it."""


class Renderers:
    """Renderers by set of tools, shared by all sessions of a gateway.

    A renderer is kept as long as a captured call refers to it, so the number of open sessions, each with tools of its
    own, does not change what a call costs. The newest 64 are kept as well.

    Args:
        tokenizer: the model's tokenizer.
        config: its `template_kwargs` and `parser` hold for all renderers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: RunConfig | None = None) -> None:
        self._tokenizer, self._config = tokenizer, config or RunConfig()
        self._in_use: weakref.WeakValueDictionary[bytes, ChatRenderer] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[bytes, ChatRenderer] = OrderedDict()
        self._last: list[tuple[Sequence[Mapping[str, Any]], ChatRenderer]] = []
        self._making = asyncio.Lock()
        self.made = 0
        """Renderers that were made so far."""

    async def of(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """Return the renderer of these tools, the same object for equal ones in the same order. Raises
        CallRefusedError (400) for tools that are not schemas."""
        for latest, renderer in self._last:
            if latest is tools or latest == tools:
                return renderer
        key = hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).digest()
        known = self._in_use.get(key)
        if known is None:
            async with self._making:
                known = self._in_use.get(key) or await self._make(key, tools)
        self._recent[key] = known
        self._recent.move_to_end(key)
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        self._last = [(tools, known), *self._last[:7]]
        return known

    async def _make(self, key: bytes, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        try:
            schemas = [ToolSchema.from_openai(schema, external=True) for schema in tools]
            make = in_thread(policy_renderer, self._tokenizer, self._config, schemas)
            renderer = self._in_use[key] = await with_deadline(make, _PATIENCE)
        except (ConfigError, TemplateError) as error:
            raise CallRefusedError(400, "invalid_tools", str(error)) from error
        self.made += 1
        return renderer


class CallIds:
    """Ids and names of tool calls for chat templates, by the ids that the agent has for them: at first those of a turn
    that was sampled, by the ids that it was sent with and those that it came back with."""

    def __init__(self, sent: Iterable[tuple[str, str, str]] = (), seen: AgentMessage | None = None) -> None:
        self._known = {id: (template_id, name) for id, template_id, name in sent}
        self._waiting = [*self._known]  # the results of these have not come
        for id, call in zip(self._waiting, seen.calls if seen is not None else (), strict=False):
            self._known.setdefault(call.id, self._known[id])
        self._count = 0

    def add(self, calls: Sequence[WrittenCall]) -> list[str]:
        """Note the calls of a turn that stands in a prompt; return their ids, of nine letters and digits, which all
        chat templates take."""
        self._waiting = [call.id for call in calls]
        ids = [f"call{self._count + place:05d}" for place in range(len(calls))]
        self._count += len(calls)
        self._known.update({call.id: (id, call.name) for call, id in zip(calls, ids, strict=True)})
        return ids

    def of_result(self, id: str) -> tuple[str, str]:
        """Id and name of the call that a result answers; by its place among the results if the id is unknown."""
        if id not in self._known:
            id = self._waiting[0] if self._waiting else id
        if id in self._waiting:
            self._waiting.remove(id)
        return self._known.get(id, ("call00000", "tool"))


def to_messages(messages: Iterable[AgentMessage], ids: CallIds) -> list[Message]:
    return [_to_message(message, ids) for message in messages]


def _to_message(message: AgentMessage, ids: CallIds) -> Message:
    if message.role == "system":
        return system(message.content)
    if message.role == "user":
        return user(_content(message))
    if message.role == "tool":
        id, name = ids.of_result(message.call_id)
        return tool(_content(message), tool_call_id=id, name=name)
    calls = [
        tool_call(call.name, _object(call), id=id)
        for call, id in zip(message.calls, ids.add(message.calls), strict=True)
    ]
    turn = assistant(message.content, calls)
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    return turn


def _content(message: AgentMessage) -> Content:
    if not message.images:
        return message.content
    first, *texts = map(text_part, message.content.split(IMAGE))
    images = map(image_part, message.images)
    parts = [first, *(part for pair in zip(images, texts, strict=True) for part in pair)]
    return [part for part in parts if part["type"] == "image_url" or part["text"]]


def readable_images(message: AgentMessage, readable: Mapping[str, bool]) -> AgentMessage:
    """Return a message with a note in the place of each image that is not `readable`."""
    if all(readable[url] for url in message.images):
        return message
    first, *texts = message.content.split(IMAGE)
    content = first
    for url, text in zip(message.images, texts, strict=True):
        content += (IMAGE if readable[url] else f"\n{_image_note(url)}\n") + text
    images = tuple(url for url in message.images if readable[url])
    return replace(message, content=content.strip("\n"), images=images)


def _object(call: WrittenCall) -> dict[str, Any]:
    """Arguments as chat templates take them. Those that are no object are one argument of it, as they stand."""
    arguments = arguments_of(call)
    return dict(arguments) if isinstance(arguments, Mapping) else {"arguments": arguments}


def prompt_forms(messages: list[Message], renderer: ChatRenderer) -> Iterator[list[Message]]:
    """Yield forms of a prompt that a chat template may take, the nearest first: as it is, unless it would lose a late
    system message; then with late system messages as the user's, and neighbours of one role as one; at last without
    images, which some templates take in few places."""
    head = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    has_late = any(message["role"] == "system" for message in messages[head:])
    if not has_late or "system" in renderer.facts.plans:
        yield messages
    yield [*messages[:head], *_as_users(messages[head:])]
    merged = _joined([*messages[:head], *_as_users(messages[head:])])
    yield from image_forms(merged)


def image_forms(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield the messages, and if they have images, the messages with notes in the place of the images."""
    yield messages
    if any(images_of(message["content"]) for message in messages):
        yield [{**message, "content": _as_text(message["content"])} for message in messages]


def _as_text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"] if part["type"] == "text" else _image_note(part["image_url"]["url"]) for part in content
    )


def _image_note(url: str) -> str:
    return note({"type": "image", "image_url": url})


def delta_form(messages: list[Message], renderer: ChatRenderer) -> list[Message] | None:
    """The form of new messages that the chat template can go on with; None if there is none."""
    for form in (messages, _joined(messages), _joined(_as_users(messages))):
        try:
            if delta_kind(form) in renderer.facts.plans:
                return form
        except TemplateError:
            continue
    return None


def _as_users(messages: Iterable[Message]) -> list[Message]:
    return [user(message["content"]) if message["role"] == "system" else message for message in messages]


def _joined(messages: Iterable[Message]) -> list[Message]:
    """Messages with neighbouring ones of the user, or of the system, as one."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and last["role"] == message["role"] and message["role"] in ("system", "user"):
            merged[-1] = {**last, "content": joined([last["content"], message["content"]], "\n\n")}
        else:
            merged.append(message)
    return merged
