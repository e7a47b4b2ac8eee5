"""Loading the tokenizer that belongs to a model, exactly as it was saved."""

from __future__ import annotations

from pathlib import Path

from toolgym.tools.errors import ConfigError, missing_extra, missing_file

try:
    from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
except ImportError as error:
    raise missing_extra("rollout", "Loading a tokenizer", error) from error

_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
"""What a tokenizer may be saved as. From a folder without any, transformers would make one that knows no words."""


def holds_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer was saved in a folder, in whatever form and state."""
    return any(item.match(pattern) for item in list(folder.iterdir()) for pattern in _FILES)


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    A folder with a `tokenizer.json` is loaded from that very file. (`AutoTokenizer` of transformers 5 may build
    another tokenizer from the model's type instead, with other ids.) A name that is no folder goes to the model hub.

    Args:
        source: a folder, or a model's name on the hub.

    Raises:
        UnknownNameError: it is a path, and there is no such folder; names the nearest one.
        ConfigError: it holds no tokenizer.
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
        return AutoTokenizer.from_pretrained(str(source))
    except Exception as error:  # each broken file breaks something else in there
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"cannot load a tokenizer from {str(source)!r}: {why}") from error
