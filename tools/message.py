"""The chat message, in the OpenAI shape: the `messages` array of the Chat Completions API, restricted to text and
images."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from toolgym.tools.errors import ConfigError, shorten

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


_HEADS = {b"\x89PNG\r\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp"}

THINKING_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Opening and closing tags of all known models, so that a text can be cleaned without knowing which model wrote it."""

_CLOSES_THINKING = frozenset(closes for _, closes in THINKING_TAGS)
_THINKING_TAGS = re.compile("|".join(re.escape(tag) for pair in THINKING_TAGS for tag in pair))

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
    """A part of a content, from a text."""
    return {"type": "text", "text": text}


def image(data: bytes) -> ImagePart:
    """A part of a content from the bytes of an image file; a `ConfigError` if it is no PNG, JPEG, GIF, WebP or BMP."""
    webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    kind = "webp" if webp else next((kind for head, kind in _HEADS.items() if data.startswith(head)), None)
    if kind is None:
        raise ConfigError(f"expected a PNG, JPEG, GIF, WebP or BMP image, got bytes that begin with {data[:12]!r}")
    return image_part(f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}")


def image_part(url: object) -> ImagePart:
    """A part of a content from a data URL. Any other address is a `ConfigError`: nothing is fetched."""
    if not isinstance(url, str) or not url.startswith("data:image/") or ";base64," not in url[:80]:
        raise ConfigError(
            f"expected an image as a data URL, data:image/png;base64,..., got {shorten(repr(url), 60)}: "
            "images at other addresses are not fetched"
        )
    return {"type": "image_url", "image_url": {"url": url}}


def is_parts(value: object) -> bool:
    """Whether a value is a list of parts with an image."""
    kinds = [part.get("type") for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []
    return "image_url" in kinds and len(kinds) == len(value)  # type: ignore[arg-type]


def require_content(value: object) -> Content:
    """A message's content if it is: a text, or a list of texts and images as data URLs. Else a `ConfigError`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ConfigError(f"expected a text, or a list of texts and images, got {shorten(repr(value))}")
    parts: list[TextPart | ImagePart] = []
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append(text_part(part["text"]))
        elif kind == "image_url" and isinstance(part.get("image_url"), Mapping):
            parts.append(image_part(part["image_url"].get("url")))
        else:
            raise ConfigError(
                "a part of a content is {'type': 'text', 'text': ...} or {'type': 'image_url', 'image_url': {'url': "
                f"'data:image/png;base64,...'}}}}, got {shorten(repr(part))}"
            )
    return parts


def with_images(text: str, images: Sequence[ImagePart]) -> Content:
    """A text with images behind it."""
    return [*([text_part(text)] if text else []), *images] if images else text


def text_of(content: Content) -> str:
    """The texts of a content, joined by line ends, without its images."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def images_of(content: Content) -> list[str]:
    """The data URLs of the images of a content, in order."""
    return [part["image_url"]["url"] for part in _images(content)] if isinstance(content, list) else []


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


def visible_text(text: str, *, starts_open: bool = False) -> str:
    """Return a text without its thinking. The time is linear in the text.

    If the tags are not balanced, too much is removed rather than too little:

    * Thinking that is never closed is removed up to the end of the text.
    * Everything before a closing tag that has no opening tag is removed: the prompt opened the thinking.
    * An opening tag inside of thinking does not count.

    Args:
        text: what a model wrote, without tool calls.
        starts_open: the prompt ended inside of thinking, so that the text begins there.

    >>> visible_text("<think>They look tired.</think>How are you?")
    'How are you?'
    >>> visible_text("They look tired.</think>How are you?")
    'How are you?'
    >>> visible_text("They look tired.", starts_open=True)
    ''
    """
    visible: list[str] = []
    position, thinking = 0, starts_open
    for tag in _THINKING_TAGS.finditer(text):
        if tag.group() in _CLOSES_THINKING:
            if not thinking:
                visible.clear()
            position, thinking = tag.end(), False
        elif not thinking:
            visible.append(text[position : tag.start()])
            thinking = True
    if not thinking:
        visible.append(text[position:])
    return "".join(visible)


def without_thinking(text: str) -> str:
    """Return what a text says after its last closing tag of thinking, up to the next opening tag.

    Stricter than `visible_text`: text before a block of thinking is not an answer either.

    >>> without_thinking("[THINK]42?[/THINK]It is 41.")
    'It is 41.'
    """
    start, end = 0, len(text)
    for tag in _THINKING_TAGS.finditer(text):
        if tag.group() in _CLOSES_THINKING:
            start, end = tag.end(), len(text)
        else:
            end = min(end, tag.start())
    return text[start:end]
