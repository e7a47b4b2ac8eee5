"""`load_embedding`: vectors of texts, from a model in a folder. Needs sentence-transformers (the extra `dense`), or
torch and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.lazy import missing_extra, missing_package
from toolgym.tools.search.dense import Embed

Pooling = Literal["mean", "cls"]


def load_embedding(
    folder: str | Path, *, pooling: Pooling = "mean", device: str = "cpu", max_tokens: int = 512
) -> Embed:
    """Return a function from texts to vectors of length 1, [text, dimension] in float32.

    The folder has a model of sentence-transformers (it has a `modules.json`) or of transformers. Of the latter,
    `pooling` takes the `mean` of the last hidden states (E5, GTE), or the first one, `cls` (BGE). A text of more than
    `max_tokens` is cut.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UnknownNameError(f"there is no folder {str(folder)!r} with a model")
    if pooling not in ("mean", "cls"):
        raise ConfigError(f"pooling must be 'mean' or 'cls', got {pooling!r}")
    if (folder / "modules.json").is_file():
        return _sentence_transformers(folder, device, max_tokens)
    return _transformers(folder, pooling, device, max_tokens)


def _sentence_transformers(folder: Path, device: str, max_tokens: int) -> Embed:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise missing_extra("dense", f"The model {str(folder)!r}", error) from error
    model = SentenceTransformer(str(folder), device=device)
    model.max_seq_length = min(max_tokens, model.max_seq_length or max_tokens)

    def embed(texts: Sequence[str]) -> NDArray[Any]:
        return np.asarray(model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))

    return embed


def _transformers(folder: Path, pooling: Pooling, device: str, max_tokens: int) -> Embed:
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise missing_package("transformers", f"The model {str(folder)!r}", error) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder).to(device).eval()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load a model from {str(folder)!r}: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    def embed(texts: Sequence[str]) -> NDArray[Any]:
        tokens = tokenizer(
            list(texts), padding=True, truncation=True, max_length=max_tokens, return_tensors="pt", padding_side="right"
        ).to(device)
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state.float()
        if pooling == "cls":
            vectors = states[:, 0]
        else:
            mask = tokens["attention_mask"].unsqueeze(-1)
            vectors = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()  # type: ignore[no-any-return]

    return embed
