"""The chat message, in the OpenAI shape: the `messages` array of the Chat Completions API, restricted to text and
images."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class ImageUrl(TypedDict):
    """`url` holds the image itself: `data:image/png;base64,...`."""

    url: str


class ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl


Content = str | list[TextPart | ImagePart]
"""A text, or texts and images in order."""


class FunctionCall(TypedDict):
    """`arguments` is an object, which chat templates render as JSON."""

    name: str
    arguments: dict[str, Any]


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One chat message. `tool_calls` and `reasoning_content` (thinking, separate from the content) occur on assistant
    messages only; `tool_call_id` and `name` on tool messages only."""

    role: Role
    content: Content
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[MessageToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: Content) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, tool_calls: Sequence[MessageToolCall] = ()) -> Message:
    if not tool_calls:
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": content, "tool_calls": list(tool_calls)}


def tool_call(name: str, arguments: dict[str, Any], *, id: str = "call_0") -> MessageToolCall:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content: Content, *, tool_call_id: str, name: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id, "name": name}


def text_part(text: str) -> TextPart:
    return {"type": "text", "text": text}


def image(data: bytes, media_type: str = "image/png") -> ImagePart:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"},
    }


def text_of(content: Content) -> str:
    """The texts of a content, joined by line ends, without its images."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def images_of(content: Content) -> list[str]:
    """The data URLs of the images of a content, in order."""
    return [] if isinstance(content, str) else [part["image_url"]["url"] for part in _images(content)]


def image_data(url: str) -> tuple[str, str]:
    """The media type and the base64 text of a data URL."""
    head, _, data = url.partition(",")
    return head.removeprefix("data:").partition(";")[0], data


def described(content: Content) -> str:
    """A content for readers of text: each image stands as `[image/png, 12.3 kB]`."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else _description(part) for part in content)


def mapped(content: Content, change: Callable[[str], str]) -> Content:
    """A content with each of its texts changed."""
    if isinstance(content, str):
        return change(content)
    return [text_part(change(part["text"])) if part["type"] == "text" else part for part in content]


def joined(contents: Iterable[Content], between: str) -> Content:
    """Several contents as one, with `between` from text to text: a text if none has an image."""
    parts: list[TextPart | ImagePart] = []
    for content in contents:
        for part in [text_part(content)] if isinstance(content, str) else content:
            if parts and parts[-1]["type"] == "text" and part["type"] == "text":
                parts[-1] = text_part(parts[-1]["text"] + between + part["text"])
            else:
                parts.append(part)
    return text_of(parts) if not _images(parts) else parts


def _images(parts: Iterable[TextPart | ImagePart]) -> list[ImagePart]:
    return [part for part in parts if part["type"] == "image_url"]


def _description(part: ImagePart) -> str:
    media_type, data = image_data(part["image_url"]["url"])
    return f"[{media_type}, {len(data) * 3 / 4000:.1f} kB]"
