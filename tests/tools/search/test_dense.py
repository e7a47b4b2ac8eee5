"""Searching a file by vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from toolgym.tools import DenseRetriever
from toolgym.tools.errors import ConfigError, MissingExtraError, RetrievalError, UnknownNameError
from toolgym.tools.search import dense
from toolgym.tools.search.embedding import load_embedding

TEXTS = ["red", "green", "blue", "red and green"]


def colours(texts):
    """How much of each colour a text has."""
    return np.array([[text.count(one) for one in ("red", "green", "blue")] for text in texts], dtype=np.float64)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)))
    return path


async def test_the_highest_inner_products_are_found(corpus, monkeypatch):
    monkeypatch.setattr(dense, "_ROWS", 2)  # several blocks
    async with DenseRetriever(corpus, colours, version="1", batch_size=3) as retriever:
        found = await retriever.search(["red green green green blue blue", "red red red green blue blue"], 3)
        assert [[(one.text, one.score) for one in each] for each in found] == [
            [("red and green", 4.0), ("green", 3.0), ("blue", 2.0)],
            [("red and green", 4.0), ("red", 3.0), ("blue", 2.0)],
        ]
        assert len((await retriever.search(["red"], 9))[0]) == len(retriever) == 4


async def test_vectors_are_made_once_for_a_version_of_the_embedding(corpus):
    calls = []

    def embed(texts):
        calls.append(list(texts))
        return colours(texts)

    for version in ("1", "1", "2"):
        prefixes = {"query_prefix": "query: ", "passage_prefix": "passage: "}
        async with DenseRetriever(corpus, embed, version=version, **prefixes) as retriever:
            await retriever.search(["red"], 1)
    passages = [f"passage: \n{text}" for text in TEXTS]
    assert calls == [passages, ["query: red"], ["query: red"], passages, ["query: red"]]


async def test_what_goes_wrong_with_an_embedding(corpus):
    with pytest.raises(ConfigError, match=r"expected \[4, dimension\], got the shape \[1, 4\]"):
        DenseRetriever(corpus, lambda texts: np.ones((1, len(texts))), version="bad")
    with pytest.raises(ConfigError, match="a finite vector"):
        DenseRetriever(corpus, lambda texts: np.full((len(texts), 2), np.nan), version="bad")
    async with DenseRetriever(corpus, colours, version="1"):
        pass
    async with DenseRetriever(corpus, lambda texts: np.ones((len(texts), 2)), version="1") as other:
        with pytest.raises(RetrievalError, match="the index has 3 dimensions"):
            await other.search(["red"], 1)
    with pytest.raises(RetrievalError, match="closed"):
        await other.search(["red"], 1)


async def test_a_model_of_transformers_gives_vectors(corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "and"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    embed = load_embedding(folder)
    vectors = embed(["red", "red and green and blue"])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(embed(["red"])[0], vectors[0], atol=1e-5)  # padding takes no part
    async with DenseRetriever(corpus, embed, version="tiny") as retriever:
        for text in TEXTS:
            [[best]] = await retriever.search([f"\n{text}"], 1)
            assert best.text == text
            assert best.score == pytest.approx(1, abs=1e-4)
    assert load_embedding(folder, pooling="cls")(["red"]).shape == (1, 32)


def test_folders_that_hold_no_model(tmp_path):
    with pytest.raises(UnknownNameError, match="no folder"):
        load_embedding(tmp_path / "nosuch")
    with pytest.raises(ConfigError, match="pooling must be"):
        load_embedding(tmp_path, pooling="max")
    with pytest.raises(ConfigError, match="cannot load a model"):
        load_embedding(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises((MissingExtraError, ConfigError)):
        load_embedding(tmp_path)
