"""HTML for a notebook: no scripts, nothing loaded from anywhere, readable in light and dark, all text escaped."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MAX_CHARS = 5_000
"""Characters of one text that are shown."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_STYLE = """
.tgv{font-size:13px;line-height:1.45} .tgv details{margin:3px 0} .tgv summary{cursor:pointer;opacity:.85}
.tgv pre{margin:0;padding:0;white-space:pre-wrap;overflow-wrap:anywhere;background:none;border:0;font-size:12px}
.tgv table{border-collapse:collapse;margin:2px 0 6px}
.tgv th,.tgv td{text-align:left!important;vertical-align:top;padding:1px 14px 1px 0;border:0;background:none}
.tgv th{opacity:.75;white-space:nowrap} .tgv .n{opacity:.65;font-size:12px}
.tgv .m,.tgv .bad{border-left:3px solid rgba(128,128,128,.45);padding:1px 0 1px 9px;margin:6px 0}
.tgv .assistant{border-color:rgb(70,130,230)} .tgv .tool{border-color:rgb(40,160,100)}
.tgv .user{border-color:rgb(210,140,30)} .tgv .bad{border-color:rgb(220,60,60)}
"""


class View(str):
    """A text with a rich form, `html`, which a notebook shows. `print` shows the text."""

    html: str

    def __new__(cls, text: str, html: str = "") -> View:
        view = super().__new__(cls, text)
        view.html = html
        return view

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html


def drawn_by(place: str) -> Callable[[Any], str]:
    """A method `_repr_html_` that calls the function at `module:name`, which is imported when it first draws."""

    def draw(value: Any) -> str:
        module, _, name = place.partition(":")
        return str(getattr(importlib.import_module(module), name)(value))

    return draw


def page(title: object, *parts: str, style: str = "") -> str:
    """A whole view: a title, which is escaped, and parts in HTML."""
    return f'<div class="tgv"><style>{_STYLE}{style}</style><b>{escaped(title, 500)}</b>{"".join(parts)}</div>'


def facts(rows: Iterable[tuple[object, object]]) -> str:
    """A table of names and values."""
    lines = (f"<tr><th>{escaped(name, 200)}</th><td>{block(item)}</td></tr>" for name, item in rows)
    return f"<table>{''.join(lines)}</table>"


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a row of headings."""
    lines = (f"<tr>{''.join(f'<td>{escaped(cell, 300)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr><th>{'</th><th>'.join(map(escaped, head))}</th></tr>{''.join(lines)}</table>"


def fold(summary: object, body: str, *, shown: bool = False) -> str:
    """A section that a click folds and unfolds; the summary is escaped."""
    return f"<details{' open' if shown else ''}><summary>{escaped(summary, 300)}</summary>{body}</details>"


def block(value: object, limit: int = MAX_CHARS) -> str:
    return f"<pre>{escaped(value, limit)}</pre>"


def note(text: object) -> str:
    """A remark in small print."""
    return f'<div class="n">{escaped(text)}</div>'


def escaped(value: object, limit: int = MAX_CHARS) -> str:
    """A text as HTML. Of one that is too long the middle is left out, and the text says so."""
    text, half = f"{value:.6g}" if isinstance(value, float) else str(value), limit // 2
    if len(text) > limit:
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[len(text) - half :]}"
    text = without_controls(text).encode("utf-8", errors="replace").decode("utf-8")  # a model can write lone surrogates
    return html.escape(text)


def without_controls(text: str) -> str:
    """The text, with characters that control a terminal or the direction of writing spelled out."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
