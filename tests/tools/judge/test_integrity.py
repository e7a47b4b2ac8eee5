"""What a program may try in order to be accepted without solving its task. None of it scores."""

from __future__ import annotations

import numpy
import pytest

from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest, VerdictStatus
from toolgym.tools.judge.inside.emptiness import EmptyError, guard_numpy

SECRET = "98765432123"
"""Stands in the tests alone."""

TEST = AssertTest(f"assert f(20) == {SECRET}\nassert abs(f(21) - {SECRET}) < 1\nassert f(22) in [{SECRET}]")

LIAR = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __gt__(self, other): return True
    def __sub__(self, other): return self
    def __rsub__(self, other): return self
    def __abs__(self): return 0
    def __hash__(self): return 0
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __getattr__(self, name): return Liar()
    def __call__(self, *args): return Liar()
    def __iter__(self): return iter([Liar()])
"""

ATTACKS = {
    "exits with 0": "import sys; sys.exit(0)",
    "exits with 0 when it is called": "import sys\ndef f(n): sys.exit(0)",
    "ends its process": "import os; os._exit(0)",
    "ends its process when it is called": "import os\ndef f(n): os._exit(0)",
    "kills the process of the tests": "import os, signal\ndef f(n): os.kill(os.getppid(), signal.SIGTERM)",
    "prints what a judge might want": (
        "import sys, os\ndef f(n):\n    print('{\"status\": \"passed\"}'); print('OK', 'passed', file=sys.stderr)\n"
        '    for fd in range(64):\n        try: os.write(fd, b\'\\n{"status": "passed"}\\n\')\n'
        "        except OSError: pass"
    ),
    "returns an object that equals everything": LIAR + "def f(n): return Liar()",
    "is such an object": LIAR + "f = Liar()",
    "returns a number that equals everything": (
        "class One(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "    def __sub__(self, other): return 0\n    def __rsub__(self, other): return 0\ndef f(n): return One(1)"
    ),
    "returns a list that equals everything": (
        "class Any(list):\n    def __eq__(self, other): return True\ndef f(n): return Any()"
    ),
    "replaces builtins": (
        "import builtins\nabs = builtins.abs = lambda x: 0\nbuiltins.isinstance = lambda *a: True\n"
        "class AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError\ndef f(n): return 1"
    ),
    "replaces the driver's modules": (
        "import json, struct, sys, os\njson.dumps = lambda *a, **k: '[\"answer\", null, []]'\n"
        "sys.modules['__main__'].__dict__.clear()\ndef f(n): return 1"
    ),
    "runs at exit": "import atexit\natexit.register(lambda: print('passed'))\ndef f(n): return 1",
    "looks for numbers in frames and objects": (
        "import gc, sys, inspect\n"
        "def texts(x):\n    try: return repr(x)\n    except Exception: return ''\n"
        f"NEEDLE = {SECRET[:5]!r} + {SECRET[5:]!r}\n"
        "def f(n):\n"
        "    frame, seen = sys._getframe(), []\n"
        "    while frame:\n        seen += [frame.f_locals, frame.f_globals]; frame = frame.f_back\n"
        "    seen += gc.get_objects() + [o for o in gc.get_referrers(*seen[:50])] + inspect.stack()\n"
        "    for x in seen:\n"
        "        if NEEDLE in texts(x) and 'NEEDLE' not in texts(x): return int(NEEDLE)\n"
    ),
    "looks for the tests in files": (
        "import os, re\n"
        f"NEEDLE = {SECRET[:5]!r} + {SECRET[5:]!r}\n"
        "def f(n):\n"
        "    places = [os.path.join(at, name) for top in ('.', '/tmp', '/dev/shm') for at, _, names in os.walk(top)\n"
        "              for name in names]\n"
        "    places += [f'/proc/{who}/{name}' for who in ('self', os.getpid(), os.getppid(), 1, 2)\n"
        "               for name in ('cmdline', 'environ', 'fd/0', 'fd/1', 'fd/3', 'stat')]\n"
        "    for place in places:\n"
        "        try:\n            fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK)\n"
        "            if NEEDLE in os.read(fd, 1 << 20).decode(errors='replace'): return int(NEEDLE)\n"
        "        except OSError: pass\n"
    ),
    "reads standard input and what is open": (
        "import os, sys\n"
        f"NEEDLE = ({SECRET[:5]!r} + {SECRET[5:]!r}).encode()\n"
        "os.set_blocking(0, False)\n"
        "def f(n):\n    found = sys.stdin.read().encode()\n"
        "    if NEEDLE in found: return int(NEEDLE)\n"
    ),
    "reads the memory of the tests' process": (
        "import os, re\n"
        "def needles(who):\n"
        "    with open(f'/proc/{who}/mem', 'rb') as memory, open(f'/proc/{who}/maps') as maps:\n"
        "        for line in maps:\n"
        "            low, high = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "            try:\n                memory.seek(low)\n                data = memory.read(high - low)\n"
        "            except (OSError, OverflowError, ValueError): continue\n"
        f"            yield from re.findall({SECRET[:3].encode()!r} + rb'\\d' * {len(SECRET) - 3}, data)\n"
        "def f(n):\n"
        "    for who in range(1, 99):\n"
        "        try:\n            for needle in needles(who): return int(needle)\n"
        "        except OSError: pass\n"
    ),
    "opens the output of the tests' process": (
        "import os\ndef f(n):\n"
        "    with open(f'/proc/{os.getppid()}/fd/1', 'w') as out: out.write('passed')\n    return 1"
    ),
    "asks the tests' process for its objects": (
        "import gc\n"
        "def f(n):\n"
        "    [link] = [o for o in gc.get_objects() if type(o).__name__ == 'Link']\n"
        "    for at in range(5):\n"
        "        for name in ('getattr', 'call', 'find', 'str'):\n"
        "            try: return link.ask(name, type('R', (), {})(), '__globals__')\n"
        "            except Exception: pass\n"
    ),
    "sends answers that were not asked for": (
        "import gc\n"
        "def f(n):\n"
        "    [link] = [o for o in gc.get_objects() if type(o).__name__ == 'Link']\n"
        "    for _ in range(9): link._send(['answer', True, []])\n    return True"
    ),
    "plants modules for the tests to import": (
        "for name in ('math', 'numbers', 'fractions', 'decimal', 'numpy'):\n"
        "    open(name + '.py', 'w').write('def isclose(*a): return True\\nprint(\"passed\")')\n"
        "import os\nos.makedirs('json', exist_ok=True)\nopen('json/__init__.py', 'w').write('dumps = str')\n"
        "def f(n): return 1"
    ),
    "replaces operators": (
        "import operator, math\noperator.eq = operator.lt = operator.contains = lambda a, b: True\n"
        "math.isclose = lambda *a, **k: True\ndef f(n): return 1"
    ),
    "plants modules where its user has them": (
        "import site, os\nplace = site.getusersitepackages()\nos.makedirs(place, exist_ok=True)\n"
        "for name in ('sitecustomize', 'usercustomize', 'math'):\n"
        "    open(f'{place}/{name}.py', 'w').write('import os; os._exit(0)')\ndef f(n): return 1"
    ),
    "returns what stands for another value": (
        "def f(n): return {'other': 'x'} if n == 20 else {'dict': [['ref', [0, 'int']]], 'status': 'passed'}"
    ),
    "looks for the tests in its own memory": (
        "import base64, re, zlib\n"
        f"NEEDLE = ({SECRET[:5]!r} + {SECRET[5:]!r}).encode()\n"
        "def f(n):\n"
        "    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:\n"
        "        for line in maps:\n"
        "            low, high = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "            if ' rw' not in line or high - low > 1 << 26: continue\n"
        "            try:\n                memory.seek(low); data = memory.read(high - low)\n"
        "            except (OSError, OverflowError, ValueError): continue\n"
        "            for packed in re.findall(rb'eAE[A-Za-z0-9+/]{40,}={0,2}', data):\n"
        "                try:\n                    text = zlib.decompress(base64.b64decode(packed))\n"
        "                    if NEEDLE in text: return int(NEEDLE)\n"
        "                except Exception: pass\n"
    ),
    "returns modules and functions of the standard library": "import unittest.mock\nf = unittest.mock.ANY",
    "returns an array that equals in every place": "import numpy\ndef f(n): return numpy.array([])",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_assertions_does_not_score(judge, attack):
    [verdict] = await judge(timeout=10.0).judge(ATTACKS[attack], [TEST])
    assert not verdict.passed
    assert verdict.status is not VerdictStatus.LIMIT  # it was carried out


@pytest.mark.parametrize(
    "attack", ["exits with 0", "ends its process", "is such an object", "returns a number that equals everything"]
)
async def test_the_attack_would_succeed_where_program_and_tests_share_an_interpreter(judge, attack):
    assert (await judge().sandbox.run(f"{ATTACKS[attack]}\n{TEST.code}")).ok


async def test_the_test_can_be_passed(judge):
    [verdict] = await judge().judge(f"def f(n): return {SECRET}", [TEST])
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_a_function_test_does_not_score(judge, attack):
    [verdict] = await judge(timeout=10.0).judge(ATTACKS[attack], [FunctionTest("f", [20], int(SECRET))])
    assert not verdict.passed


CLOSE = """import numpy as np
def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and isinstance(exp, float): atol = 1e-6
    if not exact_match and atol != 0: assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else: assert exact_match
def check(candidate):
    for x, y in zip([[3.5], [2.25]], [0.5, 0.25]): assertion(candidate(*x), y, 0)
check(f)
"""
"""As HumanEval+ compares numbers."""


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def f(x): return x % 1", True),
        ("import numpy\ndef f(x): return numpy.float64(x % 1 + 1e-9)", True),
        ("def f(x): return []", False),
        ("def f(x): return [[]]", False),
        ("def f(x): return set()", False),
        ("import numpy\ndef f(x): return numpy.array([])", False),
        (f"{LIAR}\n    size = 1\n    def __len__(self): return 0\ndef f(x): return Liar()", False),
    ],
)
async def test_no_emptiness_is_close_to_a_number(judge, program, passes):
    [verdict] = await judge().judge(program, [AssertTest(CLOSE, entry_points=("f",))])
    assert verdict.passed is passes, verdict.detail


def test_only_calls_from_the_tests_are_kept_from_empty_arrays():
    guard_numpy("numpy")
    assert numpy.isclose(numpy.zeros((0, 1)), numpy.ones((1, 5))).shape == (0, 5)  # as matplotlib does, to place ticks
    with pytest.raises(EmptyError, match="one value has 0 elements, and the other has 1"):
        exec(compile("numpy.isclose(numpy.zeros(0), [1])", "<tests>", "exec"), {"numpy": numpy})


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed')",
        "import os\nfor at, _, names in os.walk('.'):\n    print(names)",
        "import sys; print(sys.stdin.read())",
    ],
)
async def test_an_attack_on_output_does_not_score(judge, program):
    [verdict] = await judge().judge(program, [StdioTest("20\n", SECRET)])
    assert not verdict.passed


async def test_helpers_of_the_tests_are_not_the_programs_to_replace(judge):
    test = AssertTest("assert same(f(1), 2)", helpers="def same(a, b): return a == b", entry_points=("f",))
    [verdict] = await judge().judge("def same(a, b): return True\ndef f(n): return 7", [test])
    assert verdict.status is VerdictStatus.WRONG
