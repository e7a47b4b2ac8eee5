"""A program that has taken its end of the link to the tests, and answers what it likes. None of it scores."""

from __future__ import annotations

import io
import json
import struct
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolgym.tools.judge import AssertTest, FunctionTest, VerdictStatus
from toolgym.tools.judge.comparing import read_value
from toolgym.tools.judge.inside.kinds import prepare
from toolgym.tools.judge.inside.link import OPERATIONS, Link

SECRET = 98765432123
"""Stands in the tests alone."""

SAME = "def same(a, b):\n    return a == b"
TESTS = {
    "equality": AssertTest(f"assert f(20) == {SECRET}"),
    "sets, as MBPP has them": AssertTest(f"assert set(f(20)) == set([{SECRET}])"),
    "a loop over cases, as HumanEval+ has it": AssertTest(
        f"def check(candidate):\n    for i, (x, y) in enumerate(zip([1, 2], [{SECRET}, {SECRET}])):\n"
        "        assert candidate(x) == y\ncheck(f)",
        entry_points=("f",),
    ),
    "a difference": AssertTest(f"assert abs(f(20) - {SECRET}) < 1e-6"),
    "a module of the setup": AssertTest(f"assert math.isclose(f(20), {SECRET})", setup="import math"),
    "a module without an import": AssertTest(f"assert math.isclose(f(20), {SECRET})"),
    "a module by its short name": AssertTest(f"assert np.allclose(f(20), [{SECRET}, 1])"),
    "a helper": AssertTest(f"assert same(f(20), {SECRET})", helpers=SAME, entry_points=("f", "same")),
    "a function of the test": AssertTest(f"{SAME}\nassert same(f(20), {SECRET})"),
    "membership": AssertTest(f"assert {SECRET} in f(20)"),
    "sorted": AssertTest(f"assert sorted(f(20)) == [{SECRET}]"),
    "map": AssertTest(f"for got in map(f, [20, 21]):\n    assert got == {SECRET}"),
    "all": AssertTest(f"assert all(map(lambda n: f(n) == {SECRET}, [20, 21]))"),
    "a list that is changed": AssertTest(f"x = [3]\nf(x)\nassert x == [{SECRET}]"),
    "an exception first": AssertTest(
        f"try:\n    f(-1)\nexcept Exception:\n    pass\nelse:\n    assert f(20) == {SECRET}\nassert f(21) == {SECRET}"
    ),
    "a callback": AssertTest(f"assert f(lambda n: n * {SECRET}) == {SECRET * 5}"),
    "an attribute": AssertTest(f"assert f(20).value == {SECRET}"),
    "a type": AssertTest(f"assert isinstance(f(20), int) and f(20) == {SECRET}"),
    "the value of a function": FunctionTest("f", [20], SECRET),
    "the value of a function, by and by": FunctionTest("f", [20], SECRET, tolerance=0.5),
}

TAKE = """
import gc
[link] = [one for one in gc.get_objects() if type(one).__name__ == 'Link']
send = link._send
class Liar:
    def __call__(self, *args, **kwargs): return True
    def __getattr__(self, name): return Liar()
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __len__(self): return 1
    def __iter__(self): return iter([])
    def __contains__(self, item): return True
    def __getitem__(self, key): return True
def f(*args): return Liar()
def answers(change):
    def forged(message):
        if message[0] == 'answer': message[-2] = change(message[-2])
        send(message)
    link._send = forged
def also(**names):
    def change(value):
        if not (isinstance(value, dict) and 'dict' in value): return value
        return {'dict': [*value['dict'], *([name, link.encode(one)] for name, one in names.items())]}
    answers(change)
def always(value):
    answers(lambda old: value if old != {'dict': []} and not (isinstance(old, dict) and 'dict' in old) else old)
"""

FORGED = {
    "builtins that were not asked for": (
        "also(**{name: lambda *a, **k: [] for name in ('zip', 'enumerate', 'map', 'sorted')}, "
        "set=lambda *a: 1, abs=lambda x: 0.0, all=lambda x: True, isinstance=lambda *a: True)"
    ),
    "modules that were not asked for": "also(math=Liar(), np=Liar(), numpy=Liar(), decimal=Liar())",
    "helpers that were not asked for": "also(same=lambda *a: True, check=lambda *a: True)",
    "modules and helpers of its own": (
        "math = np = Liar()\nmath.isclose = np.allclose = lambda *a, **k: True\ndef same(a, b): return True\n"
        "def check(candidate): pass"
    ),
    "names of Python's own": (
        "also(__builtins__={'AssertionError': 1}, __name__='x', __import__=lambda *a: None, _got=1, _expected=1)"
    ),
    "the same name twice": "also(f=3)",
    "a list of names": "always([1, 2])",
    "the builtins of another module": "also(AssertionError=ValueError, Exception=Liar(), BaseException=Liar())",
    "a program that serves other things": (
        "class S(dict):\n    def __ior__(self, other):\n        dict.update(self, other); self['find'] = liar\n"
        "        return self\n    __or__ = __ior__\n    def __getitem__(self, name):\n"
        "        return liar if name == 'find' else dict.__getitem__(self, name)\n"
        "liar = lambda names: {**{name: Liar() for name in names}, 'zip': lambda *a: [], 'set': lambda *a: 1, "
        "'abs': lambda x: 0.0, 'enumerate': lambda *a: []}\n"
        "link._serves = S(link._serves)"
    ),
    "answers before they are asked for": "for at in range(40): send(['answer', at, True, []])",
    "answers of the old form": "for at in range(40): send(['answer', True, []])",
    "answers to other questions": (
        "def forged(message):\n    if message[0] == 'answer': message[1] = message[1] - 1\n    send(message)\n"
        "link._send = forged"
    ),
    "each answer twice": "link._send = lambda message: (send(message), send(message))",
    "answers from a thread": (
        "import threading, time\ndef flood():\n    while True:\n        send(['answer', 4, True, []])\n"
        "threading.Thread(target=flood, daemon=True).start()\ntime.sleep(0.05)"
    ),
    "an answer from a process that it leaves behind": (
        "import os, time\ndef f(*args):\n    if os.fork():\n        os._exit(0)\n    time.sleep(0.05)\n    return True"
    ),
    "an end of the loop": "def f(*args): raise StopIteration",
    "an end of the loop of its own": "class End(StopIteration): pass\ndef f(*args): raise End",
    "an end of the generator": "def f(*args): raise GeneratorExit",
    "an error that is caught, and its end": "import os\ndef f(*args): os._exit(0)",
    "errors of the judge's names": (
        "class NotJudgeableError(BaseException): pass\ndef f(*args): raise NotJudgeableError('let me off')"
    ),
    "classes of the judge": (
        "def forged(message):\n    if message[0] == 'answer' and message[1] > 3:\n"
        "        base = ['class', [None, 'builtins', 'BaseException', None]]\n"
        "        kind = {'class': [7, 'toolgym.tools.judge.inside.link', 'NotJudgeableError', {base[0]: base[1]}]}\n"
        "        message = ['raised', message[1], {'error': [kind, ['let me off'], None]}]\n    send(message)\n"
        "link._send = forged"
    ),
    "errors that are none": "link._send = lambda message: send(['raised', message[1], 5])",
    "the base of all errors": (
        "kind = {'class': [None, 'builtins', 'BaseException', None]}\n"
        "link._send = lambda message: send(['raised', message[1], {'error': [kind, [], None]}])"
    ),
    "modules": "always({'module': 'unittest.mock'})",
    "an object of the tests": "always({'own': 0})",
    "a class that agrees with all": "always({'class': [None, 'unittest.mock', 'MagicMock', None]})",
    "a plain class": "always({'class': [None, 'builtins', 'object', None]})",
    "the memory of the tests": (
        "class Memory(Liar):\n    __array_interface__ = {'data': (id(link), True), 'shape': (2,), 'typestr': '<f8', "
        "'version': 3}\n    def __getattr__(self, name): return [1.0]\ndef f(*args): return Memory()"
    ),
    "objects in an array": "always({'array': ['O', [1]]})",
    "an array of other fields": "always({'array': ['i4,i4', [1]]})",
    "an empty array": "always({'array': ['<f8', []]})",
    "an array that is no number": "always({'array': ['<f8', [float('nan')] * 2]})",
    "numbers that are none": "always(float('nan'))",
    "a tuple with odd fields": "always({'named': ['T', ['__eq__', '__class__', 'value', 'value'], [1, 2, 3, 4]]})",
    "a tuple of odd code": "always({'named': ['T(tuple): pass\\nimport os\\nclass U', ['value'], [1]]})",
    "a table of odd types": "always({'Series': ['category', None, {'Index': ['int64', [None], [1]]}, [1]]})",
    "a table of code": "always({'Series': ['__import__(\"os\")', None, {'Index': ['int64', [None], [1]]}, [1]]})",
    "changes of what it was not given": (
        "def forged(message):\n    if message[0] == 'answer': message[-1] = [[-1, []], [9, []], [0, {'dict': []}]]\n"
        "    send(message)\nlink._send = forged"
    ),
    "arguments that become something else": (
        "def forged(message):\n    if message[0] == 'answer' and message[-1]: message[-1] = [[0, 5]]\n"
        "    send(message)\nlink._send = forged\ndef f(x):\n    if isinstance(x, list): x.append(1)\n    return 1"
    ),
    "questions instead of answers": (
        "def f(*args):\n    for name in ('find', 'getattr', 'str', 'begin', 'call', 'exec', '__class__'):\n"
        "        try: link.ask(name, args[0] if args else 1, '__globals__')\n        except Exception: pass\n"
        "    return True"
    ),
    "questions without an end": "def f(g, *args):\n    return f(g, g(1)) if callable(g) else True",
    "what is deeply nested": "value = 1\nfor _ in range(5000): value = [value]\nalways(value)",
    "what is nested, but not too deeply": "value = 1\nfor _ in range(470): value = [value]\nalways(value)",
    "a key that is nested": "always({'dict': [[{'tuple': [{'tuple': [{'tuple': [1]}]}]}, 1]]})",
    "very large numbers": "always(10 ** 4200)",
    "half a character": "always('\\ud800')\ndef f(*args): raise ValueError('\\ud800')",
    "what is no message": "link._writer.write(b'\\x05\\0\\0\\0[1,2]'); link._writer.flush()",
    "what is no JSON": "link._writer.write(b'\\x05\\0\\0\\0hello'); link._writer.flush()",
    "a message that does not end": (
        "import os\nlink._writer.write(b'\\xff\\0\\0\\0['); link._writer.flush(); os._exit(0)"
    ),
    "a huge reply": "always([True] * 300_000)",
    "values of many kinds": "always({'own': {'ref': [0, 'x']}, 'ref': [0, 'x']})",
    "a reference of an odd kind": "always({'ref': ['x' * 9, None]})",
    "references that are all the same": "always({'ref': [0, 'int']})",
}  # fmt: skip


IN_A_SANDBOX = [
    name for name in TESTS if name not in ("sorted", "all", "an attribute", "a type", "a function of the test")
]
"""The others are for the fuzz alone, which is faster."""


@pytest.mark.parametrize("attack", FORGED)
async def test_no_forged_answer_scores(judge, attack):
    names = IN_A_SANDBOX[:3] if "Series" in FORGED[attack] else IN_A_SANDBOX  # pandas takes a second to import
    tests = [TESTS[name] for name in names]
    verdicts = await judge(timeout=10.0, stop_at_failure=False).judge(TAKE + FORGED[attack], tests)
    assert not [name for name, one in zip(names, verdicts, strict=True) if one.passed]
    assert {one.status for one in verdicts} <= {"wrong", "error", "limit", "timeout"}  # and none is let off
    assert all(one.detail.isascii() or one.detail.encode() for one in verdicts)


async def test_the_tests_can_be_passed(judge):
    program = f"""
class Number(int):
    value = {SECRET}
class Box(list):
    value = {SECRET}
def f(x):
    if callable(x): return x(5)
    if isinstance(x, list): x[:] = [{SECRET}]
    if x == -1: raise ValueError
    return {SECRET}
"""
    own = {
        "sets, as MBPP has them": f"def f(x): return [{SECRET}]",
        "a module by its short name": f"def f(x): return [{SECRET}, 1]",
        "membership": f"def f(x): return [{SECRET}]",
        "sorted": f"def f(x): return [{SECRET}]",
        "an attribute": f"class Box:\n    value = {SECRET}\ndef f(x): return Box()",
    }
    for name, test in TESTS.items():
        [verdict] = await judge().judge(own.get(name, program), [test])
        assert verdict.passed, (name, verdict.detail)


# ---------------------------------------------------------------------- any bytes at all

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.floats(), st.text(max_size=5),
    st.sampled_from(["f", "set", "abs", "math", "same", "zip", "ValueError", "StopIteration", "builtins", "<f8", "O"]),
)  # fmt: skip
KINDS = [
    "own", "ref", "tuple", "named", "frozenset", "set", "deque", "dict", "bytes", "bytearray", "complex", "range",
    "array", "class", "error", "datetime", "date", "time", "timedelta", "Decimal", "Fraction", "module",
]  # fmt: skip
VALUES = st.recursive(
    ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KINDS), st.one_of(inner, st.lists(inner, max_size=4)), min_size=1, max_size=2),
        st.builds(lambda pairs: {"dict": pairs}, st.lists(st.tuples(inner, inner), max_size=3)),
    ),
    max_leaves=8,
)
REFS = st.builds(lambda id, name: {"ref": [id, name]}, st.integers(0, 4), st.just("function"))
FOUND = st.builds(lambda pairs: {"dict": pairs}, st.lists(st.tuples(ODD, REFS | VALUES), max_size=4))
FUNCTION = st.builds(lambda ref: {"dict": [["f", ref]]}, REFS)
REPLIES = st.one_of(
    st.tuples(st.just("answer"), VALUES | REFS, st.just([]) | VALUES),
    st.tuples(st.just("raised"), VALUES),
    st.tuples(st.just("ask"), st.sampled_from(["call", "find", "getattr"]), st.lists(REFS | VALUES, max_size=3)),
    VALUES.map(lambda value: (value,)),
)


class Hostile(io.BytesIO):
    """Answers the numbered questions with what it was given, then ends."""

    def __init__(self, replies):
        super().__init__()
        self.left, self.number = list(replies), 0
        self.seen = []

    def write(self, data):
        message = json.loads(data[4:])
        if message[0] == "ask":
            self.number = message[1]
            self.seen.append(data)
        return len(data)

    def read(self, size=-1):
        if self.tell() == len(self.getvalue()):
            if not self.left:
                return b""
            kind, *rest = self.left.pop(0)
            message = [kind, self.number, *rest, *([{}] if kind == "ask" else [])] if isinstance(kind, str) else [kind]
            data = json.dumps(message).encode()
            self.seek(0)
            self.truncate()
            super().write(struct.pack("<I", len(data)) + data)
            self.seek(0)
        return super().read(size)


def task_of(test):
    limits = {"seconds": 60.0, "idle": 60.0, "wall": 60.0, "output_bytes": 1 << 20}
    if isinstance(test, FunctionTest):
        return {"kind": "function", "function": test.function, "args": list(test.args), **limits}
    source = {"setup": test.setup, "helpers": test.helpers, "code": test.code}
    return {"kind": "assert", **source, "entry_points": list(test.entry_points), **limits}


@settings(max_examples=9 * settings.default.max_examples, deadline=None)
@example("the value of a function", {"dict": [({"dict": []}, None)]}, [])
@example("the value of a function", {"dict": [([{"dict": []}], None)]}, [])
@given(
    st.sampled_from(sorted(TESTS)),
    st.just({"dict": []}) | FUNCTION | FOUND | VALUES,
    st.lists(REPLIES, max_size=8),
)
def test_no_bytes_pass(name, found, replies):
    hostile = Hostile([("answer", found, []), *replies])
    loader = SimpleNamespace(
        link=lambda watch: Link(hostile, hostile, {"call": OPERATIONS["call"]}, False),
        reply=lambda watch, output_bytes: json.dumps({"value": found}).encode(),
    )
    report = prepare(task_of(TESTS[name])).outcome_of(loader, None)
    json.dumps(report)
    assert report["status"] in ("wrong", "error", "value"), report
    if report["status"] == "value":
        assert read_value(report["value"]) != SECRET
    if name not in ("a callback", "membership"):  # what is expected is never sent
        assert not any(str(SECRET).encode() in data for data in hostile.seen)


def test_the_statuses_of_a_verdict_are_those_of_a_report():
    assert {"wrong", "error", "passed", "not_judgeable"} <= {one.value for one in VerdictStatus}
