"""Notes in the place of content that the policy cannot read: a PDF, an image for a text model, half an emoji.

A block that stands in an agent's history comes back with every later request. A refusal would therefore end an episode
that the policy played well, so the policy reads a short note instead. A note depends on the block alone, so that the
same history gives the same tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MOST_SHOWN = 100
"""Characters of a name or an address in a note."""

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMES = {"input_file": "file", "input_audio": "audio", "image_url": "image", "input_image": "image"}
"""What blocks are called in a note, where the name of the wire is not a word."""


def kind_of(part: Mapping[str, Any]) -> str:
    """Return a word for the type of a block, `part` if its type is not a plain name."""
    kind = part.get("type")
    kind = kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "part"
    return _NAMES.get(kind, kind)


def note(part: Mapping[str, Any]) -> str:
    """Return the note for a block, such as `[document omitted: report.pdf, application/pdf, 12 kB]`."""
    facts = ", ".join(_facts(part))
    return f"[{kind_of(part)} omitted: {facts}]" if facts else f"[{kind_of(part)} omitted]"


def without_surrogates(value: Any) -> Any:
    """Return decoded JSON with U+FFFD in the place of each lone surrogate, which no tokenizer takes."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(entry) for entry in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(entry) for key, entry in value.items()}
    return value


def _facts(part: Mapping[str, Any]) -> Iterable[str]:
    """The name, the address, the media type and the size of a block, as far as it says them."""
    places = [part, *(value for key in _HOLDERS if isinstance(value := part.get(key), Mapping))]
    for key in ("title", "filename", "name", "tool_name", "file_id"):
        yield from _texts(places, key)
    urls = [*_texts(places, "url"), *_texts([part], "image_url"), *_texts([part], "file_url")]
    yield from (url for url in urls if not url.startswith("data:"))
    yield from _texts(places, "media_type")
    yield from _texts(places, "format")
    for place in places:
        for key in ("data", "file_data", "url", "image_url"):
            value = place.get(key)
            if isinstance(value, str) and (key in ("data", "file_data") or value.startswith("data:")):
                head, comma, data = value.partition(",")
                if comma:
                    yield head.removeprefix("data:").partition(";")[0][:MOST_SHOWN]
                yield _size(len(data if comma or key not in ("data", "file_data") else value) * 3 // 4)


_HOLDERS = ("source", "file", "input_audio", "image_url", "video_url", "audio")
"""Fields of blocks that hold an object with the content."""


def _texts(places: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    values = (place.get(key) for place in places)
    return [_shown(value) for value in values if isinstance(value, str) and value]


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{(count + 500) // 1000} kB"
