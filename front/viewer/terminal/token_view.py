"""`TokenView`: the tokens of a trajectory as running text in colour, with a table of those around the cursor."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.strip import Strip

from toolgym.viewer.terminal.text_view import LineView, on_one_line, piece
from toolgym.viewer.tokens import SeenToken

TABLE = 7
"""Tokens in the table, the one at the cursor in the middle."""

SCALE = ("#1a9850", "#a6d96a", "#fee08b", "#fc8d59", "#d73027")
"""From a token that was certain to one that was not."""

VERSIONS = ("#7fc97f", "#beaed4", "#fdc086", "#ffff99", "#80b1d3", "#f0027f")
PROBABILITIES = (0.9, 0.5, 0.2, 0.05)
_REST = {"prompt": "cyan", "env": "dim"}


class TokenView(LineView):
    """Shows tokens. A new line begins behind a token that ends one, and with each sequence."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "token(1)", "next token", show=False),
        Binding("left,h", "token(-1)", "token before", show=False),
        Binding("p", "span(1)", "policy span"),
        Binding("P", "span(-1)", "policy span before", show=False),
        Binding("c,enter,space", "choose", "colour by"),
    ]

    margins = TABLE + 2
    tokens: Sequence[SeenToken] = ()
    colour = "logprob"
    _lines: Sequence[Sequence[tuple[int, str]]] = ()

    def show(self, tokens: Sequence[SeenToken], text: Callable[[int], str], advantage: str, note: str) -> None:
        """Show tokens with the text of each id. `note` says what is missing, such as the tokenizer."""
        is_new, self.tokens, self.count = tokens is not self.tokens, tokens, len(tokens)
        self._text, self._advantage, self._note = text, advantage, note
        columns: dict[str, list[float]] = {}
        for token in tokens:
            for name, value in token.values.items():
                columns.setdefault(name, []).append(value)
        finite = {name: [value for value in values if math.isfinite(value)] for name, values in columns.items()}
        self._ranges = {name: (min(values), max(values)) for name, values in finite.items() if values}
        self._versions = list(dict.fromkeys(token.version for token in tokens if token.version is not None))
        self._colours = ["logprob", *self._ranges, "version", "kind"]
        self.colour = self.colour if self.colour in self._colours else "logprob"
        kinds = [(token.turn, token.kind) for token in tokens]
        self._spans = [n for n, kind in enumerate(kinds) if kind[1] == "policy" and (not n or kinds[n - 1] != kind)]
        self._lay_out()
        self.go(self._spans[0] if is_new and self._spans else self.cursor)

    def line_of(self, place: int) -> int:
        return bisect_right(self._firsts, place) - 1

    def on_resize(self, event: Resize) -> None:
        if self.tokens:
            self._lay_out()
            self.go(self.cursor)

    def render_line(self, y: int) -> Strip:
        line, table = y - 1 + self.scroll_offset.y, y - (self.size.height - TABLE - 1)
        if not self.tokens:
            return self.strip([piece("no token ids were recorded" if y == 1 else "", "italic")])
        if not y or table >= 0:
            return self.strip(self._table_line(table) if y else self._legend())
        texts, here = self._lines[line] if line < len(self._lines) else (), Style(reverse=True, bold=True)
        styles = (self._style(n) + here if n == self.cursor else self._style(n) for n, _ in texts)
        return self.strip([Segment(text, style) for (_, text), style in zip(texts, styles, strict=True)])

    def action_token(self, step: int) -> None:
        self.go(self.cursor + step)

    def action_move(self, step: int) -> None:
        """Go to the token at about the same column of a line further on."""
        if self._lines:
            line = self.line_of(self.cursor)
            column = sum(cell_len(text) for place, text in self._lines[line] if place < self.cursor)
            self.go(self._token_at(max(0, min(len(self._lines) - 1, line + step)), column))

    def action_span(self, step: int) -> None:
        """Go to the first token of the next turn of the policy, or of the one before."""
        self.go(next((n for n in self._spans[::step] if (n - self.cursor) * step > 0), self.cursor))

    def action_choose(self) -> None:
        """Colour by the next of log-probability, other values, version of the weights, and kind."""
        if self.tokens:
            self.colour = self._colours[(self._colours.index(self.colour) + 1) % len(self._colours)]
            self.refresh()

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset_capture(self)
        line = at.y - 1 + self.scroll_offset.y
        if not at.y:
            self.action_choose()
        elif at.y < self.size.height - TABLE - 1 and line < len(self._lines):
            self.go(self._token_at(line, at.x))

    def _lay_out(self) -> None:
        lines: list[list[tuple[int, str]]] = []
        left, sequence = 0, -1
        for place, token in enumerate(self.tokens):
            text = on_one_line(self._text(token.id)) or "·"
            for part in [text] if len(text) < 6 else chop_cells(text, self.room):
                cells = cell_len(part)
                if cells > left or token.sequence != sequence:
                    lines.append([])
                    left, sequence = self.room, token.sequence
                lines[-1].append((place, part))
                left -= cells
            left = 0 if text.endswith("⏎") else left
        self._lines, self._firsts = lines, [line[0][0] for line in lines]
        self.virtual_size = Size(0, len(lines) + TABLE + 2)

    def _token_at(self, line: int, column: int) -> int:
        for place, text in self._lines[line]:
            column -= cell_len(text)
            if column < 0:
                return place
        return self._lines[line][-1][0]

    def _style(self, place: int) -> Style:
        token = self.tokens[place]
        if token.kind != "policy" or self.colour == "kind":
            return Style.parse(_REST.get(token.kind, "green"))
        if self.colour == "version":
            colour = VERSIONS[self._versions.index(token.version or "") % len(VERSIONS)]
        elif self.colour == "logprob":
            colour = SCALE[sum(_probability(token) < bound for bound in PROBABILITIES)]
        else:
            low, high = self._ranges[self.colour]
            value = token.values.get(self.colour, low)
            share = (value - low) / (high - low) if high > low and math.isfinite(value) else 0.0
            colour = SCALE[min(4, int(share * 5))]
        return Style.parse(f"black on {colour}")

    def _legend(self) -> list[Segment]:
        palette: Sequence[str] = VERSIONS if self.colour == "version" else SCALE
        labels = [">90%", ">50%", ">20%", ">5%", "less"]
        if self.colour in self._ranges:
            low, high = self._ranges[self.colour]
            labels = [f">{low + (high - low) * step / 5:.3g}" for step in range(5)]
        elif self.colour == "version":
            labels = self._versions
        marks = [piece(f" {label} ", f"black on {colour}") for label, colour in zip(labels, palette, strict=False)]
        marks = [piece("policy", "green")] if self.colour == "kind" else marks
        rest = [piece("  prompt", "cyan"), piece("  env", "dim"), piece(f"  {self._note}", "italic")]
        return [piece(f"{self.colour} ", "bold"), *marks, *rest]

    def _table_line(self, line: int) -> list[Segment]:
        names = list(self._ranges)[: max(1, (self.room - 70) // 9)]
        if not line:
            extra = "".join(f"{name[:8]:>9}" for name in names)
            titles = f" place     id text              mask  logprob   prob{extra} advantage version"
            return [piece(titles, "bold underline")]
        place = max(0, min(self.cursor - TABLE // 2, len(self.tokens) - TABLE)) + line - 1
        if place >= len(self.tokens):
            return []
        token = self.tokens[place]
        text = set_cell_size(on_one_line(self._text(token.id)), 12)
        figures = f"{place:>6}{token.id:>7} {text} {int(token.kind == 'policy')} {token.kind:>7}"
        if token.logprob is not None:
            values = "".join(f"{token.values[name]:>9.3g}" if name in token.values else " " * 9 for name in names)
            figures += f"{token.logprob:>9.3f}{_probability(token):>7.1%}{values}{self._advantage:>10} "
            figures += token.version or ""
        return [piece(figures, "reverse" if place == self.cursor else "" if token.kind == "policy" else "dim")]


def _probability(token: SeenToken) -> float:
    return math.exp(min(0.0, token.logprob or 0.0))
