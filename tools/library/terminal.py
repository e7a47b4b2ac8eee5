"""`render_terminal`: the text that a terminal shows at the end of a program's output."""

from __future__ import annotations

import re

SCREEN_ROWS = 50
"""Rows that the cursor can move up: rows above have scrolled off the screen."""

_CONTROLS = tuple(map(chr, (*range(9), *range(11, 32), 127)))
_TOKEN = re.compile(
    r"\x1b\[(?P<csi>[0-?]*)[ -/]*(?P<final>[@-~]?)"  # control sequences, such as colours and cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings for the terminal, such as titles and hyperlinks
    r"|\x1b[ -/]+[0-~]?|\x1b(?P<escape>[0-~]?)"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
)
_ALTERNATE_SCREENS = ("?1049", "?1047", "?47")


def render_terminal(text: str) -> str:
    """Apply carriage returns, backspaces and escape sequences as a terminal does, and return the text that it shows.

    Of a progress bar that redraws its line, only the last frame remains. Colours, titles and other characters that
    print nothing are removed. Lines are never wrapped. Runs in linear time: a movement or erasure is ignored once such
    operations have cost more than a fixed multiple of the text's length.
    """
    text = text.replace("\r\n", "\n")
    if not any(mark in text for mark in _CONTROLS):  # a tenth of the time that a pattern takes
        return text
    screen = _Screen(budget=4 * len(text) + 10_000)
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "text":
            screen.write(token["text"])
        elif kind == "control":
            screen.control(token["control"])
        elif kind == "final":
            screen.sequence(token["csi"], token["final"])
        elif kind == "escape":
            screen.escape(token["escape"])
    return screen.content()


class _Screen:
    """Rows of characters, and a cursor. `budget` is how many more characters may be touched besides those written."""

    def __init__(self, budget: int) -> None:
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._saved_cursor = (0, 0)
        self._main: tuple[list[list[str]], int, int] | None = None  # while the alternate screen is shown
        self._budget = budget
        self._erased = False

    def content(self) -> str:
        rows = self._rows if self._main is None else self._main[0]
        text = "\n".join("".join(row) for row in rows)
        return text.rstrip("\n") if self._erased else text

    def write(self, text: str) -> None:
        row = self._rows[self._row]
        missing = self._column - len(row)
        if missing > 0:
            row += " " * missing if self._pay(missing) else ""
            self._column = len(row)
        row[self._column : self._column + len(text)] = text
        self._column += len(text)

    def control(self, mark: str) -> None:
        if mark == "\r":
            self._column = 0
        elif mark == "\b":
            self._column = max(0, min(self._column, len(self._rows[self._row])) - 1)
        elif mark == "\t":
            self.write("\t")
        elif mark in "\n\x0b\x0c":
            self._row += 1
            self._column = 0
            if self._row == len(self._rows):
                self._rows.append([])

    def escape(self, mark: str) -> None:
        if mark == "7":
            self._saved_cursor = self._row, self._column
        elif mark == "8":
            self._move(*self._saved_cursor)
        elif mark == "M":
            self._move(self._row - 1, self._column)
        elif mark in ("D", "E"):
            self._move(self._row + 1, self._column if mark == "D" else 0)

    def sequence(self, parameters: str, final: str) -> None:
        """Carry out a control sequence. Those that concern no more than the looks do nothing."""
        if final in ("h", "l") and parameters in _ALTERNATE_SCREENS:
            self._switch_screen(final == "h")
            return
        numbers = [int(number[:6]) if number.isdecimal() else 0 for number in parameters.split(";")]
        number = numbers[0]
        count = max(1, number)
        row, column, top = self._row, self._column, self._top
        if final in ("A", "B", "C", "D", "E", "F", "G", "d", "H", "f"):
            second = max(1, numbers[1]) if len(numbers) > 1 else 1
            target = {
                "A": (row - count, column),
                "B": (row + count, column),
                "C": (row, column + count),
                "D": (row, column - count),
                "E": (row + count, 0),
                "F": (row - count, 0),
                "G": (row, count - 1),
                "d": (top + count - 1, column),
            }.get(final, (top + count - 1, second - 1))
            self._move(*target)
        elif final == "K":
            self._erase_in_row(number)
        elif final == "J":
            self._erase_rows(number)
        elif final == "P" and self._pay(len(self._rows[row]) - column):
            del self._rows[row][column : column + count]
        elif final == "X" and self._pay(min(count, len(self._rows[row]))):
            end = min(column + count, len(self._rows[row]))
            self._rows[row][column:end] = " " * max(0, end - column)
        elif final == "s":
            self._saved_cursor = row, column
        elif final == "u":
            self._move(*self._saved_cursor)

    @property
    def _top(self) -> int:
        return max(0, len(self._rows) - SCREEN_ROWS)

    def _pay(self, cost: int) -> bool:
        """Whether an operation is within the budget, which it uses up."""
        if cost > self._budget:
            return False
        self._budget -= max(1, cost)
        return True

    def _move(self, row: int, column: int) -> None:
        bottom = self._top + SCREEN_ROWS - 1
        row = max(self._top, min(row, bottom))
        missing = row + 1 - len(self._rows)
        if missing > 0:
            self._rows += [[] for _ in range(missing)] if self._pay(missing) else ()
        self._row = min(row, len(self._rows) - 1)
        self._column = max(0, column)

    def _erase_in_row(self, mode: int) -> None:
        row = self._rows[self._row]
        if mode == 0:
            del row[self._column :]
        elif mode == 2:
            row.clear()
        elif mode == 1 and self._pay(self._column + 1):
            end = min(self._column + 1, len(row))
            row[:end] = " " * end

    def _erase_rows(self, mode: int) -> None:
        if mode == 0:
            del self._rows[self._row + 1 :]
            self._erase_in_row(0)
        elif mode in (2, 3) and self._pay(SCREEN_ROWS):
            self._erased = True
            for row in self._rows[self._top :]:
                row.clear()
        elif mode == 1 and self._pay(SCREEN_ROWS):
            for row in self._rows[self._top : self._row]:
                row.clear()
            self._erase_in_row(1)

    def _switch_screen(self, alternate: bool) -> None:
        if alternate and self._main is None:
            self._main = self._rows, self._row, self._column
            self._rows, self._row, self._column = [[]], 0, 0
        elif not alternate and self._main is not None:
            self._rows, self._row, self._column = self._main
            self._main = None
