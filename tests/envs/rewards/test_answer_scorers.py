"""`exact`, `numeric`, and where an answer is found."""

from __future__ import annotations

import time
from decimal import Decimal

import numpy as np
import pytest

from tests.envs.rewards.outcomes import outcome
from toolgym.envs import StopReason
from toolgym.envs.rewards import exact, numeric
from toolgym.tools.answers.marks import marked_answer
from toolgym.tools.errors import ConfigError
from toolgym.tools.library.final_answer import score_final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so\n#### 42\n#### 43 \nbye", "43"),
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"1, \frac{1}{2}"),
        (r"\boxed{1}, no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox {x}", "x"),
        (r"\boxed{a\boxed{b}}", r"a\boxed{b}"),
        (r"\boxed{1} \boxed{2", "1"),
        ("<answer>a</answer> <answer> b </answer>", "b"),
        ("</answer><answer>", None),
        ("<think>#### 1</think>#### 2", "2"),
        ("#### 1 <think> #### 2", "1"),
        ("42", None),
        ("", None),
    ],
)
def test_where_a_text_marks_its_answer(text, answer):
    assert marked_answer(text) == answer


@pytest.mark.parametrize("text", [r"\boxed{" * 40_000, "<answer>" * 40_000, "{" * 300_000, "#### " * 60_000])
def test_no_text_takes_long(text):
    started = time.process_time()
    marked_answer(text)
    numeric()(outcome(text, truth=1))
    assert time.process_time() - started < 10  # where the time grew as the square of the length: minutes


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("Paris", "Paris", 1.0),
        (" Paris\n", "Paris ", 1.0),
        ("<think>London</think>Paris", "Paris", 1.0),
        ("It is\n#### Paris", "Paris", 1.0),
        ("paris", "Paris", 0.0),
        ("Paris, France", "Paris", 0.0),
        ("A.", "A", 1.0),
        (r"\boxed{(A)}", "A", 1.0),
        ("A", "A)", 1.0),
        ("B.", "A", 0.0),
        ("a.", "A", 0.0),
        ("", "A", 0.0),
        ("Paris.", "Paris", 0.0),
        ("Paris", ["London", "Paris"], 1.0),
        ("42", 42, 1.0),
        ("true", True, 1.0),
        ("", "", 0.0),
        ("", None, 0.0),
        ("None", None, 0.0),
    ],
)
def test_exact(text, truth, score):
    assert exact()(outcome(text, truth=truth)) == score


def test_exact_may_ignore_case():
    assert exact(ignore_case=True)(outcome("STRASSE", truth="Straße")) == 1.0


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("it is 42.", "42", 1.0),
        ("first 41, then 42", 42, 1.0),
        ("42 and then 41", 42, 0.0),
        ("$1,234.50", "1234.5", 1.0),
        (r"\boxed{3/4} of 9", 0.75, 1.0),
        ("1e3", 1000, 1.0),
        ("-7", "-7", 1.0),
        ("#### 5\nin 3 steps", "5", 1.0),
        ("42", "She has 6*7=<<6*7=42>>42 apples.\n#### 42", 1.0),
        ("1/0", 1, 0.0),
        ("1e999999999", 1, 0.0),
        ("9" * 5000, 1, 0.0),
        ("none", 1, 0.0),
        ("7", ["6", 7], 1.0),
        ("7", None, 0.0),
    ],
)
def test_numeric(text, truth, score):
    assert numeric()(outcome(text, truth=truth)) == score


def test_numeric_within_a_tolerance():
    scorer = numeric(tolerance=0.01)
    assert [scorer(outcome(text, truth=-200)) for text in ("-198", "-202", "-197.9", "198")] == [1.0, 1.0, 0.0, 0.0]


def test_an_episode_without_an_answer_scores_nothing():
    cut = outcome("42", truth="42", stop_reason=StopReason.MAX_TURNS)
    assert (exact()(cut), numeric()(cut)) == (0.0, 0.0)


@pytest.mark.parametrize("tolerance", [-1, "1", True, float("nan"), float("inf")])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    with pytest.raises(ConfigError, match="tolerance"):
        numeric(tolerance=tolerance)


def test_a_ground_truth_that_cannot_be_compared_is_the_users_error():
    with pytest.raises(ConfigError, match="got the ground truth 'many'"):
        numeric()(outcome("3", truth="many"))
    with pytest.raises(ConfigError, match="'target'"):
        exact()(outcome("3", truth={"target": 3}))


@pytest.mark.parametrize(
    ("said", "truth", "score"),
    [
        ("１２", 12, 1.0),
        ("１，２３４", 1234, 1.0),
        ("12", "１２", 1.0),
        ("１２．５", 12.5, 1.0),
        ("−5", -5, 1.0),
        ("−5", 5, 0.0),
    ],
)
def test_numbers_of_full_width_are_numbers_to_both_scorers(said, truth, score):
    assert numeric()(outcome(f"#### {said}", truth=truth)) == score
    assert score_final_answer(f"#### {said}", truth) == score


def test_a_final_answer_that_only_begins_with_a_number_is_compared_whole():
    assert [score_final_answer(f"#### {one}", "1/2") for one in ("1/2", "1", "1/3")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "truth", [np.array(["5", "7"]), np.int64(5), [np.float64(5.0)], Decimal(5), np.array([5]), np.str_("5")]
)
def test_ground_truths_of_a_table_are_read(truth):
    assert numeric()(outcome("5", truth=truth)) == 1.0
    assert exact()(outcome("6", truth=truth)) == 0.0
