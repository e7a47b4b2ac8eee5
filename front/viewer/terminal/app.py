"""`RunViewer`: the terminal application, which reads the run and opens its screens."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from toolgym.tools.errors import ToolgymError
from toolgym.viewer import query as query_language
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.selection import charts
from toolgym.viewer.terminal.group_screen import GroupScreen
from toolgym.viewer.terminal.list_screen import ListScreen
from toolgym.viewer.terminal.row_screen import OpenRun, RowScreen, TextScreen
from toolgym.viewer.terminal.text_view import Block, piece
from toolgym.viewer.terminal.trajectory_screen import TrajectoryScreen


class RunViewer(App[None]):
    """Shows a run while it is read. `opened.error` says why it ended by itself, if it did."""

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
        super().__init__()
        self.opened = OpenRun(index, query, tokenizer)
        self.first = ListScreen(self.opened, query)

    def on_mount(self) -> None:
        self.push_screen(self.first)
        self.follow()
        if self.opened.tokenizer is not None:
            self.run_worker(self.opened.load_texts(self))

    def on_unmount(self) -> None:
        self.workers.cancel_all()
        self.opened.wake.set()

    @work(thread=True, group="follow")
    def follow(self) -> None:
        """Read and select until the viewer ends, in a thread."""
        run, worker = self.opened, get_current_worker()
        while not worker.is_cancelled:
            before, run.trouble, changed = run.trouble, "", False
            try:
                changed = run.selection.step()
            except (ToolgymError, OSError) as error:
                run.trouble = str(error)
            if changed or before != run.trouble:
                self.call_later(self.first.show, charts(list(run.index.rows), run.selection.rows))
            if run.selection.finished or run.trouble:
                run.wake.wait(1.0)
            run.wake.clear()

    def on_row_screen_wanted(self, event: RowScreen.Wanted) -> None:
        if event.group:
            self.push_screen(GroupScreen(self.opened, event.row))
        else:
            self.push_screen(TrajectoryScreen(self.opened, event.row, self.first.rows))

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
