"""`RunList`: the rows of a run, one line each. It draws only the lines on the screen, so 100,000 rows cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.strip import Strip

from toolgym.viewer.run_index import Row
from toolgym.viewer.terminal.text_view import LineView, on_one_line, piece


class Column(NamedTuple):
    """A column of the list; a screen too narrow for all has those of the lowest `rank`."""

    title: str
    width: int
    rank: int
    sort: str
    text: Callable[[Row], str]


def outcome(row: Row) -> tuple[str, str]:
    """A sign and a colour for how the episode ended."""
    if not row.readable:
        return "?", "bold magenta"
    if row.failed:
        return "✗", "bold red"
    return ("✓", "green") if row.success else ("·", "") if row.counted else ("~", "yellow")


def number(value: float) -> str:
    return "" if value != value else f"{value:.4g}"


COLUMNS = (
    Column("", 1, 0, "", lambda row: outcome(row)[0]),
    Column("step", 5, 5, "step", lambda row: str(row.step)),
    Column("task", 16, 3, "task", lambda row: row.task or row.group),
    Column("sample", 7, 4, "sample", lambda row: f"{'↳' if row.parent else ''}{row.sample}"),
    Column("reward", 7, 1, "reward", lambda row: number(row.reward)),
    Column("ended", 14, 2, "stop", lambda row: row.stop),
    Column("turns", 6, 6, "turns", lambda row: str(row.turns)),
    Column("calls", 6, 9, "calls", lambda row: str(row.calls)),
    Column("tokens", 7, 7, "tokens", lambda row: f"{row.tokens:,}"),
    Column("seconds", 8, 8, "seconds", lambda row: f"{row.seconds:.2f}"),
    Column("env", 18, 11, "env", lambda row: row.env),
    Column("problems", 14, 10, "error", lambda row: row.error or " ".join(row.problems)),
    Column("id", 10, 12, "id", lambda row: row.id),
)
_TEXTS = {"", "task", "ended", "env", "problems", "id"}


class RunList(LineView):
    """Shows rows below a line of titles, which say by which figure to sort when they are clicked."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"run-list--cursor", "run-list--titles"}

    margins = 1
    rows: Sequence[Row] = ()
    sort = ""

    @property
    def row(self) -> Row | None:
        return self.rows[self.cursor] if self.rows else None

    def show(self, rows: Sequence[Row], sort: str) -> None:
        """Show other rows. The cursor stays on its row if that is among them."""
        before, self.rows, self.count, self.sort = self.row, rows, len(rows), sort
        if before is not None and (self.cursor >= len(rows) or rows[self.cursor].number != before.number):
            self.cursor = next((place for place, row in enumerate(rows) if row.number == before.number), 0)
        self.virtual_size = Size(0, len(rows) + 1)
        self.go(self.cursor)

    def jump(self, step: int) -> Row | None:
        """Go to the next row in trouble, or with `step` -1 to the one before, and return it; None without one."""
        places = range(self.cursor + step, len(self.rows) if step > 0 else -1, step)
        place = next((place for place in places if self.rows[place].troubled), None)
        if place is None:
            return None
        self.go(place)
        return self.row

    def columns(self) -> list[tuple[Column, int]]:
        """The columns that fit, with their widths; task and problems share what is left."""
        left, fitting = self.room + 1, list[Column]()
        for column in sorted(COLUMNS, key=lambda column: column.rank):
            if column.width + 1 > left:
                break
            fitting.append(column)
            left -= column.width + 1
        wide = [column.title for column in fitting if column.title in ("task", "problems")]
        fitting.sort(key=COLUMNS.index)
        return [(column, column.width + (left // len(wide) if column.title in wide else 0)) for column in fitting]

    def render_line(self, y: int) -> Strip:
        place = y - 1 + self.scroll_offset.y
        if not y:
            cells = [_cell(self._title(column), column, width, "bold") for column, width in self.columns()]
            return self.strip(cells, self.get_component_rich_style("run-list--titles"))
        if place >= len(self.rows):
            return self.strip([])
        row = self.rows[place]
        cells = [_cell(column.text(row), column, width, _style(column, row)) for column, width in self.columns()]
        if place != self.cursor:
            return self.strip(cells)
        style = self.get_component_rich_style("run-list--cursor")
        return self.strip(cells, style if self.has_focus else style + Style(dim=True))

    def action_choose(self) -> None:
        if self.row is not None:
            self.post_message(self.Chosen(self, self.row))

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset_capture(self)
        place = at.y - 1 + self.scroll_offset.y
        if at.y and place == self.cursor:
            self.action_choose()
        elif at.y and place < len(self.rows):
            self.go(place)
        for column, width in self.columns() if not at.y else ():
            if 0 <= at.x < width and column.sort:
                self.post_message(self.Chosen(self, column.sort))
            at = at - (width + 1, 0)

    def _title(self, column: Column) -> str:
        arrow = {column.sort: "↑", f"-{column.sort}": "↓"}.get(self.sort, "") if column.sort else ""
        return column.title + arrow


def _cell(text: str, column: Column, width: int, style: str) -> Segment:
    text = on_one_line(text)
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    blank = " " * (width - cell_len(text))
    return piece(f"{text}{blank} " if column.title in _TEXTS else f"{blank}{text} ", style)


def _style(column: Column, row: Row) -> str:
    if column.title in ("", "reward", "ended"):
        return outcome(row)[1]
    if column.title == "problems":
        return "red" if row.failed else "yellow"
    return "" if column.title in ("task", "turns", "tokens") else "dim"
