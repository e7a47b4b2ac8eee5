"""Rows of contests and of collections, in the shapes in which their authors publish them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

import toolgym
from tests.tools.judge.code_rows import (
    CALLS,
    CHECKER,
    CODE_CONTESTS,
    CODEFORCES,
    DOUBLE,
    FUNCTION_CALLS,
    LCB,
    LEETCODE,
    MBPP_PLUS,
    NOTHING,
    PRIME,
    SYNTHETIC,
    TACO,
)
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest, problem_of, read_tests
from toolgym.tools.judge.cases import CheckerTest
from toolgym.tools.judge.rows import FORMATS
from toolgym.tools.judge.rows.cases_json import own_tests, write_test
from toolgym.tools.judge.rows.columns import UnusableRowError, check_columns, megabytes, seconds

GOLD = {
    "taco": (TACO, "taco", None, "print(0)"),
    "CodeContests": (CODE_CONTESTS, "codecontests", None, "print(8)"),
    "codeforces": (CODEFORCES, "codeforces", DOUBLE, "print(2)"),
    "SYNTHETIC-1": (SYNTHETIC, "synthetic-1", None, "print(2)"),
    "SYNTHETIC-1, calls": (FUNCTION_CALLS, "synthetic-1", None, "def up(word, times): return 'AA'"),
    "DeepCoder, primeintellect": (PRIME, "deepcoder", None, "print(2)"),
    "DeepCoder, lcbv5": (
        LCB,
        "deepcoder",
        "class Solution:\n    def pick(self, a, b): return a[b]",
        "def pick(a, b): 0",
    ),
    "LeetCodeDataset": (LEETCODE, "leetcode", None, "class Solution:\n    def addAll(self, head, value): return head"),
    "MBPP+": (MBPP_PLUS, "mbpp", None, "def halve(n): return {4: 2, 8: 4}[n]"),
}


def through_parquet(row):
    """Return a row as pandas reads it from a Parquet file that has more columns, which are empty in this row."""
    pyarrow = pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    del pandas
    other = {"more": {"tests": ["x"]}}
    return pyarrow.Table.from_pylist([{**row, "more": None}, other]).to_pandas().to_dict("records")[0]


@pytest.mark.parametrize("name", GOLD)
async def test_the_known_program_passes_and_a_wrong_one_does_not(judge, name):
    row, source, program, wrong = GOLD[name]
    problem = problem_of(row)
    assert problem.source == source
    assert problem.prompt.strip()
    for tests in (problem.hidden, own_tests(json.loads(json.dumps([write_test(test) for test in problem.hidden])))):
        verdicts = await judge().judge(program or problem.solution, tests)
        assert all(verdict.passed for verdict in verdicts), [verdict.detail for verdict in verdicts]
    assert not all(verdict.passed for verdict in await judge().judge(wrong, problem.hidden))


@pytest.mark.parametrize("name", GOLD)
def test_parquet_rows_are_the_same(name):
    row = GOLD[name][0]
    before, after = problem_of(row), problem_of(through_parquet(row))
    assert (after.prompt, after.hidden, after.visible, after.id) == (
        before.prompt,
        before.hidden,
        before.visible,
        before.id,
    )


class Recorded(Mapping):
    """A row that records which of its columns are read by name."""

    def __init__(self, row):
        self.row, self.seen = row, set()

    def __getitem__(self, name):
        self.seen.add(name)
        return self.row[name]

    def get(self, name, default=None):
        self.seen.add(name)
        return self.row.get(name, default)

    def __contains__(self, name):
        return name in self.row

    def __iter__(self):
        return iter(self.row)

    def __len__(self):
        return len(self.row)

    def items(self):
        return self.row.items()


@pytest.mark.parametrize("name", GOLD)
def test_readers_read_what_they_declare(name):
    row = GOLD[name][0]
    row_format = next(row_format for row_format in FORMATS.values() if row_format.fits(row))
    recorded = Recorded(row)
    row_format.read(recorded, "python")
    alternatives = {"query", "text", "content", "id", "uid"}  # read only if another column is missing
    assert row_format.uses & row.keys() - alternatives <= recorded.seen
    assert recorded.seen - row_format.uses <= row_format.labels
    assert not row_format.uses & row_format.labels


@pytest.mark.parametrize("name", GOLD)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("hidden_tests", ["assert f()"]),
        ("checker", "int main() {}"),
        ("graderCode", "x"),
        ("timeout", 3),
        ("cpu_limit", "1 second"),
        ("atol", 0.001),
        ("more", [{"stdin": "1", "stdout": "2"}]),
        ("more", json.dumps([{"input": "1", "output": "2"}])),
        ("more", "def test_it():\n    assert f() == 1\n"),
    ],
)
def test_a_column_that_may_hold_tests_or_limits_is_refused_by_name(name, column, value):
    row = {**GOLD[name][0], column: value}
    with pytest.raises(ConfigError, match=f"the column '{column}' of a row of .* is not read"):
        problem_of(row)
    assert problem_of(row, ignore=[column]).hidden == problem_of(GOLD[name][0]).hidden


@pytest.mark.parametrize("value", [None, "", [], {}, {"input": None, "output": None}, float("nan")])
def test_an_empty_column_is_not_refused(value):
    problem_of({**TACO, "hidden_tests": value, "checker": value})


@pytest.mark.parametrize("column", ["contest", "latest_edit", "popularity", "number_of_tests"])
def test_labels_of_any_name_are_kept(column):
    assert problem_of({**TACO, column: 3}).labels[column] == 3


def test_a_row_in_another_language_is_refused_unless_its_reader_follows_it():
    with pytest.raises(ConfigError, match="the column 'language' of a row of .* asks for programs in 'java'"):
        problem_of({**TACO, "language": "java"})
    problem_of({**TACO, "language": "Python 3"})
    info = json.loads(SYNTHETIC["verification_info"]) | {"language": "c++"}
    assert problem_of({**SYNTHETIC, "verification_info": info}).language == "cpp"


# ---------------------------------------------------------------------- limits


def test_limits_are_read():
    [first, *_] = problem_of(TACO).hidden
    assert (first.cpu_seconds, first.memory_mb) == (2.0, 256)
    [first, *_] = problem_of(CODE_CONTESTS).hidden
    assert (first.cpu_seconds, first.memory_mb) == (1.5, 245)
    [first, *_] = problem_of(CODEFORCES).hidden
    assert (first.cpu_seconds, first.memory_mb) == (2.0, 256)
    [first, second] = read_tests({"inputs": ["1", "2"], "outputs": ["1", "2"], "time_limit": 3})
    assert (first.cpu_seconds, second.cpu_seconds, first.memory_mb) == (3.0, 3.0, None)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, None), ("", None), ("None", None), (2, 2.0), (0.5, 0.5), ("1 second", 1.0), ("2.5 secs", 2.5),
        ("500 ms", 0.5), ("1 - 2.5 seconds", 2.5), ({"seconds": 1, "nanos": 500000000}, 1.5),
        ({"seconds": None, "nanos": None}, None), ({"seconds": 2, "nanos": None}, 2.0),
    ],
)  # fmt: skip
def test_limits_of_time(value, read):
    assert seconds("time_limit", value) == read


@pytest.mark.parametrize("value", ["soon", "2 parsecs", -1, True, [2], {"minutes": 2}, "1.2.3 seconds"])
def test_limits_that_cannot_be_read(value):
    with pytest.raises(ConfigError, match="time_limit"):
        seconds("time_limit", value)


def test_limits_of_memory():
    sizes = [megabytes("m", value) for value in (None, 256.0, "64 megabytes", "1 GB", "512 KB", "1048576 bytes")]
    assert sizes == [None, 256, 64, 1024, 1, 1]
    assert megabytes("m", 256 * 1024 * 1024, unit="bytes") == 256


# ---------------------------------------------------------------------- CodeContests


def test_code_contests():
    problem = problem_of(CODE_CONTESTS)
    assert [test.stdin for test in problem.hidden] == ["1\n", "4\n", "5\n", "6\n"]
    assert [test.stdin for test in problem.visible] == ["1\n"]
    assert problem.hidden[0].any_lines
    assert problem.hidden[0].ignore_case
    lists = {**CODE_CONTESTS, "private_tests": [{"input": "4\n", "output": "8\n"}]}
    assert problem_of(lists).hidden == problem.hidden
    in_files = problem_of({**CODE_CONTESTS, "input_file": "double.in", "output_file": "double.out"})
    assert (in_files.hidden[0].input_file, in_files.hidden[0].output_file) == ("double.in", "double.out")
    assert "`double.in`" in in_files.prompt
    assert "`double.out`" in in_files.prompt
    unlimited = problem_of({**CODE_CONTESTS, "time_limit": None, "memory_limit_bytes": 0})
    assert (unlimited.hidden[0].cpu_seconds, unlimited.hidden[0].memory_mb) == (None, None)


# ---------------------------------------------------------------------- open-r1/codeforces


def test_codeforces():
    problem = problem_of(CODEFORCES)
    assert problem.visible == problem.hidden[:1]
    assert "Time limit: 2 s" in problem.prompt
    assert "## Input\n\nA number." in problem.prompt
    checked = problem_of({**CODEFORCES, "generated_checker": CHECKER, "input_mode": "file"})
    [first, *_] = checked.hidden
    assert isinstance(first, CheckerTest)
    assert (first.checker, first.expected, first.protocol) == (CHECKER, "2\n", "printed")
    assert (first.input_file, first.output_file) == ("input.txt", "output.txt")
    words = {
        **CODEFORCES,
        "official_tests": [{"input": "1\r\n", "output": "YES\r\nno 3"}, {"input": "", "output": "A"}],
    }
    assert problem_of(words).hidden[0].stdin == "1\n"
    assert [test.ignore_case for test in problem_of(words).hidden] == [True, False]


GUESS = (
    "import sys\nprint(open('input.txt').read(), flush=True)\nsys.exit(int(input()) != int(open(sys.argv[3]).read()))\n"
)
INTERACTIVE = {**CODEFORCES, "interaction_format": "Ask the judge.", "interactor": GUESS, "executable": False}


async def test_an_interactive_problem_is_judged_by_an_interactor_of_ones_own():
    problem = problem_of(INTERACTIVE)
    assert [(test.stdin, test.expected, test.interactor) for test in problem.hidden] == [
        ("1\n", "2\n", GUESS), ("4\n", "8\n", GUESS), ("5\n", "10\n", GUESS)
    ]  # fmt: skip
    assert (problem.visible, problem.hidden[0].cpu_seconds) == ((), 2.0)
    assert "## Interaction\n\nAsk the judge." in problem.prompt
    assert "The program reads:\n\n1\n\nIt prints:\n\n2" in problem.prompt
    assert GUESS not in problem.prompt
    async with toolgym.make("CodeJudge-v0", tasks=[INTERACTIVE]) as env:
        for program, reward in (("print(2 * int(input()))", 1.0), ("print(int(input()))", 0.0)):
            await env.reset()
            assert (await env.step(f"```python\n{program}\n```")).reward == reward


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"interaction_format": ""}, "needs an 'interaction_format'"),
        ({"interactor": 3}, "'interactor' and 'interactor_language' must be texts"),
        ({"interactor_files": ["a"]}, "'interactor_files' must map names to texts"),
    ],
)
def test_an_interactor_that_cannot_be_used_is_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        problem_of({**INTERACTIVE, **changed})


def test_generated_tests_of_codeforces_are_used_or_asked_for():
    incomplete = {**CODEFORCES, "official_tests_complete": False, "generated_tests": 40}
    with pytest.raises(ConfigError, match="'generated_tests' says that 40 more"):
        problem_of(incomplete)
    joined = problem_of({**incomplete, "generated_tests": [{"input": "6\n", "output": "12\n"}]})
    assert [test.stdin for test in joined.hidden] == ["1\n", "4\n", "5\n", "6\n"]
    assert len(problem_of({**CODEFORCES, "generated_tests": 40}).hidden) == 3  # the official tests are complete


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**CODEFORCES, "interaction_format": "Ask the judge."}, "is interactive"),
        ({**CODEFORCES, "official_tests": [], "generated_tests": 0}, "has no tests"),
        ({**CODEFORCES, "executable": False}, "'executable' is false"),
        (
            {**CODE_CONTESTS, "public_tests": NOTHING, "private_tests": NOTHING, "generated_tests": NOTHING},
            "has no tests",
        ),
        ({**TACO, "input_output": ""}, "has no tests"),
        ({**TACO, "input_output": '{"inputs": [], "outputs": []}'}, "has no tests"),
        ({**SYNTHETIC, "task_type": "verifiable_math"}, "is not a programming task"),
        ({**SYNTHETIC, "verification_info": '{"language": "python", "test_cases": []}'}, "has no tests"),
        ({**PRIME, "tests": "[]"}, "has no tests"),
    ],
)
def test_rows_that_are_not_tasks(row, said):
    with pytest.raises(UnusableRowError, match=said):
        problem_of(row)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**CODEFORCES, "input_mode": "socket"}, "'input_mode' must be"),
        ({**CODEFORCES, "official_tests": [{"input": "1"}]}, "'official_tests' must hold texts"),
        ({**CODE_CONTESTS, "private_tests": {"input": ["1"], "output": []}}, "'private_tests' must hold texts"),
        ({**TACO, "time_limit": "soon"}, "time_limit must be a limit"),
        ({**SYNTHETIC, "verification_info": "no"}, "verification_info must be JSON"),
        ({**LEETCODE, "problem_description": "", "query": ""}, "needs the problem"),
        ({**LEETCODE, "test": "class TestIt(unittest.TestCase): pass"}, "'test' must define check"),
        ({**LEETCODE, "entry_point": "Solver().f", "input_output": []}, "'entry_point' must be the name of a function"),
        ({**MBPP_PLUS, "test_list": "assert f()"}, "'test_list' must be a list"),
    ],
)
def test_rows_that_cannot_be_read(row, said):
    with pytest.raises(ConfigError, match=said):
        problem_of(row)


def test_the_format_can_be_named():
    assert problem_of(TACO, format="apps").source == "taco"
    with pytest.raises(ConfigError, match="a row of MBPP needs 'test_list'"):
        problem_of(TACO, format="mbpp")
    with pytest.raises(UnknownNameError, match="did you mean 'codeforces'"):
        problem_of(TACO, format="codeforce")


# ---------------------------------------------------------------------- HumanEval+, MBPP+


def test_inputs_without_values_are_refused():
    row = {
        "task_id": "own/1", "prompt": "def f(n):\n    pass\n", "entry_point": "f", "canonical_solution": "    return n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n", "contract": "", "atol": 0,
    }  # fmt: skip
    assert len(problem_of(row).hidden) == 1
    with pytest.raises(ConfigError, match="the column 'plus_input' holds inputs without the values"):
        problem_of({**row, "plus_input": [[1], [2]]})


def test_all_tests_of_mbpp_plus_and_challenges_are_hidden_tests():
    problem = problem_of({**MBPP_PLUS, "challenge_test_list": ["assert halve(0) == 0"]})
    assert len(problem.hidden) == 4
    assert problem.hidden[-1].code == MBPP_PLUS["test"]
    assert "12" not in problem.prompt


# ---------------------------------------------------------------------- calls of functions


def test_kinds_of_tests():
    assert read_tests(json.dumps(CALLS)) == (
        FunctionTest("up", ("a", 2), "AA", close=True),
        FunctionTest("up", ("b", 1), "B", close=True),
    )
    mixed = read_tests([{"type": "stdin_stdout", "input": "1", "output": "2"}, CALLS[0]])
    assert [type(test) for test in mixed] == [StdioTest, FunctionTest]
    nameless = {"testtype": "functional", "input": "[1]\n2", "output": "[3]", "metadata": {"func_name": "f"}}
    assert read_tests([nameless]) == (FunctionTest("f", ([1], 2), [3]),)
    prime = {"fn_name": "f", "inputs": ["[1]\n2", '"a"\n3'], "outputs": ["[3]", '"b"']}  # as verl's rows have it
    assert read_tests(prime) == (
        FunctionTest("f", ([1], 2), [3], close=True),
        FunctionTest("f", ("a", 3), "b", close=True),
    )
    asserted = {"assert_case": ["assert f(1) == 2"], "inputs": [""], "outputs": [None]}
    assert read_tests(asserted) == (AssertTest("assert f(1) == 2"),)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([{"type": "function_call", "input": [1], "output": 2}], "needs a function's name"),
        ([{"type": "checker", "input": "1", "output": "2"}], "must be one of stdin"),
        ([{"type": "stdin", "testtype": "functional", "input": "1", "output": "2"}], "must be one of stdin"),
        ([{"type": "stdin", "input": "1"}], "needs 'input' and 'output'"),
        (
            [{"type": "stdin", "input": "1", "output": "2", "checker": "x"}],
            "the column 'checker' of a test is not read",
        ),
        (
            {"inputs": ["1"], "outputs": ["2"], "special_judge": "x"},
            "the column 'special_judge' of the tests is not read",
        ),
        ({"inputs": ["1"], "outputs": ["2"], "type": "function_call"}, "needs a function's name"),
        ({"inputs": [3], "outputs": [4], "fn_name": "f"}, "must be a list or a text"),
        ({"inputs": ["1"], "outputs": ["2"], "assert_case": ["assert f()"]}, "cannot have 'inputs' too"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "a.b"}, "'fn_name' must be the name"),
    ],
)
def test_tests_that_cannot_be_read(spec, said):
    with pytest.raises(ConfigError, match=said):
        read_tests(spec)


async def test_dictionaries_of_json_get_their_integer_keys_back(judge):
    spec = {"fn_name": "f", "inputs": [[{"1": 10, "-2": 20}, {"a": 1}]], "outputs": [{"1": 1, "-2": 2}]}
    program = "def f(d, other):\n    assert 'a' in other\n    return {key: d[key] // 10 for key in d if key + 1}"
    for tests in (
        read_tests(spec),
        own_tests(json.loads(json.dumps([write_test(test) for test in read_tests(spec)]))),
    ):
        [verdict] = await judge().judge(program, tests)
        assert verdict.passed, verdict.detail
    for keys in ({"01": 1}, {"1": 1, "x": 2}, {"1.5": 1}):
        tests = read_tests({"fn_name": "f", "inputs": [[keys]], "outputs": [1]})
        [verdict] = await judge().judge("def f(d):\n    return int(all(isinstance(key, str) for key in d))", tests)
        assert verdict.passed, (keys, verdict.detail)


async def test_trees_cross_between_the_processes(judge):
    prompt = (
        "from typing import *\nclass TreeNode:\n    def __init__(self, val=0, left=None, right=None):\n"
        "        self.val, self.left, self.right = val, left, right\n"
        "def tree_node(values):\n    nodes = [TreeNode(value) if value is not None else None for value in values]\n"
        "    rest = iter(nodes[1:])\n    for node in nodes:\n        if node:\n"
        "            node.left, node.right = next(rest, None), next(rest, None)\n"
        "    return nodes[0] if nodes else None\n"
    )
    row = {
        **LEETCODE, "prompt": prompt, "entry_point": "Solution().mirror",
        "test": (
            "def check(candidate):\n"
            "    root = tree_node([1, 2, 3, None, 4])\n"
            "    assert is_same_tree(candidate(root = root), tree_node([1, 3, 2, None, None, 4]))\n"
            "    assert is_same_tree(candidate(root = tree_node([])), tree_node([]))\n"
        ),
        "starter_code": "class Solution:\n    def mirror(self, root: TreeNode) -> TreeNode:\n        ",
    }  # fmt: skip
    right = (
        "class Solution:\n    def mirror(self, root):\n        if root:\n"
        "            root.left, root.right = self.mirror(root.right), self.mirror(root.left)\n        return root"
    )
    looped = "class Solution:\n    def mirror(self, root):\n        root.left = root\n        return root"
    [test] = problem_of(row).hidden
    assert (await judge().judge(right, [test]))[0].passed
    for wrong in (looped, right.replace("self.mirror(root.right), self.mirror(root.left)", "root.left, root.right")):
        assert not (await judge().judge(wrong, [test]))[0].passed


def test_declared_columns_have_no_overlap():
    for row_format in FORMATS.values():
        assert not row_format.uses & row_format.labels
        assert set(row_format.marks) <= row_format.uses
        check_columns({}, row_format)
