"""What an unmarked text says its answer is."""

from __future__ import annotations

import pytest

from toolgym.tools.answers.statements import MAX_WRAPS, bare, said_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Of the 40 we lose 15. The answer is 25.", "25"),
        ("The answer is not 25.", "not 25"),
        ("24? No. The answer is 25", "25"),
        ("**Final Answer:** $25$", "$25$"),
        ("**Answer: 25**", "25"),
        ("Final answer:\n25", "25"),
        ("答案是 25。", "25"),
        ("The answer is 2.5 metres.", "2.5 metres"),
        ("So there are **25** of them.", "25"),
        ("Thus $x = 25$.", "$x = 25$"),
        ("So\n$$\n25\n$$", "$$\n25\n$$"),
        ("With $x = 3$ we have 25 birds.", "$x = 3$"),
        ("We know $x = 3$. So 25 birds fly.", "25"),
        ("It is not 25.", None),
        ("It is not $25$.", None),
        ("25 birds (of 40)", "25"),
        ("x+1", "x+1"),
        ("I do not know", None),
        (r"\boxed{}", None),
        (r"so \boxed{25", None),
        ("", None),
        ("The answer is 25, since 5 * 5 = 25.", "25"),
        ("The answer is $25$ and we are done.", "$25$"),
        ("The answer is 25, not 24.", "25"),
        ("The answer is 24, but this is wrong. So it is 25.", "25"),
        ("Answer: 25\n\nThe answer is the square of 5.", "25"),
        ("Answer:\n- 24\n- 25", "24, 25"),
        ("The answer cannot be 25.", None),
        ("## Final Answer\n\nTuesday", "Tuesday"),
        ("Thus the solution is x > 25.", "x > 25"),
        ("Therefore, option B is correct.", "B"),
        ("故选：B．", "B"),
        ("I choose (B).", "(B)"),
        ("B. a triangle", "B. a triangle"),
        ("The roots are 24 and 25.", "24 and 25"),
        ("The roots are $24$ and $25$.", "$24$ and $25$"),
        ("Possible values: 24, 25", "24, 25"),
        ("It is either 24 or 25.", "24 or 25"),
        ("So x = 24 or x = -25.", "x = 24 or x = -25"),
        ("In week 3, 25 birds came.", "25"),
        ("Candidates: 24, 25", None),
        ("So she has 25 options.", "25"),
        ("It leaves at 6:25 p.m.", "6:25 p.m"),
        ("It leaves at 6:25 PM, as planned.", "6:25 PM"),
        ("Therefore, B is the correct answer.", "B"),
        ("The machine fails after 25 hours.", "25 hours"),
        ("Assuming a leap year, there are 25 days left.", "25 days"),
        ("Let me check whether 25 works:", None),
        ("Is it 25?", None),
        ("25 is not the answer.", None),
        ("We have $x = 5 \\cdot 5 = 25", None),
        ("So it is 5 * 5 =", None),
        ("So x > 25.", "x > 25"),
        ("So the side is 2√25.", r"2\sqrt  25"),
        ("So it is 25x.", "25x"),
        ("So it is 4(x+1).", "4(x+1)"),
        ("So 5 * 5 = 25 birds fly.", "25"),
        ("The point is (3, 25).", "(3, 25)"),
        ("So it flew 25 km/h.", "25 km/h"),
        ("Total - 25", "25"),
        ("So it's -25.", "-25"),
    ],
)
def test_said_answer(text, answer):
    assert said_answer(text) == answer


@pytest.mark.parametrize(
    "text", ["**73**", "#### 73", "`73`", '"73"', '#### **"73"**', '"' * MAX_WRAPS + "73" + '"' * MAX_WRAPS]
)
def test_an_answer_is_bare_of_quotes_and_markdown(text):
    assert bare(text) == "73"


def test_layers_beyond_the_limit_stay():
    quotes = '"' * 1000
    assert bare(f"{quotes}73{quotes}") == f"{quotes[MAX_WRAPS:]}73{quotes[MAX_WRAPS:]}"
