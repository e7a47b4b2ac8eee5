"""Exact match, F1 and the form of answers."""

from __future__ import annotations

import numpy as np
import pytest

from toolgym.envs import Task
from toolgym.envs.rewards.base import Outcome
from toolgym.envs.rewards.qa import (
    AnswerScorer,
    exact_match,
    f1,
    gold_answers,
    has_answer_form,
    normalize_answer,
    tagged_answer,
)
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel\tTower.", "eiffel tower"),
        ("an Apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("Über-Stadt", "überstadt"),
        ("the", ""),
    ],
)
def test_answers_are_normalised_as_in_squad(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("answer", "golds", "em", "words"),
    [
        ("The Eiffel Tower", ["eiffel tower!"], 1, 1),
        ("Tower", ["Eiffel Tower"], 0, 2 / 3),
        ("Paris", ["Rome", "Paris", "Paris, France"], 1, 1),
        ("in Paris", ["Rome", "Paris"], 0, 2 / 3),
        ("tower tower", ["tower"], 0, 2 / 3),
        ("yes it is", ["yes"], 0, 0),
        ("no", ["no way"], 0, 0),
        ("No.", ["no"], 1, 1),
        ("London", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
        ("anything", [], 0, 0),
        ("", ["A"], 0, 0),
        ("the", ["A", "!"], 0, 0),
        ("a", ["A"], 1, 1),
        ("A.", ["A"], 1, 1),
        ("(A)", ["A"], 1, 1),
        ("An", ["A"], 0, 0),
        ("", ["The"], 0, 0),
        (".", ["A"], 0, 0),
    ],
)
def test_the_best_of_several_right_answers_counts(answer, golds, em, words):
    assert exact_match(answer, golds) == em
    assert f1(answer, golds) == pytest.approx(words)


@pytest.mark.parametrize(
    ("text", "answer", "form"),
    [
        ("<answer>Paris</answer>", "Paris", True),
        ("<think>hm</think>\n<answer> Paris\n</answer>\n", "Paris", True),
        ("hm</think><answer>Paris</answer>", "Paris", True),
        ("It is <answer>Paris</answer>", "Paris", True),
        ("<answer>Rome</answer> no, <answer>Paris</answer>", "Paris", False),
        ("<answer>Paris</answer>, I think", "Paris", False),
        ("<answer></answer>", "", False),
        ("<answer>Paris", None, False),
        ("Paris</answer>", None, False),
        ("<think><answer>Rome</answer></think>", None, False),
        ("<answer>Paris</answer><think>", "Paris", False),
        ("<think><think>a</think><answer>Paris</answer>", "Paris", False),
        ("Paris", None, False),
        ("", None, False),
    ],
)
def test_what_counts_as_an_answer_and_what_has_the_form(text, answer, form):
    assert tagged_answer(text) == answer
    assert has_answer_form(text) is form


def task(truth, **row):
    return Task((user("Where?"),), ground_truth=truth, id="7", row=row)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (task("Paris"), ["Paris"]),
        (task(["Paris", "City of Light"]), ["Paris", "City of Light"]),
        (task({"target": ["Paris"]}), ["Paris"]),
        (task({"target": np.array(["Paris"])}), ["Paris"]),
        (task({"target": "Paris"}), ["Paris"]),
        (task(1887), ["1887"]),
        (task(None, golden_answers=["Paris"]), ["Paris"]),
        (task(None, extra_info={"golden_answers": ["Paris"]}), ["Paris"]),
    ],
)
def test_right_answers_in_the_shapes_of_data_sets(given, expected):
    assert gold_answers(given) == expected


@pytest.mark.parametrize("truth", [None, [], "", " ", [""], {"target": []}, {"answer": "x"}, [["x"]], {"target": None}])
def test_a_task_without_right_answers_is_named(truth):
    with pytest.raises(ConfigError, match="task '7' of a question needs its answers"):
        gold_answers(task(truth))


def scored(text, measure="em", weight=0.0):
    outcome = Outcome(task(["Paris France"]), (), 1, (), text, StopReason.ANSWERED)
    score = AnswerScorer.checked(measure, weight)(outcome)
    return score.value, dict(score.components)


def test_the_reward_is_the_measure_with_a_part_for_the_form():
    half = {"em": 0.0, "f1": pytest.approx(2 / 3), "format": 1.0}
    assert scored("<answer>Paris</answer>") == (0.0, half)
    assert scored("<answer>Paris</answer>", "f1") == (pytest.approx(2 / 3), half)
    assert scored("<answer>Paris</answer>", "em", 0.2) == (pytest.approx(0.2), half)
    assert scored("<answer>Paris</answer>", "f1", 0.25) == (pytest.approx(0.75), half)
    assert scored("Paris France", "em", 0.2) == (0.0, {"em": 0.0, "f1": 0.0, "format": 0.0})


@pytest.mark.parametrize(("measure", "weight"), [("rouge", 0), ("em", -0.1), ("em", 1.1), ("em", True), ("em", "1")])
def test_other_settings_are_refused(measure, weight):
    with pytest.raises(ConfigError, match="reward must be one of em, f1|format_weight must be a number from 0 to 1"):
        AnswerScorer.checked(measure, weight)
