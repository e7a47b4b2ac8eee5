"""`render_terminal`: what a terminal shows of carriage returns, backspaces and escape sequences."""

import time

import pytest

from toolgym.tools.library.terminal import SCREEN_ROWS, render_terminal

FRAMES = "".join(f"\r{percent:3d}%|{'#' * (percent // 10)}" for percent in range(101))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines\n", "plain\ttext\nof two lines\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        (FRAMES, "100%|##########"),
        ("long line\rshort\n", "shortline\n"),
        ("50%\r\x1b[Kdone\n", "done\n"),
        ("\x1b[1;31mError\x1b[0m: \x1b[38;5;208mx\x1b[m\n", "Error: x\n"),
        ("abc\b\b\bxyz", "xyz"),
        ("N\bNA\bAME", "NAME"),
        ("one\ntwo\n\x1b[2A\x1b[2KONE\x1b[2B\rend", "ONE\ntwo\nend"),
        ("a: 1\nb: 1\x1b[F\x1b[Ka: 2\nb: 2\n", "a: 2\nb: 2\n"),
        ("frame 1\nx\n\x1b[2J\x1b[Hframe 2\n", "frame 2"),
        ("\x1b]0;title\x07text \x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "text link"),
        ("shell\n\x1b[?1049hscreen of an editor\x1b[2J\x1b[?1049lafter", "shell\nafter"),
        ("\x1b(Bascii\x1b=\x07\x00", "ascii"),
        ("cut off \x1b[3", "cut off "),
        ("\x1b]0;not ended\nnext", "\nnext"),
        ("a\x1b[5Cb", "a     b"),
        ("saved\x1b7 lost\x1b8 kept", "saved kept"),
        ("abcdef\r\x1b[2Pg", "gdef"),
    ],
)
def test_text_is_what_a_terminal_shows(text, shown):
    assert render_terminal(text) == shown


def test_cursor_does_not_reach_rows_that_scrolled_off():
    lines = "".join(f"{number}\n" for number in range(SCREEN_ROWS + 10))
    shown = render_terminal(f"{lines}\x1b[999A\x1b[2Ktop").split("\n")
    assert shown[10:12] == ["10", "top"]


@pytest.mark.parametrize(
    "unit",
    ["\x1b[999999999Cx", "\x1b[1K", "\x1b[P", "\x1b[9Bx", "\n\x1b[A", "\x1b[1J", "\x1b]", "\x1b[0;", "\b", "\r \r"],
)
def test_hostile_sequences_take_linear_time_and_room(unit):
    def cost(size):
        text = "y" * size + unit * (size // len(unit))
        began = time.process_time()
        shown = render_terminal(text)
        assert len(shown) <= 6 * len(text) + 10_000
        return time.process_time() - began

    assert cost(40_000) < 30 * cost(4_000) + 0.05
