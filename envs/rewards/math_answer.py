r"""`same_value`: whether an answer is the same mathematics as the ground truth.

Comparing may take SymPy seconds, or for ever, while it holds Python's lock. So it is done in the processes of a
`ProcessPool`, as many as there are processors, shared by all envs of this process.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from toolgym.envs.rewards.answer import answer_score, found_answer, plain_choice, truth_texts
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.tools.confined import OverrunError, ProcessPool, WorkError
from toolgym.tools.errors import ConfigError, check_seconds, shorten
from toolgym.tools.lazy import missing_extra

MEMORY = 4 << 30
"""Bytes of address space that a process may have."""

MAX_ANSWER = 8192
"""Characters of an answer that is compared."""

_log = logging.getLogger(__name__)


def same_value(*, timeout: float = 10.0) -> Callable[[Outcome], Awaitable[Score]]:
    r"""Return a scorer: 1 if the answer equals the ground truth mathematically, else 0. It needs the extra `math`.

    `\frac{1}{2}` equals `0.5`, and `(x+1)^2` equals `x^2+2x+1`; sets, intervals, matrices, equations and units are
    compared too; `docs/envs/math.md` has the rules. The answer is what the final text marks (`\boxed{...}`, see
    `toolgym.tools.answers.marks.marked_answers`), or what it says its answer is. The ground truth is LaTeX or a plain
    expression, with or without dollar signs; of a list, any is right.

    Components of the score, each 0 or 1: `no_answer` (the text gives none), `unreadable` (its answer is not
    mathematics), `not_comparable` (the comparison took too long or failed). All are 0 for a wrong answer.

    Args:
        timeout: CPU seconds for one comparison. A comparison that takes longer, or more than 4 GiB, scores 0, because
            the policy wrote it.

    Raises:
        ConfigError: when scoring, a ground truth cannot be read as mathematics.
    """
    check_seconds(timeout=timeout)
    if importlib.util.find_spec("math_verify") is None:
        raise missing_extra("math", "Comparing answers as mathematics", ImportError("No module named 'math_verify'"))

    async def score(outcome: Outcome) -> Score:
        answer, truths = found_answer(outcome.final_text), truth_texts(outcome.task.ground_truth)
        if not answer or not truths:
            return _score("no answer")
        if plain_choice(answer) in map(plain_choice, truths):
            return _score("right")
        if len(answer) > MAX_ANSWER:
            return _score("unreadable")
        verdict = "wrong"
        try:
            for truth in truths:
                verdict = await _pool.call("compare", truth, answer, cpu_seconds=timeout)
                if verdict == "no truth":
                    raise ConfigError(f"the ground truth {shorten(repr(truth))} cannot be read as mathematics")
                if verdict == "right":
                    break
        except OverrunError:
            return _score("not comparable")
        except WorkError as error:
            _log.debug("comparing failed: %s", error)
            return _score("not comparable")
        return _score(verdict)

    return score


def _score(verdict: str) -> Score:
    return answer_score(
        verdict == "right",
        no_answer=verdict == "no answer",
        unreadable=verdict == "unreadable",
        not_comparable=verdict == "not comparable",
    )


_pool = ProcessPool(
    Path(__file__).with_name("math_worker.py"),
    name="the process that compares answers as mathematics",
    memory=MEMORY,
)
