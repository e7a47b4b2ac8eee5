"""Ids that rows give their tests, and the ends of tests that count, as SWE-bench has them.

Source: `swebench/harness/grading.py` and `swebench/harness/log_parsers` of SWE-bench.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PASSED, EXPECTED_FAILURE, SKIPPED = "passed", "expected failure", "skipped"

ABSENT = "absent"
"""The end of a test whose file was read and does not hold it."""

NOT_RUN = "not run"
"""The end of a test whose command could not be started."""

_PRINTED = re.compile(r"(\w+) \(([\w.]+)\)")
_DOTTED = re.compile(r"\w+(\.\w+)+")


def unittest_name(test: str) -> str | None:
    """Return the dotted name of a unittest test; None for an id that is the first line of a test's docstring.

    Besides dotted names, rows have ids as unittest prints them: `test_x (m.Case)`, and since Python 3.11
    `test_x (m.Case.test_x)`.
    """
    printed = _PRINTED.fullmatch(test)
    if printed is None:
        return test if _DOTTED.fullmatch(test) else None
    method, place = printed.groups()
    return place if place.endswith(f".{method}") else f"{place}.{method}"


def is_cut(test: str) -> bool:
    """Return whether an id of pytest is cut, as SWE-bench's log parsers cut ids at a blank in their parameters.

    A cut id stands for all tests whose ids begin with it. It has passed if they all have.
    """
    return test.count("[") > test.count("]")


def united_outcome(outcomes: Iterable[str]) -> str:
    """Return the end of a cut id from the ends of the tests that it stands for."""
    ends = set(outcomes)
    if ends <= {PASSED, EXPECTED_FAILURE}:
        return PASSED if PASSED in ends else EXPECTED_FAILURE
    return ends.pop() if len(ends) == 1 else "failed"


def counts_as_passed(test: str, outcome: str | None, reference: Mapping[str, str], *, may_skip: bool) -> bool:
    """Return whether a test counts: it passed, or it ended as an expected failure or, if it `may_skip`, was skipped.

    SWE-bench lets tests of `pass_to_pass` be skipped, and lets all tests fail as expected. The policy's code could skip
    a test or declare its failure expected, so these ends count only if the test ends so in the `reference` run too.
    """
    if outcome == PASSED:
        return True
    allowed = {EXPECTED_FAILURE, SKIPPED} if may_skip else {EXPECTED_FAILURE}
    return outcome in allowed and reference.get(test) == outcome
