r"""Where a text marks its answer."""

from __future__ import annotations

import time

import pytest

from toolgym.tools.answers.marks import marked_answers
from toolgym.tools.answers.statements import said_answer

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
        (r"$x = -\boxed{7}$", ["- 7"]),
        ("- $\\boxed{7}$", ["7"]),
        (r"10 - \boxed{7}", ["7"]),
        (r"It is not $\boxed{7}$.", ["not 7"]),
        (r"$\boxed{110}_2$", ["110_2"]),
        (r"$\boxed{4}\pi$", [r"4\pi"]),
        (r"$\boxed{x - 1}^2$", ["(x - 1)^2"]),
        (r"\boxed{24} is wrong. It should be 25.", []),
        ("\\boxed{24}\nWait, the answer is 25.", []),
        ("\\boxed{24}\nWait, let me check. Yes.", ["24"]),
        ("\\boxed{24}. That is wrong: \\boxed{25}", ["25"]),
        ("25", []),
    ],
)
def test_marked_answers(text, answers):
    assert marked_answers(text) == answers


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
