"""`TrajectoryScreen`: one trajectory as conversation, tokens, times, facts and tree."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError
from toolgym.viewer.run_index import Row
from toolgym.viewer.terminal.pages import conversation, facts, times, tree
from toolgym.viewer.terminal.row_screen import OpenRun, RowScreen
from toolgym.viewer.terminal.run_list import RunList, number, outcome
from toolgym.viewer.terminal.text_view import Block, LineView, TextView, on_one_line, piece
from toolgym.viewer.terminal.token_view import TokenView
from toolgym.viewer.tokens import SeenToken, tokens_of

VIEWS = ("conversation", "tokens", "times", "facts", "tree")


class TrajectoryScreen(RowScreen):
    """Shows a row's trajectory; keys go on to others of `rows`, the list behind it, and of its group."""

    CSS = "#views { background: $panel; } TokenView { display: none; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"view('{name}')", name, show=False) for n, name in enumerate(VIEWS, 1)),
        Binding("tab", "next_view", "next view"),
        Binding("right_square_bracket", "go(1)", "next", key_display="]"),
        Binding("left_square_bracket", "go(-1)", "before", key_display="["),
        Binding("n", "failure(1)", "next failure"),
        Binding("N", "failure(-1)", "failure before", show=False),
        Binding("m", "member(1)", "next of the group", show=False),
        Binding("M", "member(-1)", "before in the group", show=False),
    ]

    def __init__(self, run: OpenRun, row: Row, rows: RunList) -> None:
        super().__init__(run, lambda: self.row)
        self.row, self.rows, self.view = row, rows, "conversation"

    def compose(self) -> ComposeResult:
        yield Static(classes="line", id="title", markup=False)
        yield Static(classes="line", id="figures", markup=False)
        yield Static(classes="line", id="views")
        yield TextView()
        yield TokenView()
        yield Footer()

    def on_mount(self) -> None:
        self.open(self.row)

    def open(self, row: Row) -> None:
        """Read the trajectory of a row, and then its group's advantages, while keys are heard."""
        self.row = row
        self.trajectory: Trajectory | None = None
        self.advantage: float | None = None
        self._tokens: list[SeenToken] = []
        self._blocks: dict[str, list[Block]] = {}
        self._show_title("reading…")
        self.run_worker(self._read(row), exclusive=True, group="read")

    async def _read(self, row: Row) -> None:
        index = self.run.index
        try:
            trajectory = await in_thread(index.trajectory, row)
            self._tokens = await in_thread(lambda: list(tokens_of(trajectory)))
            self.trajectory = trajectory
        except ConfigError as error:
            self._blocks = {view: [Block([piece("it cannot be read", "bold red")], str(error))] for view in VIEWS}
        self._show_title("")
        self.show_view()
        try:
            self.advantage = (await in_thread(index.advantages, row)).get(row.number)
        except ConfigError:  # another member cannot be read, or has a reward that is no number
            return
        self._blocks.pop("facts", None)
        self._show_title("")
        if self.view in ("tokens", "facts"):
            self.show_view()

    def show_view(self) -> None:
        """Show the chosen view, if its parts are read."""
        text, tokens = self.query_one(TextView), self.query_one(TokenView)
        shows_tokens = self.view == "tokens" and self.trajectory is not None
        text.display, tokens.display = not shows_tokens, shows_tokens
        (tokens if shows_tokens else text).focus()
        links = {name: f"[@click=screen.view('{name}')]{n} {name}[/]" for n, name in enumerate(VIEWS, 1)}
        links[self.view] = f"[reverse]{links[self.view]}[/]"
        self.query_one("#views", Static).update("  ".join(links.values()))
        if shows_tokens:
            self._show_tokens(tokens)
        elif self.trajectory is not None:
            text.show(self._blocks.setdefault(self.view, self._page(self.trajectory)))
        elif self._blocks:
            text.show(self._blocks[self.view])

    def _page(self, trajectory: Trajectory) -> list[Block]:
        try:
            if self.view == "tree":
                return tree(self.run.index, self.row)
            if self.view == "facts":
                return facts(trajectory, self.advantage)
            return times(trajectory) if self.view == "times" else conversation(trajectory)
        except Exception as error:  # noqa: BLE001  another program's file may hold anything
            return [Block([piece("it cannot be shown", "bold red")], f"{type(error).__name__}: {error}")]

    def _show_tokens(self, view: TokenView) -> None:
        texts = self.run.texts
        if texts is None:
            self.run_worker(self._load_texts(), exclusive=True, group="texts")
        text, note = (
            (str, "loading the tokenizer…") if texts is None else (texts.text, "" if texts.known else "ids only")
        )
        view.show(self._tokens, text, "" if self.advantage is None else f"{self.advantage:.3f}", note)

    async def _load_texts(self) -> None:
        await self.run.load_texts(self.app)
        if texts := self.run.texts:
            self.show_view()
            if texts.why_not:
                self.notify(texts.why_not, severity="warning", markup=False)

    def _show_title(self, state: str) -> None:
        row = self.row
        title = f"{row.env or 'verl'}  task {row.task or row.group}  sample {row.sample}  step {row.step}  {row.id}"
        title = title if row.readable else self.run.index.place(row)
        self.query_one("#title", Static).update(on_one_line(title))
        figures = f"{outcome(row)[0]} reward {number(row.reward)}  {row.stop}  turns {row.turns}  tokens {row.tokens:,}"
        advantage = "" if self.advantage is None else f"  advantage {self.advantage:+.3f}"
        usable = "" if self.trajectory is None or self.trajectory.usable else "  not to be trained on"
        line = self.query_one("#figures", Static)
        line.update(on_one_line(f"{figures}  {row.seconds:.2f} s{advantage}{usable}  {state}"))
        line.styles.color = "red" if row.failed else "green" if row.success else None

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        self.view = "conversation"
        self.open(event.value)

    def action_view(self, name: str) -> None:
        self.view = name
        self.show_view()

    def action_next_view(self) -> None:
        self.action_view(VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)])

    def action_go(self, step: int) -> None:
        self.rows.action_move(step)
        self.open(self.rows.row or self.row)

    def action_failure(self, step: int) -> None:
        row = self.rows.jump(step)
        if row is None:
            self.notify("no further failure in the list")
        else:
            self.open(row)

    def action_member(self, step: int) -> None:
        members = self.run.index.group(self.row)
        self.open(members[(members.index(self.row) + step) % len(members)])
