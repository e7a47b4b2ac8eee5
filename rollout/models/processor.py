"""Loading the processor of images that belongs to a vision-language model."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from transformers import AutoProcessor, PreTrainedTokenizerBase
from transformers.utils import cached_file

from toolgym.rollout.models.hub import why_not_loaded
from toolgym.rollout.models.images import ImageProcessor
from toolgym.tools.errors import ConfigError

_FILES = ("processor_config.json", "preprocessor_config.json")

_beside: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, ImageProcessor | None] = weakref.WeakKeyDictionary()


def load_processor(source: str | Path) -> ImageProcessor:
    """Load the processor of a vision-language model from its folder or the model hub. Raises ConfigError if it cannot
    be loaded, or is none of images."""
    try:
        processor: Any = AutoProcessor.from_pretrained(str(source))
    except Exception as error:  # each broken file breaks something else in there
        raise ConfigError(f"cannot load a processor from {str(source)!r}: {why_not_loaded(source, error)}") from error
    return ImageProcessor(processor)


def processor_of(tokenizer: PreTrainedTokenizerBase) -> ImageProcessor | None:
    """The processor of the model that a tokenizer is of, from the same place; None if its model takes no images. Raises
    ConfigError as `load_processor`."""
    if tokenizer not in _beside:
        _beside[tokenizer] = processor_at(str(tokenizer.name_or_path or ""))
    return _beside[tokenizer]


def processor_at(source: str) -> ImageProcessor | None:
    """The processor of a model's folder or hub name; None if it has none. Raises ConfigError as `load_processor`."""
    return load_processor(source) if source and any(_has(source, file) for file in _FILES) else None


def _has(source: str, file: str) -> bool:
    if Path(source).is_dir():
        return (Path(source) / file).is_file()
    options = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(source, file, **options) is not None
