"""A file of passages: what a line may be, and what is said of one that is none."""

from __future__ import annotations

import json
from array import array

import pytest

from toolgym.tools.errors import ConfigError, RetrievalError, UnknownNameError
from toolgym.tools.search.corpus import Corpus, read_passages
from toolgym.tools.search.retriever import Passage

LINES = [
    {"id": "7", "contents": '"Paris"\nThe capital.\nOf France.', "url": "x"},
    {"title": "Rome", "text": "Über allen."},
    {"id": 3, "text": "No title."},
    {"contents": "one line"},
]
PASSAGES = [
    Passage('"Paris"', "The capital.\nOf France.", id="7"),
    Passage("Rome", "Über allen."),
    Passage("", "No title.", id="3"),
    Passage("one line", ""),
]


def write(folder, *lines, start=b""):
    path = folder / "corpus.jsonl"
    path.write_bytes(start + b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines))
    return path


def scanned(path):
    corpus, places = Corpus(path), array("q")
    try:
        found = list(corpus.scan(places))
        return found, read_passages(corpus, places, [(row, 1.0) for row in range(len(places) - 1)])
    finally:
        corpus.close()


def test_both_shapes_and_blank_lines_are_read(tmp_path):
    found, again = scanned(write(tmp_path, *LINES[:2], b"", b"  \r", *LINES[2:], start=b"\xef\xbb\xbf"))
    assert found == PASSAGES
    assert [one._replace(score=None) for one in again] == PASSAGES


@pytest.mark.parametrize("passage", PASSAGES)
def test_contents_say_title_and_text(passage):
    assert Passage.of_contents(passage.contents, id=passage.id) == passage


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 3: expected a JSON object, got '{'"),
        (b"[1]", "line 3: expected a JSON object"),
        (b'{"contents": 5}', "line 3: 'contents' must be text, got 5"),
        (b'{"text": "a", "title": []}', "line 3: 'title' must be text"),
        (b'{"body": "a"}', "line 3: a passage has 'contents', or 'text' and 'title'; this one has body"),
        (b'{"text": "\xff"}', "line 3: expected a JSON object"),
    ],
)
def test_a_line_that_is_no_passage_is_named(tmp_path, line, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[").replace("{", r"\{")):
        scanned(write(tmp_path, LINES[0], b"", line))


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(UnknownNameError, match="nosuch.jsonl"):
        Corpus(tmp_path / "nosuch.jsonl")
    with pytest.raises(ConfigError, match="cannot read the corpus"):
        Corpus(tmp_path)
    with pytest.raises(ConfigError, match="holds no passages"):
        scanned(write(tmp_path, b""))
    with pytest.raises(ConfigError, match="compressed: unpack it"):
        Corpus(write(tmp_path, b"", start=b"\x1f\x8b\x08"))


def test_a_file_that_was_changed_is_an_error_and_no_other_passage(tmp_path):
    path = write(tmp_path, *LINES)
    corpus = Corpus(path)
    places = array("q")
    list(corpus.scan(places))
    path.write_bytes(b"short")
    with pytest.raises(RetrievalError, match="was changed"):
        read_passages(corpus, places, [(2, 1.0)])
    corpus.close()
