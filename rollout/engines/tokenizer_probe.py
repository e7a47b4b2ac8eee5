"""Whether a tokenizer is that of the model which a server has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = 'What is 6 * 7?\n\tif x["a"] >= 1.5:  # naïve 北京 🙂'


def probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids: list[int] = tokenizer.encode(PROBE, add_special_tokens=False)
    return [*ids, *(end for end in (tokenizer.bos_token_id, tokenizer.eos_token_id) if end is not None)]


def require_same_text(tokenizer: PreTrainedTokenizerBase, ids: list[int], theirs: str, server: str) -> None:
    """Compare texts up to white space, which decoders may tidy."""
    ours = str(tokenizer.decode(ids, skip_special_tokens=False))
    if "".join(ours.split()) != "".join(theirs.split()):
        raise ConfigError(
            f"the tokenizer {str(tokenizer.name_or_path)!r} is not that of the model at {server}: the ids {ids} are "
            f"{ours!r} here and {theirs!r} there. Leave tokenizer= out, or give the one that the server was started "
            "with (its --tokenizer-path, or its model)"
        )
