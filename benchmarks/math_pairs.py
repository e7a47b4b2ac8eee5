"""Count the right answers that are refused and the wrong answers that are paid, with toolgym and with math-verify.

    python benchmarks/math_pairs.py [--pairs FILE] [--disagreements]

A pair is a ground truth and a whole turn of a policy, with the label 1 if the turn answers rightly and 0 if it does
not. The file is JSON Lines, or a JSON list, of objects with `gold`, `text` and `label`, and optionally `family`. By
default it is the committed set, whose labels follow from mathematics and from the rules in `docs/envs/math.md`.
math-verify by itself parses the turn as its documentation shows, boxes first. Each comparison has 5 CPU seconds in a
separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolgym.envs.rewards.base import Outcome
from toolgym.envs.rewards.math_answer import same_value
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.tools.confined import OverrunError, ProcessPool, WorkError

COMMITTED = Path(__file__).parents[1] / "tests" / "envs" / "rewards" / "math_pairs.jsonl"
SECONDS = 5.0


def by_math_verify(gold: str, text: str) -> bool:
    """Return the verdict of math-verify; called in a process of the pool."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    truth = parse(f"\\boxed{{{gold}}}", configs, parsing_timeout=None)
    return bool(verify(truth, parse(text, configs, parsing_timeout=None), timeout_seconds=None))


def read_pairs(path: Path) -> list[dict[str, Any]]:
    """Return the pairs of a file of JSON Lines, or of one JSON list."""
    text = path.read_text(encoding="utf-8")
    pairs: list[dict[str, Any]] = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    )
    return pairs


async def verdicts(pairs: Sequence[dict[str, Any]]) -> list[tuple[bool, bool]]:
    """Return for each pair whether toolgym pays it, and whether math-verify does."""
    scorer = same_value(timeout=SECONDS)
    pool = ProcessPool(Path(__file__), name="the process that calls math-verify")

    async def compare(pair: dict[str, Any]) -> tuple[bool, bool]:
        task = Task(({"role": "user", "content": "?"},), ground_truth=pair["gold"])
        score = await scorer(Outcome(task, task.messages, 1, (), pair["text"], StopReason.ANSWERED))
        try:
            by_peer = await pool.call("by_math_verify", pair["gold"], pair["text"], cpu_seconds=SECONDS)
        except (OverrunError, WorkError):
            by_peer = False
        return score.value == 1.0, bool(by_peer)

    return list(await asyncio.gather(*map(compare, pairs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=COMMITTED, help="pairs in JSON Lines or a JSON list")
    parser.add_argument("--disagreements", action="store_true", help="print each pair that either side gets wrong")
    arguments = parser.parse_args()
    pairs = read_pairs(arguments.pairs)
    judged = [
        (pair, bool(pair["label"]), *paid) for pair, paid in zip(pairs, asyncio.run(verdicts(pairs)), strict=True)
    ]
    right = sum(label for _, label, _, _ in judged)
    for name, side in (("toolgym", 2), ("math-verify", 3)):
        refused = sum(row[1] and not row[side] for row in judged)
        wrong = sum(not row[1] and row[side] for row in judged)
        share = f"{refused / max(right, 1):.1%}"
        print(f"{name:12} refuses {refused} of {right} right answers ({share})", end="")
        print(f", pays {wrong} of {len(judged) - right} wrong ones")
    worse = sum(ours != label and theirs == label for _, label, ours, theirs in judged)
    print(f"{worse} pairs that math-verify gets right and toolgym does not")
    if arguments.disagreements:
        print_disagreements(judged)


def print_disagreements(judged: Sequence[tuple[dict[str, Any], bool, bool, bool]]) -> None:
    families: dict[str, list[str]] = collections.defaultdict(list)
    for pair, label, ours, theirs in judged:
        if {ours, theirs} != {label}:
            line = f"label {label:d}, toolgym {ours:d}, math-verify {theirs:d}: {pair['gold']!r} {pair['text']!r}"
            families[pair.get("family", "")].append(line)
    for family, lines in sorted(families.items()):
        print(f"\n{family}\n  " + "\n  ".join(lines))


if __name__ == "__main__":
    main()
