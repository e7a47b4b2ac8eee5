"""`TextView`: blocks of text that fold, scroll and are never cut, drawn line by line; and text that is harmless."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

Line = Sequence[Segment]

PREVIEW = 4
"""Lines of a folded block that are shown."""

_OBEYED = [*range(0x80, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070)]
_WRITTEN = {code: f"\\u{code:04x}" for code in [*_OBEYED, *range(0xD800, 0xE000), 0xFEFF, *range(0xFFF9, 0xFFFC)]}
_WRITTEN |= {code: chr(0x2400 + code) for code in range(0x20) if code != ord("\n")} | {0x7F: "␡"}


def harmless(text: str) -> str:
    """The text with everything written out that a terminal would obey or cannot write: `␛` for an escape, `\\ud800`
    for half a character. Line ends stay; tabs become blanks."""
    return text.expandtabs(4).translate(_WRITTEN)


def on_one_line(text: str) -> str:
    return harmless(text).replace("\n", "⏎")


def piece(text: str, style: str = "") -> Segment:
    """A part of a line. Any text may come in: it is made harmless here."""
    return Segment(on_one_line(text), Style.parse(style))


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, long ones broken, at blanks if there are some; all of it is there."""
    lines: list[str] = []
    for line in text.split("\n"):
        cells, start = cell_len(line), 0
        if cells > width and cells != len(line):
            lines += chop_cells(line, width)
            continue
        while len(line) - start > width:
            blank = line.rfind(" ", start + width // 2, start + width)
            stop = start + width if blank < 0 else blank + 1
            lines.append(line[start:stop])
            start = stop
        lines.append(line[start:])
    return lines


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
    """The base of views that draw only the lines on the screen, and move a cursor."""

    DEFAULT_CSS = "LineView { scrollbar-gutter: stable; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("home", "end(-1)", "to the start", show=False),
        Binding("end", "end(1)", "to the end", show=False),
        Binding("enter,space", "choose", "open or fold", show=False),
    ]
    cursor = count = 0
    """The place of the cursor among so many things."""
    margins = 0
    """Lines of the screen that do not scroll."""

    class Chosen(Message):
        """Enter, or a click, on something that can be opened."""

        def __init__(self, view: LineView, value: Any) -> None:
            super().__init__()
            self.view, self.value = view, value

    @property
    def room(self) -> int:
        """Cells of a line."""
        return max(12, self.scrollable_content_region.width)

    @property
    def height(self) -> int:
        """Lines that scroll."""
        return max(1, self.size.height - self.margins)

    def line_of(self, place: int) -> int:
        """The line of the thing at a place."""
        return place

    def strip(self, segments: Line, style: Style | None = None) -> Strip:
        """A line of the view's width on its background."""
        return Strip(segments).adjust_cell_length(self.room).apply_style(style or self.rich_style)

    def go(self, place: int) -> None:
        """Move the cursor, and its line into sight."""
        self.cursor = max(0, min(self.count - 1, place))
        if self.count:
            self.see(self.line_of(self.cursor))

    def see(self, line: int) -> None:
        """Scroll as little as makes a line visible."""
        top = self.scroll_offset.y
        self.scroll_line(line if line < top else max(top, line - self.height + 1))

    def scroll_line(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True, immediate=True)
        self.refresh()

    def action_move(self, step: int) -> None:
        self.go(self.cursor + step)

    def action_page(self, step: int) -> None:
        self.action_move(step * max(1, self.height - 1))

    def action_end(self, step: int) -> None:
        self.go(0 if step < 0 else self.count - 1)


@dataclass
class Block:
    """A title of one line, and a text below it. `key` is what Enter opens; a block without one folds and unfolds."""

    title: Line = ()
    text: str = ""
    style: str = ""
    folded: bool = False
    key: Any = None

    def lines(self, width: int) -> list[Line]:
        """Its lines as they are shown."""
        lines: list[Line] = [self.title] if self.title else []
        if not self.text:
            return lines
        room, style = max(10, width - 2), Style.parse(self.style)
        head = self.text[: PREVIEW * room * 2] if self.folded else self.text
        texts: list[Line] = [[Segment(f"  {line}", style)] for line in wrapped(harmless(head), room)]
        if not self.folded or (len(head) == len(self.text) and len(texts) <= PREVIEW + 1):
            return lines + texts
        size = f"{len(self.text):,} characters in {self.text.count(chr(10)) + 1:,} lines"
        return [*lines, *texts[:PREVIEW], [piece(f"  … of {size} (Enter unfolds)", "dim italic")]]


class TextView(LineView):
    """Shows blocks, one of which is at the cursor. Only unfolded text is broken into lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "fold_all", "fold all")]

    blocks: Sequence[Block] = ()
    _lines: Sequence[Sequence[Line]] = ()
    _starts: Sequence[int] = (0,)

    def show(self, blocks: Sequence[Block], cursor: int | None = None) -> None:
        """Show other blocks, from their start; or with `cursor`, from there."""
        self.blocks, self.count, self.cursor = blocks, len(blocks), max(0, min(cursor or 0, len(blocks) - 1))
        self._lines = [block.lines(self.room - 1) for block in blocks]
        starts = [0]
        for lines in self._lines:
            starts.append(starts[-1] + len(lines))
        self._starts, self.virtual_size = starts, Size(0, starts[-1])
        if cursor is None:
            self.scroll_line(0)
        else:
            self.go(cursor)

    def line_of(self, place: int) -> int:
        """The first line of a block, after as much of it as fits came into sight."""
        self.see(self._starts[place + 1] - 1)
        return self._starts[place]

    def on_resize(self, event: Resize) -> None:
        self.show(self.blocks, self.cursor)

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        number = bisect_right(self._starts, line) - 1
        if number >= len(self.blocks):
            return self.strip([])
        mark = piece("▌" if number == self.cursor else " ", "bold blue" if self.has_focus else "dim")
        return self.strip([mark, *self._lines[number][line - self._starts[number]]])

    def action_move(self, step: int) -> None:
        """Go to the next block, or a line on while this one goes on beyond the edge of the screen."""
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        if self.blocks and (self._starts[self.cursor + 1] > bottom if step > 0 else self._starts[self.cursor] < top):
            self.scroll_line(top + step)
        elif step < 0 < self.cursor:  # to the end of the one above, which may be long
            self.cursor -= 1
            self.see(self._starts[self.cursor + 1] - 1)
        else:
            self.go(self.cursor + step)

    def action_page(self, step: int) -> None:
        self.scroll_line(self.scroll_offset.y + step * (self.height - 1))
        edge = self.scroll_offset.y + (self.height - 1 if step < 0 else 0)
        self.cursor = max(0, min(bisect_right(self._starts, edge) - 1, len(self.blocks) - 1))

    def action_choose(self) -> None:
        """Open the block if there is something to open, else fold or unfold it."""
        block = self.blocks[self.cursor] if self.blocks else Block()
        if block.key is not None:
            self.post_message(self.Chosen(self, block.key))
        else:
            block.folded = not block.folded
            self.show(self.blocks, self.cursor)

    def action_fold_all(self) -> None:
        """Unfold all blocks, or fold all if none is folded."""
        folded = not any(block.folded for block in self.blocks)
        for block in self.blocks:
            block.folded = folded
        self.show(self.blocks, self.cursor)

    def on_click(self, event: Click) -> None:
        number = bisect_right(self._starts, event.get_content_offset_capture(self).y + self.scroll_offset.y) - 1
        if number < len(self.blocks):
            self.cursor = number
            self.action_choose()
