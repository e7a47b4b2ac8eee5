"""Tests are altered so that they must fail, and still look like tests that somebody wrote."""

from __future__ import annotations

import random
import unittest

import pytest

from toolgym.envs.families.swe.altered.edits import Source, failing_edit

UNITTEST = {
    "an expected number": "self.assertEqual(add(2, 3), 5)",
    "an expected number, first": "self.assertEqual(5, add(2, 3), 'sum')",
    "an expected negative number": "self.assertEqual(add(2, -3), -1)",
    "an expected float": "self.assertEqual(add(0.5, 1), 1.5)",
    "an expected text": "self.assertEqual(add('ab c', ' d'), 'ab c d')",
    "an expected text in double quotes": 'self.assertEqual(add("a", "b"), "ab")',
    "an expected text with an escape": r"self.assertEqual(add('a\n', '\'b'), 'a\n\'b')",
    "an expected text without letters": "self.assertEqual(add('-', '>'), '->')",
    "an empty text": "self.assertEqual(add('', ''), '')",
    "expected bytes": "self.assertEqual(add(b'a', b'b'), b'ab')",
    "a text beyond ASCII": "self.assertEqual(add('ä', 'ö'), 'äö')",
    "an expected list": "self.assertListEqual(add([1], [2, 'x']), [1, 2, 'x'])",
    "an empty list": "self.assertEqual(add([], []), [])",
    "an expected dictionary": "self.assertDictEqual({'a': add(1, 1)}, {'a': 2})",
    "an empty dictionary": "self.assertEqual({}, {})",
    "an expected set": "self.assertEqual({add(1, 1), 3}, {2, 3})",
    "None": "self.assertEqual(None, print())",
    "an expected truth": "self.assertEqual(add(1, 1) == 2, True)",
    "a truth": "self.assertTrue(add(1, 1) == 2)",
    "a falsehood": "self.assertFalse(add(1, 1) == 3)",
    "identity": "self.assertIs(add, add)",
    "membership": "self.assertIn(add(1, 1), (1, 2))",
    "order": "self.assertGreater(add(1, 1), add(0, 1))",
    "nearness": "self.assertAlmostEqual(add(0.1, 0.2), 0.3)",
    "values that are both computed": "self.assertEqual(add(1, 2), add(2, 1))",
    "an error": "with self.assertRaises(TypeError):\n    add(1, 'x')",
    "an error of a call": "self.assertRaises(TypeError, add, 1, 'x')",
    "an error of any kind": "with self.assertRaises(Exception):\n    add(1, 'x')",
    "a loop": "for a, b in [(1, 2), (2, 3)]:\n    self.assertEqual(add(a, 1), b)",
    "a subtest": "with self.subTest('x'):\n    self.assertEqual(add(1, 1), 2)",
    "a block that may end early": "import contextlib\nwith contextlib.suppress(Exception):\n    self.assertEqual(1, 2)",
    "an early return": "if add(1, 1) == 2:\n    return\nself.assertEqual(add(1, 1), 2)",
    "a branch": "if add(1, 1) == 3:\n    self.assertTrue(False)",
    "an empty loop": "for a in []:\n    self.assertEqual(a, 1)",
    "a loop that is left": "for a in [1, 2]:\n    break\n    self.assertEqual(a, 1)",
    "a handler": "try:\n    self.assertEqual(add(1, 1), 3)\nexcept AssertionError:\n    pass",
    "nothing": "add(1, 1)",
    "only a docstring": '"""Nothing."""',
    "a plain assertion": "assert add(1, 1) == 2",
    "a plain assertion of a call": "assert callable(add)",
    "a plain assertion of the contrary": "assert not isinstance(add, int)",
    "a plain assertion of two things": "assert add(1, 1) == 2 and add(1, 2) == 3",
    "a chain": "assert 1 < add(1, 1) < 3",
    "the operator in a text": "assert add('==', '!=') != add('!=', '==')",
    "is not": "assert add(1, 1) is not None",
    "not in": "assert add(1, 1) not in (1, 3), 'not in it'",
    "over several lines": "self.assertEqual(\n    add(1,\n        1),\n    2,\n)",
    "several of one kind": "self.assertEqual(add(1, 1), 2)\nself.assertEqual(add(1, 2), 3)\nself.assertTrue(add(1, 1))",
}


def add(a, b):
    return a + b


def source_of(body):
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    return f"import unittest\n\n\nclass CalcTest(unittest.TestCase):\n    def test_it(self):  # a comment\n{indented}\n"


def outcome(text):
    names = {"add": add, "__name__": "tests"}
    exec(text, names)
    result = unittest.TestResult()
    names["CalcTest"]("test_it").run(result)
    return "passed" if result.wasSuccessful() else "failed"


def altered(body, seed):
    source = Source(source_of(body).encode())
    function = source.module.body[1].body[0]
    edit, hidden = failing_edit(source, function.body, random.Random(seed))
    return source.edited([edit]).decode(), hidden


@pytest.mark.parametrize("name", UNITTEST)
def test_an_altered_test_fails_where_the_test_passes(name):
    body = UNITTEST[name]
    assert outcome(source_of(body)) == "passed"
    for seed in range(30):
        text, _ = altered(body, seed)
        assert outcome(text) == "failed", text


VISIBLE = {
    "a block that may end early", "an early return", "a branch", "an empty loop", "a loop that is left", "a handler",
    "nothing", "only a docstring",
}  # fmt: skip


@pytest.mark.parametrize("name", UNITTEST)
def test_an_altered_test_differs_in_one_value_or_one_assertion(name):
    before = source_of(UNITTEST[name])
    for seed in range(10):
        text, hidden = altered(UNITTEST[name], seed)
        assert hidden == (name not in VISIBLE)
        if hidden:
            assert "AssertionError" not in text
            assert abs(len(text) - len(before)) < 20
            assert sum(a != b for a, b in zip(before.splitlines(), text.splitlines(), strict=True)) == 1


def test_alterations_are_random():
    assert len({altered(UNITTEST["an expected number"], seed)[0] for seed in range(50)}) == 4


@pytest.mark.parametrize("error", ["ValueError", "OSError", "KeyError", "MyError"])
def test_another_error_is_expected_that_the_error_is_not(error):
    body = f"with pytest.raises({error}, match='x'):\n    fails()"
    for seed in range(30):
        text, _ = altered(body, seed)
        assert "Exception" not in text
        assert f"raises({error}," not in text
