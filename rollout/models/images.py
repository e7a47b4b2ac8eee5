"""Images in a context: where they stand among the ids, and what a vision-language model gets of them beside the ids."""

from __future__ import annotations

import base64
import functools
import io
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toolgym.rollout.models.token_ids import is_control
from toolgym.tools.errors import ConfigError, TemplateError, shorten
from toolgym.tools.lazy import missing_package
from toolgym.tools.message import image, image_data

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 2**25
"""Most pixels of an image that is decoded: 100 MB of RGB."""

_KEPT = 4096
_ONE_AT_A_TIME = threading.Lock()
"""A fast tokenizer refuses to be changed while another thread uses it. Here, since processors go to other processes."""

_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "special_tokens_mask")
"""What processors give for each token. A trainer makes it of whole sequences, if its model wants it."""


@dataclass(frozen=True)
class PlacedImage:
    """An image in a token sequence: its data URL, and where its ids begin and how many they are, the prompt's ids
    counted too."""

    url: str
    start: int
    tokens: int

    @property
    def sha256(self) -> str:
        """The digest of the data URL, by which a file of trajectories finds it among the messages."""
        return sha256(self.url.encode()).hexdigest()


class ImageText(NamedTuple):
    """The writing of a processor for an image. `ids` are those from the first control token to the last; the plain
    texts `before` and `behind` them may be one token with what stands there, so they are encoded with it."""

    before: str
    ids: tuple[int, ...]
    behind: str


class ImageProcessor:
    """Ids and pixel inputs of images, as the processor of a model makes them.

    `processor` is what `transformers.AutoProcessor` loads for a vision-language model, with its settings, such as the
    most pixels of an image: they decide how many tokens an image has. Raises ConfigError if it is no such processor.
    What else cannot be used is refused with its first image.
    """

    def __init__(self, processor: Any) -> None:
        token = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
        tokenizer = getattr(processor, "tokenizer", None)
        if not isinstance(token, str) or tokenizer is None or getattr(processor, "image_processor", None) is None:
            raise ConfigError(
                "expected a processor of texts and images, with tokenizer, image_processor and image_token, as "
                f"AutoProcessor loads it for a vision-language model, got {shorten(repr(processor))}"
            )
        self.processor, self.image_token, self._tokenizer = processor, token, tokenizer
        self._texts: OrderedDict[bytes, ImageText] = OrderedDict()

    @functools.cached_property
    def image_token_id(self) -> int:
        """The id that stands for a part of an image: the one that an image has most of."""
        [(part, _)] = Counter(map(int, self._blank()["input_ids"][0])).most_common(1)
        return part

    @functools.cached_property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that stand for images and videos alone: models and trainers count them, so a policy may not write one."""
        placeholder = self._tokenizer.convert_tokens_to_ids(self.image_token)
        video = getattr(self.processor, "video_token_id", None)
        return tuple(self._control_ids & {self.image_token_id, placeholder, video})

    def expansion(self, url: str) -> tuple[int, ...]:
        """The ids that stand for an image in a context, as `ImageText.ids`. Raises TemplateError if it cannot be read,
        or the processor refuses it."""
        return self.text(url).ids

    def text(self, url: str) -> ImageText:
        """The writing of the processor for an image. Raises TemplateError as `expansion` does."""
        key = sha256(url.encode()).digest()
        text = self._texts.get(key)
        if text is None:
            text = self._read(list(map(int, self._processed([picture(url)])["input_ids"][0])))
        with _ONE_AT_A_TIME:
            self._texts[key] = text
            self._texts.move_to_end(key)
            if len(self._texts) > _KEPT:
                self._texts.popitem(last=False)
        return text

    def pixel_inputs(self, urls: Sequence[str]) -> dict[str, Tensor]:
        """The arguments of a model for these images, in order, such as `pixel_values` and `image_grid_thw`. Raises
        TemplateError if one cannot be read, or the processor refuses it, or gives it other ids among the others."""
        if not urls:
            return {}
        inputs = self._processed([picture(url) for url in urls])
        alone = [part for url in urls for part in self._controls(self.expansion(url))]
        if self._controls(inputs["input_ids"][0]) != alone:
            raise TemplateError("the processor gives an image other ids among others, so images cannot be placed")
        return _pixels(inputs)

    def _read(self, ids: list[int]) -> ImageText:
        if self._tokenizer.convert_tokens_to_ids(self.image_token) not in self._control_ids:
            raise TemplateError(f"the tokenizer has no token {self.image_token!r}, which its processor names")
        if self._of_text:
            raise TemplateError(
                f"the processor makes {', '.join(self._of_text)} of the whole text, not of images alone"
            )
        at = [place for place, token_id in enumerate(ids) if token_id in self._control_ids]
        first, end = at[0], at[-1] + 1
        before, behind = (self._tokenizer.decode(part) for part in (ids[:first], ids[end:]))
        if before or behind:
            with _ONE_AT_A_TIME:
                again = self._tokenizer.encode(before + self.image_token + behind, add_special_tokens=False)
            if again[:first] != ids[:first] or again[first + 1 :] != ids[end:]:
                raise TemplateError(f"what the processor writes around an image is no text: {before!r}, {behind!r}")
        return ImageText(before, tuple(ids[first:end]), behind)

    def _blank(self, before: str = "") -> Any:
        from PIL import Image  # the processor needs it, too

        return self._processed([Image.new("RGB", (64, 64))], before)

    @functools.cached_property
    def _of_text(self) -> tuple[str, ...]:
        """Names of pixel inputs that depend on the text around an image."""
        alone, behind = _pixels(self._blank()), _pixels(self._blank("x"))
        return tuple(
            name for name, value in alone.items() if name not in behind or not np.array_equal(value, behind[name])
        )

    @functools.cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(at for at, token in self._tokenizer.added_tokens_decoder.items() if is_control(token))

    def _controls(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in map(int, ids) if token_id in self._control_ids]

    def _processed(self, pictures: Sequence[Any], before: str = "") -> Any:
        text = before + self.image_token * len(pictures)
        try:
            with _ONE_AT_A_TIME:
                return self.processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
        except Exception as error:  # each refuses others, such as one that is a hundred times as wide as high
            sizes = ", ".join(f"{each.width} x {each.height}" for each in pictures)
            raise TemplateError(f"the processor refuses images of {sizes}: {type(error).__name__}: {error}") from error


def _pixels(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in _OF_TOKENS}


@functools.cache
def blank_image_url() -> str:
    """The data URL of an image that every processor takes which takes any."""
    from PIL import Image  # the processor needs it, too

    data = io.BytesIO()
    Image.new("RGB", (64, 64)).save(data, "PNG")
    return image(data.getvalue())["image_url"]["url"]


def picture(url: str) -> Any:
    """The image of a data URL, Pillow's, in RGB. Raises TemplateError if it is none, or has too many pixels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package("pillow", "Reading an image", error) from error
    try:
        with Image.open(io.BytesIO(base64.b64decode(image_data(url)[1], validate=True))) as image:
            width, height = image.size
            if width * height <= MAX_PIXELS:
                return image.convert("RGB")
    except Exception as error:  # decoders raise anything about bytes that a program wrote
        raise TemplateError(
            f"{shorten(url, 60)} is no image that can be read: {type(error).__name__}: {error}"
        ) from error
    raise TemplateError(f"an image has {width} x {height} pixels, and at most {MAX_PIXELS} are read: make it smaller")
