"""The `#### answer` scorer."""

from __future__ import annotations

import pytest

from toolgym.envs.scoring import final_answer, score_final_answer


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
