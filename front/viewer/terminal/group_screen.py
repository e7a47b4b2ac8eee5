"""`GroupScreen`: the members of a group, two of them side by side from where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import ClassVar

from rich.cells import set_cell_size
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError
from toolgym.viewer.run_index import Row
from toolgym.viewer.terminal.pages import message_text
from toolgym.viewer.terminal.row_screen import OpenRun, RowScreen
from toolgym.viewer.terminal.run_list import number, outcome
from toolgym.viewer.terminal.text_view import Block, Line, LineView, TextView, harmless, on_one_line, piece, wrapped

Texts = Sequence[tuple[str, str]]
"""Role and text of each message."""


@dataclass
class SideBySide(Block):
    """Two texts beside each other, line by line; lines of the left or the right alone are red or green."""

    right: str = ""

    def lines(self, width: int) -> list[Line]:
        half = max(8, (width - 3) // 2)
        left, right = harmless(self.text).split("\n"), harmless(self.right).split("\n")
        lines: list[Line] = [self.title]
        for tag, a, b, c, d in SequenceMatcher(None, left, right).get_opcodes():
            colours = ("dim", "dim") if tag == "equal" else ("red", "green")
            for pair in zip_longest(left[a:b], right[c:d], fillvalue=""):
                for cells in zip_longest(*(wrapped(text, half) for text in pair), fillvalue=""):
                    x, y = (piece(set_cell_size(cells[n], half), colours[n]) for n in range(2))
                    lines.append([x, piece(" │ ", "dim"), y])
        return lines


def differences(left: Texts, right: Texts) -> list[Block]:
    """Blocks of two conversations: equal messages folded, the others side by side."""
    blocks: list[Block] = []
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            text = "\n".join(f"{role}: {text}" for role, text in left[a:b])
            blocks.append(Block([piece(f"equal messages: {b - a}", "bold dim")], text, "dim", folded=True))
            continue
        for mine, other in zip_longest(left[a:b], right[c:d], fillvalue=("–", "")):
            role = mine[0] if mine[0] == other[0] else f"{mine[0]} │ {other[0]}"
            blocks.append(SideBySide([piece(role, "bold yellow")], mine[1], right=other[1]))
    return blocks


class GroupScreen(RowScreen):
    """Shows the group of a row."""

    CSS = "#members { height: auto; max-height: 40%; border-bottom: solid $panel; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "side(0)", "to the left"),
        Binding("b", "side(1)", "to the right"),
        Binding("tab", "app.focus_next", "members or diff"),
    ]

    def __init__(self, run: OpenRun, row: Row) -> None:
        super().__init__(run, lambda: row)
        self.row = row
        self._advantages: dict[int, float | None] = {}

    def compose(self) -> ComposeResult:
        yield Static(classes="line", markup=False)
        yield TextView(id="members")
        yield TextView(id="diff")
        yield Footer()

    def on_mount(self) -> None:
        members = self.members = self.run.index.group(self.row)
        others = [member for member in members if member.number != self.row.number] or [self.row]
        self.sides = [self.row, next((other for other in others if other.reward != self.row.reward), others[0])]
        title = (
            f"group {self.row.group}  task {self.row.task}  {len(members)} members; a is on the left, b on the right"
        )
        self.query_one(Static).update(on_one_line(title))
        self.query_one("#members", TextView).focus()
        self._show_members(members.index(self.row))
        self.run_worker(self._compare(), exclusive=True, group="compare")
        self.run_worker(self._read_advantages(), group="advantages")

    async def _read_advantages(self) -> None:
        try:
            self._advantages = await in_thread(self.run.index.advantages, self.row)
        except ConfigError as error:
            self.notify(f"no advantages: {error}", severity="warning", markup=False)
        self._show_members(self.query_one("#members", TextView).cursor)

    async def _compare(self) -> None:
        try:
            sides = [await in_thread(self.run.index.trajectory, side) for side in self.sides]
            texts = [[(message["role"], message_text(message)) for message in side.messages] for side in sides]
            blocks = await in_thread(differences, *texts)
        except (ConfigError, TypeError, LookupError, AttributeError) as error:  # of another program's file
            blocks = [Block([piece("they cannot be compared", "bold red")], str(error))]
        first = next((n for n, block in enumerate(blocks) if isinstance(block, SideBySide)), 0)
        self.query_one("#diff", TextView).show(blocks, first)

    def _show_members(self, cursor: int) -> None:
        blocks = []
        for member in self.members:
            marks = "".join(sign if member == side else " " for sign, side in zip("ab", self.sides, strict=True))
            advantage = self._advantages.get(member.number)
            text = f"{outcome(member)[0]} sample {member.sample:<3} reward {number(member.reward):<6} advantage "
            text += f"{'–' if advantage is None else f'{advantage:+.3f}':<7} {member.stop}  turns {member.turns}"
            title = [piece(f"{marks} ", "bold"), piece(f"{text}  {member.tokens:,} tokens", outcome(member)[1])]
            blocks.append(Block(title, key=member))
        self.query_one("#members", TextView).show(blocks, cursor)

    def on_line_view_chosen(self, event: LineView.Chosen) -> None:
        self.post_message(self.Wanted(event.value))

    def action_side(self, side: int) -> None:
        cursor = self.query_one("#members", TextView).cursor
        self.sides[side] = self.members[cursor]
        self._show_members(cursor)
        self.run_worker(self._compare(), exclusive=True, group="compare")
