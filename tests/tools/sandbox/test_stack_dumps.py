"""Stacks of interpreters that crashed or hang in C: read from what `faulthandler` writes."""

import os

import pytest

from toolgym.tools.sandbox.local.host import stack_dumps
from toolgym.tools.sandbox.local.host.stack_dumps import take_dump

OURS = os.path.join(os.path.dirname(os.path.dirname(stack_dumps.__file__)), "child", "notebook.py")
CODE = "import json\nwork()  # here"
DUMP = (
    "Current thread 0x00007f0a1 (most recent call first):\n"
    '  File "/usr/lib/python3.12/json/x.py", line 5 in scan\n'
    f'  File "{OURS}", line 7 in display\n'
    '  File "<cell 2>", line 2 in <module>\n'
    f'  File "{OURS}", line 9 in run\n'
    '  File "<string>", line 1 in <module>\n'
)
OTHER = 'Thread 0x00007f0b2 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 1 in wait\n\n'
FRAMES = [
    '  File "<cell 2>", line 2, in <module>\n    work()  # here\n',
    '  File "/usr/lib/python3.12/json/x.py", line 5, in scan\n',
]


@pytest.mark.parametrize(
    ("stderr", "left", "why"),
    [
        (DUMP, "", ""),
        (f"before\n{DUMP}after", "before\nafter", ""),
        (f"{OTHER}{DUMP}", "", ""),
        (f"{DUMP}\n{OTHER}"[:-1], "", ""),
        (f"Fatal Python error: Aborted\n\n{DUMP}\nExtension modules: numpy.x (total: 1)\n", "", "Aborted"),
        (f"Fatal Python error: Aborted\n<Cannot show all threads>\n\n{DUMP}", "", "Aborted"),
        (f"{DUMP}\nCurrent thread's C stack trace (most recent call first):\n  Binary file x\n  y\nlog", "log", ""),
    ],
)
def test_the_stack_of_the_program_is_taken_out_of_its_errors(stderr, left, why):
    assert take_dump(stderr, "<cell ", CODE) == (left, why, FRAMES)


@pytest.mark.parametrize("head", ["Current thread 0x", "Thread 0x00007f0a1 (most rec"])
def test_a_dump_that_ends_in_its_first_line_is_left_out(head):
    assert take_dump(f"before\n{head}", "<cell ", CODE) == ("before\n", "", [])


@pytest.mark.parametrize("line", ['  File "<stri', "Current thread 0x0"])
def test_the_line_of_a_dump_that_is_not_finished_is_left_out(line):
    assert take_dump(f"before\n{DUMP}{line}", "<cell ", CODE) == ("before\n", "", FRAMES)


def test_other_errors_are_left_alone():
    assert take_dump("Traceback (most recent call last):\nKeyError: 1\n", "<cell ", "") is None
    assert take_dump("a line (most recent call first):\n", "<cell ", "") is None
