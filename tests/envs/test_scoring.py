"""The `#### answer` scorer."""

from __future__ import annotations

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.library.final_answer import final_answer, score_final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 42", "42"),
        ("So it is\n####42\nDone.", "42"),
        ("#### 1\nno, #### 2", "2"),
        ("#### $1,234.50", "1234.50"),
        ("#### -$7", "-7"),
        ("#### 12 apples", "12"),
        ("#### .5", ".5"),
        ("#### 42.", "42"),
        ("#### Paris", "Paris"),
        ("####", None),
        ("42", None),
        ("### 42", None),
        ("<think>#### 1</think>#### 2", "2"),
        ("<think>#### 1</think>", None),
        ("<think>#### 1", None),
        ("#### 3 <think>#### 4", "3"),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("#### 42", "42", 1.0),
        ("#### 42.0", "42", 1.0),
        ("#### 1,000", "1000", 1.0),
        ("#### 10000000000000000000001", "10000000000000000000000", 0.0),
        ("#### 0.1", "0.10", 1.0),
        ("#### 41", "42", 0.0),
        ("42", "42", 0.0),
        ("#### Paris", "Paris", 1.0),
        ("#### Paris", "Rome", 0.0),
        ("#### 42", None, 0.0),
        ("#### NaN", "NaN", 1.0),
        ("#### 42abc", "42", 1.0),
    ],
)
def test_score(text, truth, score):
    assert score_final_answer(text, truth) == score


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("#### 42", 42, 1.0),
        ("#### 42", 42.0, 1.0),
        ("#### 0.5", 0.5, 1.0),
        ("#### 41", 42, 0.0),
        ("#### 10000000000000000000001", 10000000000000000000000, 0.0),
        ("#### true", True, 1.0),
        ("#### 1", True, 0.0),
        ("#### Paris", ["London", "Paris"], 1.0),
        ("#### 7", ["London", 7], 1.0),
        ("#### Rome", ["London", "Paris"], 0.0),
        ("#### Rome", [], 0.0),
    ],
)
def test_ground_truth_that_is_not_text(text, truth, score):
    assert score_final_answer(text, truth) == score


def test_a_ground_truth_that_no_answer_equals_is_the_users_error():
    with pytest.raises(ConfigError, match="'target'"):
        score_final_answer("#### 1", {"target": ["1"]})
