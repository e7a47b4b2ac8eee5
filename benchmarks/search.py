"""Queries a second of the embedded retriever beside bm25s alone, on the same passages in the same run.

    python benchmarks/search.py [--passages 200000] [--queries 200] [--json]

The passages have words with the frequencies of a language (Zipf's law), 60 words each; a query has six words of one.

bm25s          `bm25s.BM25.retrieve` over all queries in one call, in memory, in one thread; it gives row numbers
bm25s, one     the same, a call for each query
ours, one      `BM25Retriever.search`, awaited for one query after the other: in a thread, the index memory-mapped, the
               passages read from their file
ours           the same for all queries in one call, which shares them out to the processors
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np

from toolgym.tools import BM25Retriever

TOPK = 3
WORDS_EACH = 60
VOCABULARY = 200_000


def texts(count: int) -> list[str]:
    """Return made passages."""
    draw = np.random.default_rng(0)
    likely = 1.0 / (np.arange(VOCABULARY) + 2.7)  # Zipf's law as Mandelbrot has it
    rows = draw.choice(VOCABULARY, size=(count, WORDS_EACH), p=likely / likely.sum())
    return [" ".join(f"w{number}" for number in row) for row in rows.tolist()]


def rate(run: Callable[[], object], count: int, repeat: int = 3) -> float:
    """Return how many queries a second `run` answers, at best."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return count / best


def measure(passages: int, count: int) -> dict[str, float]:
    """Return queries a second of each way, and what the index took."""
    made = texts(passages)
    queries = [" ".join(text.split()[:6]) for text in made[:: max(1, passages // count)][:count]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passages.jsonl"
        path.write_text("".join(json.dumps({"id": row, "text": text}) + "\n" for row, text in enumerate(made)))
        began = time.perf_counter()
        ours = BM25Retriever(path, timeout=600)
        built = time.perf_counter() - began
        size = sum(file.stat().st_size for file in path.with_name(f"{path.name}.bm25").iterdir())
        plain = bm25s.BM25()
        began = time.perf_counter()
        plain.index(bm25s.tokenize(made, show_progress=False), show_progress=False)
        plain_built = time.perf_counter() - began
        tokens = bm25s.tokenize(queries, return_ids=False, show_progress=False)

        def retrieve_all() -> object:
            return plain.retrieve(tokens, k=TOPK, show_progress=False)

        def retrieve_each() -> object:
            return [plain.retrieve([one], k=TOPK, show_progress=False) for one in tokens]

        with asyncio.Runner() as runner:

            async def search_each() -> None:
                for query in queries:
                    await ours.search([query], TOPK)

            async def search_all() -> None:
                await ours.search(queries, TOPK)

            found = {
                "bm25s": rate(retrieve_all, count),
                "bm25s, one": rate(retrieve_each, count),
                "ours, one": rate(lambda: runner.run(search_each()), count),
                "ours": rate(lambda: runner.run(search_all()), count),
            }
            runner.run(ours.close())
    return found | {"index": built, "bm25s, index": plain_built, "index MiB": size / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.passages, arguments.queries)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{arguments.passages} passages; queries a second, and the ratio to bm25s in one call:")
    for name in ("bm25s", "bm25s, one", "ours, one", "ours"):
        print(f"  {name:12} {found[name]:8.0f}  {found[name] / found['bm25s']:5.2f}")
    print(f"making the index, ratio of the times: {found['index'] / found['bm25s, index']:.2f}", end="; ")
    print(f"on disk {found['index MiB']:.0f} MiB")


if __name__ == "__main__":
    main()
