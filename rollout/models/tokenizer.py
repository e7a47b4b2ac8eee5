"""Loading the tokenizer that belongs to a model, exactly as it was saved."""

from __future__ import annotations

import json
from pathlib import Path

from toolgym.rollout.models.hub import require_on_hub, why_not_loaded
from toolgym.tools.errors import ConfigError, missing_file
from toolgym.tools.lazy import missing_extra

try:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
    from transformers.utils import cached_file
except ImportError as error:
    raise missing_extra("rollout", "Loading a tokenizer", error) from error

_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
"""Forms of a saved tokenizer. From a folder without any, transformers would make one that knows no words."""

_GENERATION = "generation_config.json"


def holds_tokenizer(folder: Path) -> bool:
    return any(item.match(pattern) for item in list(folder.iterdir()) for pattern in _FILES)


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or, if there is no such folder, from the model hub.

    A `tokenizer.json` is loaded as it is: `AutoTokenizer` of transformers 5 may build another one, with other ids.

    Raises:
        UnknownNameError: it is a path, and there is no such folder; names the nearest one.
        ConfigError: it holds no tokenizer, or the tokenizer cannot be loaded.
    """
    path = Path(source)
    if not path.is_dir() and (path.is_absolute() or str(source).startswith(".")):
        raise missing_file("model folder", path)
    if path.is_dir() and not holds_tokenizer(path):
        raise ConfigError(
            f"cannot load a tokenizer from {str(source)!r}: it holds no tokenizer.json, nor an older form"
        )
    try:
        if (path / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(str(path))
        require_on_hub(source)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(source))
        cached_file(  # for `end_token_ids`; not every model has one
            str(source),
            _GENERATION,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return tokenizer
    except ConfigError:
        raise
    except Exception as error:  # each broken file breaks something else in there
        raise ConfigError(f"cannot load a tokenizer from {str(source)!r}: {why_not_loaded(source, error)}") from error


def end_token_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the tokens that end a text of this model: the tokenizer's, then those of the generation config beside it,
    in its folder or the hub's cache. The tokenizer knows only one: Qwen3 ends its turns with `<|im_end|>`, and
    `generation_config.json` names `<|endoftext|>` too. Raises `ConfigError` if the file is broken."""
    ends = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    file = _generation_config(str(tokenizer.name_or_path or ""))
    if file is not None:
        try:
            named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"expected a JSON object in {str(file)!r}: {error}") from error
        listed = named if isinstance(named, list) else [] if named is None else [named]
        if any(type(token_id) is not int for token_id in listed):
            raise ConfigError(f"expected an id or a list of ids as eos_token_id in {str(file)!r}, got {named!r}")
        ends += [token_id for token_id in listed if 0 <= token_id < len(tokenizer)]
    return tuple(dict.fromkeys(ends))


def _generation_config(source: str) -> Path | None:
    file = Path(source) / _GENERATION
    if source and file.is_file():
        return file
    if not source or Path(source).is_absolute():
        return None
    try:
        cached = try_to_load_from_cache(source, _GENERATION)
    except HFValidationError:  # it was a folder, which is gone
        return None
    return Path(cached) if isinstance(cached, str) else None
