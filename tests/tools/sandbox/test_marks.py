"""Marks in a cell's output: where values were shown, whatever else the program prints."""

import pytest

from toolgym.tools.sandbox.local.protocol import marks
from toolgym.tools.sandbox.local.protocol.marks import Shown, block, clearing

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("output", "text", "shown", "cleared"),
    [
        ("no mark\n", "no mark\n", [], 0),
        (f"a\n{block(TOKEN, 1, 'x')}b", "a\nb", [Shown(1, 2, "x")], 0),
        (f"{block(TOKEN, 1, '')}{block(TOKEN, 2, 'y')}", "", [Shown(1, 0, ""), Shown(2, 0, "y")], 0),
        (f"a{clearing(TOKEN)}b", "ab", [], 1),
        (f"a{clearing(TOKEN)}", "a", [], 0),
        (f"a{clearing(TOKEN)}{block(TOKEN, 3, 'x')}", "a", [Shown(3, 1, "x")], 1),
        (f"{block(TOKEN, 1, 'x')}{block(TOKEN, 2, 'cut off')}"[:-9], "cut off\x1b]0123456789", [Shown(1, 0, "x")], 0),
        (block("f" * 16, 1, "another cell's"), block("f" * 16, 1, "another cell's"), [], 0),
    ],
)
def test_marks_are_taken_out(output, text, shown, cleared):
    assert marks.read(output, TOKEN) == (text, shown, cleared)
