r"""Where a text marks its answer, and what an unmarked text says."""

from __future__ import annotations

import time

import pytest

from toolgym.tools.answers.marks import marked_answers, said_answer

CODE = "```python\n#### print the sum\nprint(19 + 6)\n```"


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"#### Final Answer" "\n\n" r"\boxed{25}", ["25"]),
        (r"#### Step 2: add 6" "\n19 + 6 = 25\n#### Result\n" r"$\boxed{25}$", ["25"]),
        (r"So \boxed{25}." "\n\n#### Check\n25 - 6 = 19", ["25"]),
        (rf"\boxed{{25}}{chr(10)}{CODE}", ["25"]),
        (f"#### 25\n{CODE}", ["25"]),
        ("#### 25\n```\n#### 26\n", ["25"]),
        ("##### Result\n25", []),
        ("#### Final Answer\n25", []),
        ("#### The sum is 25", ["The sum is 25"]),
        ("#### 24\n#### 25\n", ["25"]),
        ("#### **25**", ["25"]),
        ("#### `25`", ["25"]),
        ("<answer>#### 25</answer>", ["25"]),
        ("<answer>So it is \\boxed{25}</answer>", ["25"]),
        ("\\boxed{24} <answer>25</answer>", ["25"]),
        ("<answer>**25**</answer>", ["25"]),
        (r"\boxed{\textbf{25}}", [r"\textbf{25}"]),
        (r"\boxed{24} is wrong: \boxed{25}", ["25"]),
        (r"$x=\boxed{2}$ or $x=\boxed{9}$", ["2", "9"]),
        (r"\boxed{2}, \boxed{9} and \boxed{4}", ["2", "9", "4"]),
        ("(a) Adding gives \\boxed{2}.\n(b) So we get \\boxed{9}.", ["2", "9"]),
        ("(a) It is \\boxed{1}, no, \\boxed{2}.\n(b) So \\boxed{9}.", ["2", "9"]),
        ("Part 1: \\boxed{2}\nPart 2: \\boxed{9}", ["2", "9"]),
        (r"\boxed{25} as \boxed{} asks", ["25"]),
        (r"\boxed 7.", ["7"]),
        ("25", []),
    ],
)
def test_marked_answers(text, answers):
    assert marked_answers(text) == answers


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
    ],
)
def test_said_answer(text, answer):
    assert said_answer(text) == answer


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", "<answer>", "{", "}", "#### ", "#### a\n", "```\n####\n", r"\(", "$", "**", "answer is ", "(a) ", "9 ",
     r"\boxed{1}", "not ", "1", "1,", "<think>", r"\frac{1}{", "`", "\n", ". ", "-", "("],
)  # fmt: skip
def test_a_long_hostile_text_is_read_at_once(piece):
    texts = [piece * (size // len(piece)) for size in (1 << 18, 1 << 20)]
    times = []
    for text in texts:
        started = time.process_time()
        marked_answers(text)
        said_answer(text)
        times.append(time.process_time() - started)
    assert times[1] < 4 * times[0] + 0.25  # marks are looked for in the end of a text, whose size is the same
