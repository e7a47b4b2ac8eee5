"""Images in a context: where they stand among the ids, and what a vision-language model gets of them beside the ids."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, TemplateError, shorten
from toolgym.tools.lazy import missing_package
from toolgym.tools.message import image_data

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


class ImageProcessor:
    """Ids and pixel inputs of images, as the processor of a model makes them.

    `processor` is what `transformers.AutoProcessor` loads for a vision-language model, with its settings, such as the
    most pixels of an image: they decide how many tokens an image has. Raises ConfigError if it is no such processor.
    """

    def __init__(self, processor: Any) -> None:
        token = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
        tokenizer = getattr(processor, "tokenizer", None)
        if not isinstance(token, str) or tokenizer is None or getattr(processor, "image_processor", None) is None:
            raise ConfigError(
                "expected a processor of texts and images, with tokenizer, image_processor and image_token, as "
                f"AutoProcessor loads it for a vision-language model, got {shorten(repr(processor))}"
            )
        self.processor, self.image_token = processor, token
        part = getattr(processor, "image_token_id", None)
        self.image_token_id: int = tokenizer.convert_tokens_to_ids(token) if part is None else int(part)
        self._expansions: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def expansion(self, url: str) -> tuple[int, ...]:
        """The ids that stand for an image in a context. Raises TemplateError if it cannot be read, or the processor
        refuses it."""
        key = sha256(url.encode()).digest()
        expansion = self._expansions.get(key)
        if expansion is None:
            expansion = tuple(map(int, self._processed([url])["input_ids"][0]))
        with _ONE_AT_A_TIME:
            self._expansions[key] = expansion
            self._expansions.move_to_end(key)
            if len(self._expansions) > _KEPT:
                self._expansions.popitem(last=False)
        return expansion

    def pixel_inputs(self, urls: Sequence[str]) -> dict[str, Tensor]:
        """The arguments of a model for these images, in order, such as `pixel_values` and `image_grid_thw`. Raises
        TemplateError if one cannot be read, or the processor refuses it."""
        return {name: value for name, value in self._processed(urls).items() if name not in _OF_TOKENS} if urls else {}

    def _processed(self, urls: Sequence[str]) -> Any:
        pictures = [picture(url) for url in urls]
        text = self.image_token * len(pictures)
        try:
            with _ONE_AT_A_TIME:
                return self.processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
        except Exception as error:  # each refuses others, such as one that is a hundred times as wide as high
            sizes = ", ".join(f"{each.width} x {each.height}" for each in pictures)
            raise TemplateError(f"the processor refuses images of {sizes}: {type(error).__name__}: {error}") from error


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
