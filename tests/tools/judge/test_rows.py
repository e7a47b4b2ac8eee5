"""Rows of code data sets as their authors publish them, read and judged."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import asdict

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest, problem_of, read_tests
from toolgym.tools.judge.rows.livecodebench import packed_text

HUMANEVAL = {
    "task_id": "own/1",
    "prompt": (
        "import math\n\n\ndef area(side: float) -> float:\n    return side * side\n\n\n"
        'def total(sides):\n    """Sum of areas.\n    >>> total([1, 2])\n    5\n    >>> total([])\n    0\n    """\n'
    ),
    "entry_point": "total",
    "canonical_solution": "    return sum(map(area, sides))\n",
    "test": (
        "METADATA = {'author': 'own'}\n\n\ndef check(candidate):\n"
        "    assert math.isclose(candidate([0.1]), 0.01)\n"
        "    for n in range(5):\n        assert candidate([n]) == area(n)\n"
    ),
}
MBPP = {
    "text": "Write a function to find the depth of a chain of nodes.",
    "code": "def depth(node):\n    return 1 + depth(node.next) if node else 0",
    "task_id": 11,
    "test_setup_code": (
        "class Node:\n    def __init__(self, value):\n        self.value, self.next = value, None\n"
        "n = Node(1)\nn.next = Node(2)"
    ),
    "test_list": ["assert depth(n) == 2", "assert depth(Node(3)) == 1", "assert depth(None) == 0"],
    "challenge_test_list": [],
}  # fmt: skip
SANITISED = {
    "source_file": "own.json",
    "task_id": 12,
    "prompt": "Write a function to halve a number.",
    "code": "def half(n):\n    return n / 2",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(half(3), 1.5)", "assert half(0) == 0"],
}


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


STDIN = {
    "question_title": "Double",
    "question_content": "Print twice the number.",
    "platform": "own",
    "question_id": "own_a",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": "4\n", "output": "8\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
FUNCTIONAL = {
    **STDIN,
    "question_id": "3000",
    "starter_code": "class Solution:\n    def pick(self, items: List[int], at: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "[5, 6]\n1", "output": "6", "testtype": "functional"}]),
    "private_test_cases": packed([{"input": "[7]\n0", "output": "7", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "pick"}),
}
APPS = {
    "problem_id": 3,
    "question": "Print twice the number.",
    "solutions": json.dumps(["print(int(input()) * 2)"]),
    "input_output": json.dumps({"inputs": ["1\n", ["2", ""], "3\n"], "outputs": ["2\n", ["4"], "6"]}),
    "difficulty": "introductory",
    "starter_code": "",
}
APPS_CALLS = {
    **APPS,
    "solutions": json.dumps(["class Solution:\n    def up(self, word):\n        return word.upper()"]),
    "input_output": json.dumps({"fn_name": "up", "inputs": [["a"], ["b"]], "outputs": [["A"], ["B"]]}),
}

RIGHT = {
    "humaneval": (HUMANEVAL, None),
    "mbpp": (MBPP, None),
    "mbpp, sanitised": (SANITISED, None),
    "livecodebench, stdin": (STDIN, "print(int(input()) * 2)"),
    "livecodebench, functional": (
        FUNCTIONAL,
        "class Solution:\n    def pick(self, items: List[int], at: int) -> int:\n        return items[at]",
    ),
    "apps": (APPS, None),
    "apps, calls": (APPS_CALLS, None),
}


@pytest.mark.parametrize("name", RIGHT)
async def test_a_right_program_passes_and_a_wrong_one_does_not(judge, name):
    row, program = RIGHT[name]
    problem = problem_of(row)
    for tests in (
        problem.hidden,
        problem.visible or problem.hidden,
        read_tests(json.loads(json.dumps([asdict(one) for one in problem.hidden]))),
    ):
        verdicts = await judge().judge(program or problem.solution, tests)
        assert all(one.passed for one in verdicts), [one.detail for one in verdicts]
    wrong = (
        "def total(x): return 0\ndef depth(x): return 9\ndef half(x): return 0\n"
        "class Solution:\n    def pick(self, *a): return -1\n    def up(self, w): return w\nprint(0)"
    )
    assert not all(one.passed for one in await judge().judge(wrong, problem.hidden))


def test_humaneval():
    problem = problem_of(HUMANEVAL)
    assert (problem.id, problem.source) == ("own/1", "humaneval")
    assert [one.code for one in problem.visible] == ["assert total([1, 2]) == 5", "assert total([]) == 0"]
    [hidden] = problem.hidden
    assert hidden.entry_points == ("total",)
    assert "def area" in hidden.helpers
    assert "def total" not in hidden.helpers
    assert hidden.code.endswith("check(total)\n")
    assert "isclose" not in problem.prompt


def test_mbpp():
    problem = problem_of(MBPP)
    assert len(problem.hidden) == 3
    assert problem.visible == problem.hidden[:1]
    assert problem.hidden[0].entry_points == ("Node", "depth", "n")
    assert problem_of(SANITISED).hidden[0].setup.strip() == "import math"


def test_livecodebench():
    problem = problem_of(FUNCTIONAL)
    assert problem.visible == (FunctionTest("pick", ([5, 6], 1), 6),)
    assert problem.hidden == (*problem.visible, FunctionTest("pick", ([7], 0), 7))
    assert "class Solution" in problem.prompt
    plain = {**STDIN, "private_test_cases": json.dumps([{"input": "4", "output": "8", "testtype": "stdin"}])}
    assert problem_of(plain).hidden == (StdioTest("1\n", "2\n"), StdioTest("4", "8"))


def test_apps():
    problem = problem_of(APPS)
    assert problem.hidden == tuple(
        StdioTest(*texts, close=True) for texts in [("1\n", "2\n"), ("2\n", "4"), ("3\n", "6")]
    )
    assert problem.visible == problem.hidden[:2]
    assert problem_of(APPS_CALLS).hidden == (
        FunctionTest("up", ("a",), ["A"], ("A",), close=True),
        FunctionTest("up", ("b",), ["B"], ("B",), close=True),
    )
    lists = {**APPS, "input_output": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2, 3]]}}
    assert problem_of(lists).hidden[0].or_expected == ()  # a list, and not wrapped


DECIMALS = [("0.250", "0.25", True), ("0.3333333333", "0.33333333", None), ("10000000", "10000001", False)]


@pytest.mark.parametrize(("expected", "printed", "right"), DECIMALS)
async def test_numbers_are_compared_as_the_data_sets_own_judge_does(judge, expected, printed, right):
    apps = {"inputs": [""], "outputs": [expected]}
    live = [{"input": "", "output": expected, "testtype": "stdin"}]
    program = f"print({printed!r})"
    for spec, tolerance, passes in (
        (apps, None, right is not False),  # within 1e-5, as `numpy.allclose` in its harness
        (live, None, right is True),  # equal, as its `Decimal`s
        (apps, 0, right is True),
        (live, 1e-5, right is not False),
    ):
        [verdict] = await judge().judge(program, read_tests(spec, tolerance))
        assert verdict.passed is passes, (spec, tolerance)


def test_tests_of_a_ground_truth():
    assert read_tests(APPS["input_output"]) == problem_of(APPS).hidden
    assert read_tests(HUMANEVAL) == problem_of(HUMANEVAL).hidden
    assert read_tests('[{"input": "1", "output": "2", "testtype": "stdin"}]') == (StdioTest("1", "2"),)
    given = [asdict(AssertTest("assert f()")), asdict(FunctionTest("f", [1], None)), asdict(StdioTest("", "x"))]
    assert read_tests(given) == (AssertTest("assert f()"), FunctionTest("f", (1,), None), StdioTest("", "x"))
    united = {key: None for one in given for key in one}  # as Arrow reads them back
    assert read_tests([{**united, **given[2]}]) == (StdioTest("", "x"),)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"a": 1}, "needs the columns of one of these: 'entry_point'.*it has a"),
        ([], "must be an object"),
        ({"entry_point": "f", "prompt": ""}, "needs 'test' too"),
        ({"test_list": []}, "'test_list' must be a list"),
        ({"test_list": ["assert f()"]}, "needs 'text' too"),
        ({**STDIN, "private_test_cases": "AAAA"}, "base64 of zlib"),
        ({**STDIN, "public_test_cases": "{"}, "public_test_cases must be JSON"),
        ({**FUNCTIONAL, "metadata": "{}"}, "needs a function's name"),
        ({**APPS, "input_output": '{"inputs": ["1"], "outputs": []}'}, "of the same length"),
        ({**APPS, "input_output": "{"}, "input_output must be JSON"),
    ],
)
def test_rows_that_cannot_be_used(row, said):
    with pytest.raises(ConfigError, match=said):
        problem_of(row)


@pytest.mark.parametrize("spec", [None, 5, "[", [], [{"what": 1}], [{"stdin": "1"}], {"inputs": [], "outputs": []}])
def test_a_ground_truth_without_tests(spec):
    with pytest.raises(ConfigError):
        read_tests(spec)


class Harmful:
    """Pickled, it asks for a function of the reader's machine."""

    def __reduce__(self):
        return print, ("the pickle was run",)


@pytest.mark.parametrize("held", [Harmful(), ["a", "b"], {"a": 1}, 5, b"text"])
def test_a_pickle_that_holds_more_than_a_text_is_not_read(held, capsys):
    data = base64.b64encode(zlib.compress(pickle.dumps(held))).decode()
    with pytest.raises(ConfigError, match="must hold one text"):
        packed_text(data)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_texts_of_every_pickle_protocol_are_read(protocol):
    text = json.dumps([{"input": "ä€" * 200}])
    assert packed_text(base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()) == text
