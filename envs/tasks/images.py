"""Images of a row, as parts of its messages or in a column beside them, as verl and TRL have them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from toolgym.tools.errors import ConfigError, missing_file, shorten
from toolgym.tools.message import Content, ImagePart, Message, TextPart, image, image_part, text_part

COLUMN = "images"
_OWN = ("image_url", "image", "url", "path")
PLACE = "<image>"
"""Where an image of the column stands in a text."""


def with_images(prompt: Sequence[Mapping[str, Any]], column: Any, folder: str) -> tuple[Message, ...]:
    """Return the messages of a row with its images in them.

    The images of the column stand where texts have `<image>`, or a part `{"type": "image"}` has none of its own, in
    order. An image is a data URL, bytes, a mapping with `bytes` or `path`, a picture of Pillow, or a path, which is
    relative to `folder`. Raises `ConfigError`: there are more or fewer of them than places, or one cannot be read.
    """
    values = [] if column is None else [column] if isinstance(column, str | bytes | Mapping) else [*column]
    rest = iter(values)
    places = 0

    def parts(content: Any) -> Iterator[TextPart | ImagePart]:
        nonlocal places
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "text" and isinstance(part.get("text"), str):
                texts = part["text"].split(PLACE) if values else [part["text"]]
                for number, text in enumerate(texts):
                    if number:
                        places += 1
                        yield _image(next(rest, None), folder)
                    if text or len(texts) == 1:
                        yield text_part(text)
            elif kind in ("image", "image_url"):
                url = next((part[name] for name in _OWN if part.get(name)), None)
                places += url is None
                yield _image(next(rest, None) if url is None else url, folder)
            else:
                raise ConfigError(f"expected a part with a text or an image in a message, got {shorten(repr(part))}")

    messages = []
    for message in prompt:
        content: Any = message.get("content")
        if isinstance(content, list) or (isinstance(content, str) and values and PLACE in content):
            content = cast(Content, list(parts(content)))
        messages.append(cast(Message, {**message, "content": content}))
    if places != len(values):
        raise ConfigError(f"the prompt has {places} places {PLACE!r}, and the column {COLUMN!r} {len(values)} images")
    return tuple(messages)


def _image(value: Any, folder: str) -> ImagePart:
    if isinstance(value, Mapping):
        value = next((value[name] for name in ("bytes", "url", "image", "path") if value.get(name) is not None), None)
    if isinstance(value, bytes):
        return image(value)
    if isinstance(value, str) and "://" not in value[:10] and not value.startswith("data:"):
        path = Path(folder, value)
        if not path.is_file():
            raise missing_file("image of the task", path)
        return image(path.read_bytes())
    if isinstance(value, str):
        return image_part(value)
    if hasattr(value, "save") and hasattr(value, "mode"):
        data = io.BytesIO()
        (value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else value.convert("RGB")).save(
            data, "PNG"
        )
        return image(data.getvalue())
    raise ConfigError(f"expected an image for each place {PLACE!r}, got {shorten(repr(value))}")
