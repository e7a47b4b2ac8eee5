"""`PlacedIds`: token ids with images among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolgym.rollout.models.images import ImageProcessor, PlacedImage
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.errors import TemplateError


class PlacedIds(list[int]):
    """Token ids, and the `images` whose ids are among them; their places count from the first of these ids."""

    images: tuple[PlacedImage, ...] = ()

    def behind(self, ids: Sequence[int]) -> PlacedIds:
        joined = PlacedIds([*ids, *self])
        joined.images = moved(self.images, len(ids))
        return joined


def images_in(ids: Sequence[int]) -> tuple[PlacedImage, ...]:
    return ids.images if isinstance(ids, PlacedIds) else ()


def moved(images: Sequence[PlacedImage], by: int) -> tuple[PlacedImage, ...]:
    return tuple(replace(image, start=image.start + by) for image in images)


def framed(rendered: str, urls: Sequence[str], processor: ImageProcessor) -> str:
    """A rendered text with what the processor writes before and behind each image, for what encodes it as one text."""
    first, *rest = rendered.split(processor.image_token)
    frames = [f"{frame.before}{processor.image_token}{frame.behind}" for frame in map(processor.text, urls)]
    if len(rest) != len(urls):
        return rendered  # which `placed` refuses
    return first + "".join(text for pair in zip(frames, rest, strict=True) for text in pair)


def placed(
    ids: Sequence[int], token_id: int, urls: Sequence[str], processor: ImageProcessor, most: int | None
) -> PlacedIds:
    """Ids with all that an image has in the place of the one id that stands for it, image by image.

    Raises:
        TemplateError: there are more or fewer such ids than images, or an image cannot be read.
        TooManyTokensError: there are more than `most`.
    """
    if ids.count(token_id) != len(urls):
        raise TemplateError(
            f"the messages have {len(urls)} images, and the chat template writes {ids.count(token_id)} times "
            f"{processor.image_token!r} for them: it drops images of such messages, or a turn of the policy has it"
        )
    whole, images = PlacedIds(), []
    left = iter(urls)
    for each in ids:
        if each == token_id:
            url = next(left)
            expansion = processor.expansion(url)
            images.append(PlacedImage(url, len(whole), len(expansion)))
            whole.extend(expansion)
        else:
            whole.append(each)
    if most is not None and len(whole) > most:
        raise TooManyTokensError(len(whole))
    whole.images = tuple(images)
    return whole
