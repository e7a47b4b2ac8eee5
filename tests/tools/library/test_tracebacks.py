"""`collapse_errors`: the program's frames stay, and frames of libraries and repetitions become one line."""

import subprocess
import sys
import time

import pytest

from toolgym.tools.library.tracebacks import collapse_errors, collapse_repeated

LIBRARY = '  File "/usr/lib/python3.12/site-packages/pandas/core/frame.py", line 1, in get\n    return self.x\n'
CYTHON = '  File "pandas/_libs/index.pyx", line 201, in pandas._libs.index.IndexEngine.get_loc\n'
OTHER = '  File "/usr/lib/python3.12/json/decoder.py", line 9, in decode\n    raise\n'
OWN = '  File "<cell 2>", line 3, in load\n    table["x"]  # own\n    ~~~~~^^^^^\n'
HEADER = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{HEADER}{OWN}{LIBRARY * 14}KeyError: 1", f"{HEADER}{OWN}  ... 14 frames in pandas ...\nKeyError: 1"),
        (f"{HEADER}{OWN}{OTHER}KeyError: 1", f"{HEADER}{OWN}  ... 1 frame in json ...\nKeyError: 1"),
        (f"{HEADER}{LIBRARY}{CYTHON}KeyError: 1", f"{HEADER}  ... 1 frame in pandas ...\n{CYTHON}KeyError: 1"),
        (f"{HEADER}{LIBRARY}{OTHER}{OWN}E", f"{HEADER}  ... 2 frames in pandas, json ...\n{OWN}E"),
        (f"{HEADER}{OWN}  [Previous line repeated 995 more times]\nE", f"{HEADER}{OWN}... [repeated 995 times] ...\nE"),
        (
            f"{HEADER}{(OWN + OTHER) * 300}E",
            f"{HEADER}{OWN}  ... 1 frame in json ...\n... [the last 2 frames repeated 299 times] ...\nE",
        ),
        ("no font\n" * 179 + "last", "no font\n... [repeated 178 times] ...\nlast"),
        ("a\nb\na\nb\n", "a\nb\na\nb\n"),
        ("one\ntwo\nthree", "one\ntwo\nthree"),
        (
            'Fatal Python error: Aborted\n\nCurrent thread 0x00007f01 (most recent call first):\n'
            '  File "<cell 1>", line 2 in <module>\n'
            '  File "/x/toolgym/tools/sandbox/local/child/notebook.py", line 9 in run\n'
            "\nExtension modules: numpy.random (total: 1)",
            'Fatal Python error: Aborted\n\n  File "<cell 1>", line 2 in <module>\n',
        ),
    ],
)  # fmt: skip
def test_errors_are_collapsed(text, shown):
    assert collapse_errors(text) == shown


def test_error_of_each_real_traceback_keeps_its_own_lines():
    program = (
        "import json\n"
        "def parse(text):\n    return json.loads(text)  # inner\n"
        "def outer():\n    try:\n        parse('{')  # first\n"
        "    except ValueError as error:\n        raise RuntimeError('again') from error  # second\n"
        "outer()  # start\n"
    )
    done = subprocess.run([sys.executable, "-c", f"exec(compile({program!r}, 'main.py', 'exec'))"], capture_output=True)
    shown = collapse_errors(done.stderr.decode())
    assert "in parse" in shown
    assert "frames in json" in shown
    assert "JSONDecodeError" in shown
    assert "direct cause" in shown
    assert shown.rstrip().endswith("RuntimeError: again")


def test_mutual_recursion_is_shown_once():
    pair = '  File "main.py", line 2, in f\n    return g()\n  File "main.py", line 4, in g\n    return f()\n'
    shown = collapse_errors(f"{HEADER}{pair * 498}RecursionError: deep")
    assert shown == f"{HEADER}{pair}... [the last 2 frames repeated 497 times] ...\nRecursionError: deep"


def test_repetitions_shorter_than_their_note_are_left_alone():
    assert collapse_repeated(["0", "0", "0"]) == ["0", "0", "0"]
    assert collapse_repeated(["", "", ""] * 30) == [""] * 90


@pytest.mark.parametrize(
    "unit", ["a\n", "a\nb\n", LIBRARY, OWN, "    x\n", " |" * 40 + "\n", "0\n1\n2\n3\n4\n5\n6\n7\n8\n"]
)
def test_collapsing_takes_linear_time(unit):
    def cost(size):
        text = unit * (size // len(unit))
        began = time.process_time()
        collapse_errors(text)
        return time.process_time() - began

    assert cost(200_000) < 30 * cost(20_000) + 0.05
