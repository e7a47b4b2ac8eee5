"""Searching a file by words: what is found, the index on disk, and many at once."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time

import bm25s
import numpy as np
import pytest

from toolgym.testing import ToolSuite
from toolgym.tools import BM25Retriever, SearchTool
from toolgym.tools.errors import ConfigError, RetrievalError

CITIES = [
    ("Paris", "The capital of France."),
    ("Rome", "The capital of Italy."),
    ("東京", "日本の首都は東京です。"),
    ("C", "A language."),
]


def write(path, rows):
    path.write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in rows))
    return path


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "cities.jsonl", CITIES)


def titles(found):
    return [[one.title for one in each] for each in found]


class TestSearchOverAFile(ToolSuite):
    arguments = {"query_list": ["capital of France"]}  # noqa: RUF012
    forks = True

    @pytest.fixture
    def tool(self, corpus):
        return SearchTool({"corpus": str(corpus), "index": ":memory:"})


async def test_the_words_of_a_query_find_passages_best_first(corpus):
    async with BM25Retriever(corpus) as retriever:
        found = await retriever.search(["capital of FRANCE", "東京", "language C", "the of", "", "nothing"], 2)
        assert titles(found) == [["Paris", "Rome"], ["東京"], ["C"], [], [], []]
        assert found[0][0].score > found[0][1].score > 0
        assert len(retriever) == 4
    with pytest.raises(RetrievalError, match="closed"):
        await retriever.search(["a"], 1)


@pytest.mark.parametrize("rows", [50, 5000])
async def test_it_finds_what_bm25s_finds(tmp_path, rows):
    draw = random.Random(0)
    words = [f"w{number}" for number in range(300)]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(rows)]
    queries = [" ".join(draw.choices(words, k=4)) for _ in range(20)]
    plain = bm25s.BM25()
    plain.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    expected = plain.retrieve(bm25s.tokenize(queries, show_progress=False), k=3, show_progress=False)
    async with BM25Retriever(
        write(tmp_path / "c.jsonl", [("", text) for text in texts]), index=":memory:"
    ) as retriever:
        found = await retriever.search(queries, 3)
    for passages, scores in zip(found, expected.scores, strict=True):
        np.testing.assert_allclose([one.score for one in passages], scores[scores > 0], rtol=1e-5)


async def test_the_index_is_made_once_and_again_when_the_file_has_changed(corpus, caplog):
    caplog.set_level(logging.WARNING, "toolgym.tools.search")
    folder = corpus.with_name("cities.jsonl.bm25")
    for _ in range(2):
        async with BM25Retriever(corpus) as retriever:
            assert titles(await retriever.search(["France"], 3)) == [["Paris"]]
        del retriever
    assert len(caplog.records) == 1
    assert sorted(os.listdir(corpus.parent)) == [corpus.name, folder.name]
    write(corpus, [*CITIES, ("Lyon", "A town in France.")])
    async with BM25Retriever(corpus) as retriever:
        assert titles(await retriever.search(["France"], 3)) == [["Paris", "Lyon"]]
    assert len(caplog.records) == 2
    assert sorted(os.listdir(corpus.parent)) == [corpus.name, folder.name]


async def test_one_that_is_open_goes_on_with_the_file_that_it_opened(corpus):
    async with BM25Retriever(corpus) as before:
        new = write(corpus.with_name("new"), [("Lyon", "A town in France.")])
        new.rename(corpus)
        async with BM25Retriever(corpus) as after:
            assert titles(await after.search(["France"], 1)) == [["Lyon"]]
            assert titles(await before.search(["France"], 1)) == [["Paris"]]


def test_processes_that_begin_together_make_one_index(corpus):
    program = "import sys; from toolgym.tools import BM25Retriever; print(len(BM25Retriever(sys.argv[1])))"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(corpus)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    ended = [one.communicate(timeout=300) for one in running]
    assert [out.strip() for out, _ in ended] == ["4"] * 3
    assert sum("building an index" in err for _, err in ended) == 1


def test_a_failed_build_leaves_nothing(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "a"}\n{\n')
    with pytest.raises(ConfigError, match=r"c\.jsonl, line 2: expected a JSON object"):
        BM25Retriever(corpus)
    write(corpus, [("", "the")])
    with pytest.raises(ConfigError, match="hold no words"):
        BM25Retriever(corpus)
    assert os.listdir(tmp_path) == ["c.jsonl"]


def test_what_a_killed_process_left_is_removed(corpus):
    program = (
        "import os, sys\nfrom toolgym.tools.search import bm25\nbm25.bm25s.BM25.save = lambda *a, **k: os._exit(9)\n"
        "bm25.BM25Retriever(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(corpus)], timeout=300, check=False, capture_output=True)
    assert done.returncode == 9
    [left] = [name for name in os.listdir(corpus.parent) if name != corpus.name]
    assert left.startswith(f".{corpus.name}.bm25.")
    BM25Retriever(corpus)
    assert sorted(os.listdir(corpus.parent)) == [corpus.name, f"{corpus.name}.bm25"]


def test_no_folder_of_the_user_s_is_replaced(corpus):
    with pytest.raises(ConfigError, match="exists and is no index"):
        BM25Retriever(corpus, index=corpus.parent)
    with pytest.raises(ConfigError, match="cannot make an index in .*name another folder"):
        BM25Retriever(corpus, index=corpus.parent / "nosuch" / "index")
    assert os.listdir(corpus.parent) == [corpus.name]


@pytest.mark.parametrize("name", ["data.csc.index.npy", "params.index.json", "places.npy"])
def test_a_damaged_index_is_named(corpus, name):
    BM25Retriever(corpus)
    gc.collect()
    (corpus.parent / f"{corpus.name}.bm25" / name).write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot read the index in .*remove it"):
        BM25Retriever(corpus)


def test_a_disk_without_room_for_the_index_is_named(corpus, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(ConfigError, match="cannot make an index in .*: No space left on device; name another folder"):
        BM25Retriever(corpus)
    assert os.listdir(corpus.parent) == [corpus.name]


def test_a_missing_package_names_the_extra(corpus):
    program = (
        "import sys; sys.modules['bm25s'] = None\nfrom toolgym.tools import SearchTool\n"
        "SearchTool({'corpus': sys.argv[1]})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(corpus)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "MissingExtraError: Searching with BM25 needs" in done.stderr
    assert "[search]'" in done.stderr


async def test_retrievers_of_one_process_share_an_index(corpus):
    tools = [SearchTool({"corpus": str(corpus)}) for _ in range(3)]
    assert len({id(tool.retriever._index) for tool in tools}) == 1
    for tool in tools[:2]:
        await tool.close()
    text, _, _ = await tools[2].execute(await tools[2].create(), {"query_list": ["France"]})
    assert text == "Doc 1 (Title: Paris)\nThe capital of France."
    await tools[2].close()


async def test_the_event_loop_runs_on_and_a_long_search_is_given_up(corpus):
    release = threading.Event()
    async with BM25Retriever(corpus, timeout=0.2) as retriever:
        slow, retriever._find = retriever._find, lambda queries, topk: [release.wait(60)]
        began = time.monotonic()
        try:
            with pytest.raises(RetrievalError, match=r"the search did not finish within 0\.2 seconds"):
                await retriever.search(["a"], 1)
            assert time.monotonic() - began < 30
        finally:
            release.set()
        retriever._find, retriever._timeout = slow, 60.0
        assert titles(await retriever.search(["France"], 1)) == [["Paris"]]


async def test_many_at_once_and_from_other_event_loops(corpus):
    async with BM25Retriever(corpus) as retriever:
        found = await asyncio.gather(*(retriever.search(["France", "Italy"] * 20, 1) for _ in range(20)))
        assert all(titles(one) == [["Paris"], ["Rome"]] * 20 for one in found)
        other = await asyncio.to_thread(asyncio.run, retriever.search(["Italy"], 1))
        assert titles(other) == [["Rome"]]
