"""Cutting of a tool's result: its text to a length, its images to a number and sizes."""

from __future__ import annotations

import base64
import bisect
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.lazy import missing_package
from toolgym.tools.message import ImagePart, image_data

Side = Literal["left", "middle", "right"]
"""What stays of a text that is cut, as in verl: `left` its beginning, `right` its end, `middle` both."""


def check_cut(name: str, max_chars: object, side: object) -> None:
    """Raise `ConfigError` unless `max_chars`, which is called `name`, is at least 1, and there is such a side."""
    require_whole_number(name, max_chars, at_least=1)
    if side not in ("left", "middle", "right"):
        raise ConfigError(f"side must be 'left', 'middle' or 'right', got {side!r}")


def cut(text: str, max_chars: int, side: Side) -> str:
    """Cut a text to `max_chars` characters and a note that says how many were left out; a shorter one stays."""
    if len(text) <= max_chars:
        return text
    tail = _tail(max_chars, side)
    return _joined(text, max_chars - tail, tail, f"[... {len(text) - max_chars} characters left out ...]")


def cut_tokens(text: str, max_tokens: int, side: Side, count: Callable[[str], int]) -> str:
    """Cut a text to `max_tokens` tokens, as `count` has them, and a note that says how many were left out.

    The text is cut between characters, wherever its tokens end: what remains is never decoded from tokens.
    """
    if count(text) <= max_tokens:
        return text
    tail = _tail(max_tokens, side)
    head_chars = _fitting(len(text), max_tokens - tail, lambda size: count(text[:size]))
    tail_chars = _fitting(len(text) - head_chars, tail, lambda size: count(text[len(text) - size :]))
    left_out = count(text[head_chars : len(text) - tail_chars])
    return _joined(text, head_chars, tail_chars, f"[... {left_out} tokens left out ...]")


@dataclass(frozen=True)
class ImageLimits:
    """Limits on the images of one tool result: how many, and for each its bytes, its pixels, and its longer side by its
    shorter one, since processors refuse a strip (Qwen-VL's from 200 on)."""

    count: int = 4
    size: int = 5 * 2**20
    pixels: int = 4096 * 4096
    aspect: int = 100

    def within(self, images: Sequence[ImagePart]) -> tuple[list[ImagePart], list[str]]:
        """Return the images that remain, and for those left out a note that says why. Pillow reads their headers; a
        `MissingExtraError` if it is not installed."""
        kept: list[ImagePart] = []
        notes = []
        for number, part in enumerate(images, start=1):
            if len(kept) == self.count:
                rest = len(images) - number + 1
                notes.append(f"[The last {rest} of {len(images)} images left out: at most {self.count} are shown]")
                break
            if fault := self._fault(part):
                notes.append(f"[Image {number} of {len(images)} left out: {fault}]")
            else:
                kept.append(part)
        return kept, notes

    def _fault(self, part: ImagePart) -> str:
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_package("pillow", "Reading an image of a tool's result", error) from error
        _, encoded = image_data(part["image_url"]["url"])
        size = len(encoded.rstrip("=")) * 3 // 4
        if size > self.size:
            return f"it has {size} bytes, {self.size} are allowed"
        try:
            with Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))) as opened:
                width, height = opened.size
                opened.verify()
        except Image.DecompressionBombError:
            return f"it has too many pixels, {self.pixels} are allowed"
        except Exception as error:  # noqa: BLE001  decoders raise anything about bytes that a program wrote
            return f"it cannot be read ({type(error).__name__})"
        if width * height > self.pixels:
            return f"it has {width} x {height} pixels, {self.pixels} are allowed"
        is_strip = max(width, height) > self.aspect * min(width, height)
        return f"it has {width} x {height} pixels, a side may be {self.aspect} times the other" if is_strip else ""


def _tail(most: int, side: Side) -> int:
    return {"left": 0, "middle": most // 2, "right": most}[side]


def _joined(text: str, head: int, tail: int, note: str) -> str:
    """The beginning of `head` characters, the note, and the end of `tail` characters."""
    parts = (text[:head], note, text[len(text) - tail :])
    return " ".join(part for part in parts if part)


def _fitting(longest: int, most: int, tokens: Callable[[int], int]) -> int:
    """The largest number of characters, up to `longest`, that have at most `most` tokens."""
    size = max(0, bisect.bisect_right(range(longest + 1), most, key=tokens) - 1)
    while size and tokens(size) > most:  # a character more may join tokens, so the counts may fall here and there
        size -= 1
    return size
