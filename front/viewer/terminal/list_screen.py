"""`ListScreen`: the rows of a run with a filter, and charts whose bars filter too."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Footer, Input, Static

from toolgym.tools.errors import ConfigError
from toolgym.viewer.query import Query, sorted_by, toggled
from toolgym.viewer.run_index import Row
from toolgym.viewer.selection import Bar
from toolgym.viewer.terminal.row_screen import OpenRun, RowScreen
from toolgym.viewer.terminal.run_list import RunList
from toolgym.viewer.terminal.text_view import Block, LineView, TextView, on_one_line, piece

SORTS = {"R": "reward", "T": "turns", "K": "tokens", "S": "seconds", "P": "step", "C": "calls"}
HINT = '/ filter: failed, reward<0.5, stop=length, tool=*, "a text", /a regex/, sort:-tokens'
BAR = 8
"""Cells of the longest bar."""


class ListScreen(RowScreen):
    """The first screen."""

    CSS = """
    #filter { border: none; height: 1; padding: 0; background: $boost; }
    #body { layout: horizontal; }
    #charts { width: 38; border-left: solid $panel; }
    ListScreen.-narrow #body { layout: vertical; }
    ListScreen.-narrow #charts { width: 1fr; height: 8; border-left: none; border-top: solid $panel; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012  as Textual types it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "leave", "clear filter", show=False),
        Binding("n", "failure(1)", "next failure"),
        Binding("N", "failure(-1)", "failure before", show=False),
        Binding("tab", "app.focus_next", "charts"),
        *(Binding(key, f"sort('{name}')", f"sort by {name}", show=False) for key, name in SORTS.items()),
    ]
    _wrong = ""
    """What is wrong with the query in the filter."""

    def __init__(self, run: OpenRun, query: str) -> None:
        super().__init__(run, lambda: self.rows.row)
        self._first_query = query

    def compose(self) -> ComposeResult:
        yield Static(classes="line", markup=False)
        yield Input(self._first_query, placeholder=HINT, id="filter", select_on_focus=False)
        with Container(id="body"):
            yield RunList()
            yield TextView(id="charts")
        yield Footer()

    def on_mount(self) -> None:
        self.rows, self.charts, self.filter = self.query_one(RunList), self.query_one(TextView), self.query_one(Input)
        self.rows.focus()
        self.show({})

    def show(self, bars: dict[str, list[Bar]]) -> None:
        """Show what was read and selected by now."""
        selection, index = self.run.selection, self.run.index
        query = selection.query
        self.rows.show(selection.rows, ("-" if query.descending else "") + query.sort)
        self.charts.show([block for name in bars for block in _chart(name, bars[name])], self.charts.cursor)
        size = index.size
        rest = size - index.bytes_read
        state = f"   reading: {index.bytes_read / max(1, size):.0%} of {size:,} bytes"
        if selection.finished:
            state = f"   and {rest:,} bytes of a line without its end" if rest > 0 else ""
        self._say(f"{index.name}   {len(selection.rows):,} of {len(index):,} episodes{state}")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wrong = ""
        try:
            self.run.selection.ask(Query.parse(event.value))
        except ConfigError as error:
            self._wrong = str(error)
        self._say("selecting…")
        self.run.wake.set()

    def on_input_submitted(self) -> None:
        self.rows.focus()

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        if isinstance(event.value, Row):
            self.post_message(self.Wanted(event.value))
        elif event.view is self.charts:
            self.filter.value = toggled(self.filter.value, event.value)
        else:
            self.action_sort(event.value)

    def action_filter(self) -> None:
        self.filter.focus()

    def action_leave(self) -> None:
        """Leave the filter as it is; in the list, clear it."""
        if self.rows.has_focus:
            self.filter.value = ""
        self.rows.focus()

    def action_sort(self, name: str) -> None:
        self.filter.value = sorted_by(self.filter.value, name)

    def action_failure(self, step: int) -> None:
        if self.rows.jump(step) is None:
            self.notify("no further failure in the list")

    def _say(self, text: str) -> None:
        top, wrong = self.query_one(Static), self._wrong or self.run.trouble
        top.update(on_one_line(wrong or text))
        top.styles.color = "red" if wrong else None


def _chart(name: str, bars: list[Bar]) -> list[Block]:
    most = max((bar.rows for bar in bars), default=1)
    blocks = [Block([piece(name, "bold")])] if bars else []
    for bar in bars:
        cells, full = (max(bool(count), round(BAR * count / most)) for count in (bar.rows, bar.shown))
        title = [piece(f"{bar.label[:14]:<14} "), piece("█" * full, "green"), piece("░" * (cells - full))]
        blocks.append(Block([*title, piece(f" {bar.shown:,} of {bar.rows:,}", "dim")], key=bar.terms))
    return blocks
