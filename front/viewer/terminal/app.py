"""`RunViewer`: the terminal application, which reads the run and holds what its screens share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ClassVar, cast

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import get_current_worker

from toolgym.tools.errors import ToolgymError
from toolgym.viewer import query as query_language
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.selection import Selection, charts
from toolgym.viewer.terminal.pages import laid_out
from toolgym.viewer.terminal.text_view import Block, TextView, harmless, piece
from toolgym.viewer.tokens import TokenTexts


class RunViewer(App[None]):
    """Shows a run while it is read.

    Attributes:
        error: why it ended by itself: a tokenizer that cannot be loaded.
        texts: texts of token ids, None until `load_texts` is done.
        trouble: why the run cannot be read on.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "toolgym view"
    CSS = """
    .line { height: 1; }
    RunList > .run-list--cursor { background: $primary; color: $text; }
    RunList > .run-list--titles { background: $panel; color: $text; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("D", "dark", "dark or light", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, index: RunIndex, *, query: str = "", tokenizer: str | None = None) -> None:
        from toolgym.viewer.terminal.list_screen import ListScreen

        super().__init__()
        self.index, self.tokenizer = index, tokenizer
        self.selection, self.first = Selection(index, Query.parse(query)), ListScreen(query)
        self.texts: TokenTexts | None = None
        self.error: ToolgymError | None = None
        self.trouble = ""
        self.wake = threading.Event()
        self._loading = asyncio.Lock()

    def on_mount(self) -> None:
        self.push_screen(self.first)
        self.follow()
        if self.tokenizer is not None:
            self.run_worker(self.load_texts())

    def on_unmount(self) -> None:
        self.workers.cancel_all()
        self.wake.set()

    @work(thread=True, group="follow")
    def follow(self) -> None:
        """Read and select until the viewer ends, in a thread."""
        worker = get_current_worker()
        while not worker.is_cancelled:
            before, self.trouble, changed = self.trouble, "", False
            try:
                changed = self.selection.step()
            except (ToolgymError, OSError) as error:
                self.trouble = str(error)
            if changed or before != self.trouble:
                bars = charts(list(self.index.rows), self.selection.rows)
                self.call_later(self.first.show, bars)
            if self.selection.finished or self.trouble:
                self.wake.wait(1.0)
            self.wake.clear()

    async def load_texts(self) -> None:
        """Load the tokenizer, in a thread: its library takes seconds."""
        try:
            async with self._loading:
                self.texts = self.texts or await asyncio.to_thread(TokenTexts, self.index.path, self.tokenizer)
        except ToolgymError as error:
            self.error = error
            self.exit()

    def action_dark(self) -> None:
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_help(self) -> None:
        """Show all keys of the screen, and the language of queries."""
        if isinstance(self.screen, TextScreen):
            return
        keys: dict[str, list[str]] = {}
        for active in self.screen.active_bindings.values():
            keys.setdefault(active.binding.description, []).append(self.get_key_display(active.binding))
        text = "\n".join(f"{', '.join(names):<16} {about}" for about, names in keys.items() if about)
        queries = (query_language.__doc__ or "").replace("| --- | --- |\n", "").replace("`", "")
        blocks = [Block([piece("Keys", "bold")], text), Block([piece("Filters", "bold")], queries)]
        self.push_screen(TextScreen("help", blocks, text))


class TextScreen(Screen[None]):
    """A text under a title; `y` copies it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("y", "copy", "copy all"),
    ]

    def __init__(self, title: str, blocks: list[Block], text: str) -> None:
        super().__init__()
        self._title, self._blocks, self._text = title, blocks, text

    def compose(self) -> ComposeResult:
        yield Static(harmless(self._title), classes="line", markup=False)
        yield TextView()
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(TextView).show(self._blocks)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._text.encode(errors="replace").decode())
        self.notify("copied")


class RowScreen(Screen[None]):
    """The base of screens about a row, which `asked` returns: for its group, its id and its JSON."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("g", "group", "group"),
        Binding("y", "copy", "copy id", show=False),
        Binding("r", "raw", "raw JSON", show=False),
    ]
    asked: Callable[[], Row | None]

    @property
    def viewer(self) -> RunViewer:
        return cast("RunViewer", self.app)

    def action_group(self) -> None:
        from toolgym.viewer.terminal.group_screen import GroupScreen

        if row := self.asked():
            self.app.push_screen(GroupScreen(row))

    def action_copy(self) -> None:
        if row := self.asked():
            self.app.copy_to_clipboard(row.id.encode(errors="replace").decode())
            self.notify(f"copied {harmless(row.id)}", markup=False)

    def action_raw(self) -> None:
        """Show the line of the row as it stands in its file, laid out as JSON if it is that."""
        index, row = self.viewer.index, self.asked()
        if row is None:
            return
        try:
            text = index.line(row).decode(errors="replace")
        except OSError as error:
            text = f"it cannot be read: {error}"
        self.app.push_screen(TextScreen(index.place(row), [Block(text=laid_out(text))], text))
