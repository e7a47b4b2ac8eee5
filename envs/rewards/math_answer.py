r"""`same_value`: whether an answer is the same mathematics as the ground truth, as `math-verify` sees it.

Comparing may take SymPy seconds, or for ever, while it holds Python's lock. So it is done in the processes of a
`ProcessPool`, as many as there are processors, shared by all envs of this process.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from toolgym.envs.rewards.answer import marked_answer, plain_choice, truth_texts
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.tools.confined import OverrunError, ProcessPool, WorkError
from toolgym.tools.errors import ConfigError, check_seconds, shorten
from toolgym.tools.lazy import missing_extra
from toolgym.tools.library.final_answer import without_thinking

MEMORY = 4 << 30
"""Bytes of address space that a process may have."""

MAX_ANSWER = 4096
"""Characters from the end of an answer that are read."""

_log = logging.getLogger(__name__)


def same_value(*, timeout: float = 10.0) -> Callable[[Outcome], Awaitable[Score]]:
    r"""Return a scorer: 1 if the answer equals the ground truth mathematically, else 0. It needs the extra `math`.

    `\frac{1}{2}` equals `0.5`, and `(x+1)^2` equals `x^2+2x+1`; sets, intervals, matrices and equations are compared
    too. The answer is what the final text marks (`\boxed{...}`, see `toolgym.envs.rewards.answer.marked_answer`), or
    what `math-verify` finds in it. The ground truth is LaTeX or a plain expression, with or without dollar signs; of a
    list, any is right. One that is no mathematics is a `ConfigError`.

    Args:
        timeout: CPU seconds for one comparison. A comparison that takes longer, or more than 4 GiB, scores 0 and has
            the component `not_comparable`, because the policy wrote it.
    """
    check_seconds(timeout=timeout)
    if importlib.util.find_spec("math_verify") is None:
        raise missing_extra("math", "Comparing answers as mathematics", ImportError("No module named 'math_verify'"))

    async def score(outcome: Outcome) -> Score:
        marked = marked_answer(outcome.final_text)
        text = without_thinking(outcome.final_text) if marked is None else marked
        answer = text[-MAX_ANSWER:].strip() if marked is None else f"\\boxed{{{text[-MAX_ANSWER:]}}}"
        truths = truth_texts(outcome.task.ground_truth)
        if not answer or not truths:
            return Score(0.0)
        if text.strip() and plain_choice(text) in map(plain_choice, truths):
            return Score(1.0)
        try:
            for truth in truths:
                verdict = await _pool.call("compare", truth, answer, cpu_seconds=timeout)
                if verdict == "no truth":
                    raise ConfigError(f"the ground truth {shorten(repr(truth))} cannot be read as mathematics")
                if verdict == "right":
                    return Score(1.0)
        except OverrunError:
            return Score(0.0, {"not_comparable": 1.0})
        except WorkError as error:  # what cannot be read is not a right answer
            _log.debug("comparing failed: %s", error)
            return Score(0.0)
        return Score(0.0)

    return score


_pool = ProcessPool(
    Path(__file__).with_name("math_worker.py"), name="the process that compares answers by math-verify", memory=MEMORY
)
