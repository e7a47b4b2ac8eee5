"""`RowScreen`: what the screens of a run share: the run, and the keys for a row's group, id and JSON."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ToolgymError
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.selection import Selection
from toolgym.viewer.terminal.pages import laid_out
from toolgym.viewer.terminal.text_view import Block, TextView, harmless
from toolgym.viewer.tokens import TokenTexts

LARGE = 2_000_000
"""Characters above which JSON begins folded: to break it into lines takes a while."""


class OpenRun:
    """A run with what all screens need of it.

    Attributes:
        error: why the viewer ended by itself: a tokenizer that cannot be loaded.
        texts: texts of token ids, None until `load_texts` is done.
        trouble: why the run cannot be read on.
        wake: ends the wait of the thread that reads.
    """

    def __init__(self, index: RunIndex, query: str, tokenizer: str | None) -> None:
        self.index, self.selection, self.tokenizer = index, Selection(index, Query.parse(query)), tokenizer
        self.texts: TokenTexts | None = None
        self.error: ToolgymError | None = None
        self.trouble = ""
        self.wake = threading.Event()
        self._loading = asyncio.Lock()

    async def load_texts(self, app: App[Any]) -> None:
        """Load the tokenizer, in a thread: its library takes seconds. If it cannot be loaded, the app ends."""
        try:
            async with self._loading:
                self.texts = self.texts or await in_thread(TokenTexts, self.index.path, self.tokenizer)
        except ToolgymError as error:
            self.error = error
            app.exit()


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

    class Wanted(Message):
        """A screen of a row, or of its group, is to be opened."""

        def __init__(self, row: Row, *, group: bool = False) -> None:
            super().__init__()
            self.row, self.group = row, group

    def __init__(self, run: OpenRun, asked: Callable[[], Row | None]) -> None:
        super().__init__()
        self.run, self.asked = run, asked

    def action_group(self) -> None:
        if row := self.asked():
            self.post_message(self.Wanted(row, group=True))

    def action_copy(self) -> None:
        if row := self.asked():
            self.app.copy_to_clipboard(row.id.encode(errors="replace").decode())
            self.notify(f"copied {harmless(row.id)}", markup=False)

    def action_raw(self) -> None:
        """Show the line of the row as it stands in its file, laid out as JSON if it is that."""
        index, row = self.run.index, self.asked()
        if row is None:
            return
        try:
            text = index.line(row).decode(errors="replace")
        except OSError as error:
            text = f"it cannot be read: {error}"
        block = Block(text=laid_out(text), folded=len(text) > LARGE)
        self.app.push_screen(TextScreen(index.place(row), [block], text))
