"""The examples of docs/wrappers.md are true, and it has one for each wrapper."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import toolgym.wrappers

PAGE = Path(__file__).parents[2] / "docs/wrappers.md"


@pytest.mark.long
def test_the_examples_of_the_page_are_true():
    # Its examples end in front of the line that closes their block.
    text = PAGE.read_text(encoding="utf-8").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "docs/wrappers.md", str(PAGE), 0)
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.append)
    assert "".join(report) == ""
    assert runner.tries == text.count(">>> ") > 25


def test_the_page_shows_every_wrapper():
    text = PAGE.read_text(encoding="utf-8")
    examples = "\n".join(line for line in text.splitlines() if line.startswith((">>> ", "... ")))
    assert [name for name in toolgym.wrappers.__all__ if name not in examples and name != "Limit"] == []
