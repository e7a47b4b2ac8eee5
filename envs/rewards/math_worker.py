"""`compare`: whether an answer is the same mathematics as a ground truth. It is the work of a `ProcessPool`."""

from __future__ import annotations

import logging

from toolgym.envs.rewards.mathematics.engine import Verdict, load, verify
from toolgym.envs.rewards.mathematics.equality import same
from toolgym.envs.rewards.mathematics.readings import plain_texts, read_answer
from toolgym.envs.rewards.mathematics.values import Answer

__all__ = ["compare", "load"]

_log = logging.getLogger(__name__)


def compare(truth: str, answer: str) -> Verdict:
    """Return `right` or `wrong`, `unreadable` if the answer is not mathematics, or `no truth` if the truth is not."""
    texts = plain_texts(truth)
    if not texts:
        return "no truth"
    if texts & plain_texts(answer):
        return "right"
    truths, answers = _readings(truth), _readings(answer)
    verdicts = [_same(gold, reading) for gold in truths for reading in answers]
    if True in verdicts:
        return "right"
    if verdicts and None not in verdicts:
        return "wrong"
    try:
        verdict = verify(truth, answer)
    except Exception as error:  # noqa: BLE001  math-verify and SymPy raise whatever they like
        _log.debug("math-verify cannot compare two answers: %r", error)
        return "unreadable"
    if verdict == "no truth" and truths:
        return "wrong" if answers else "unreadable"
    return "unreadable" if verdict == "wrong" and not answers else verdict


def _same(truth: Answer, answer: Answer) -> bool | None:
    """Whether two answers are the same; None if SymPy cannot tell."""
    try:
        return same(truth, answer)
    except Exception as error:  # noqa: BLE001  SymPy raises whatever it likes
        _log.debug("two answers cannot be compared: %r", error)
        return None


def _readings(text: str) -> list[Answer]:
    r"""Return the answers that a text may be: `1,200` is a number or a list. The ground truth decides between them."""
    readings = []
    for groups in (True, False) if "," in text else (True,):
        try:
            readings.append(read_answer(text, groups=groups))
        except Exception as error:  # noqa: BLE001  SymPy raises whatever it likes
            _log.debug("an answer cannot be read: %r", error)
    return readings
