"""`write_page`: a run as one HTML file that needs nothing else, neither a server nor the network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.writing import whole_file
from toolgym.tools.errors import ConfigError
from toolgym.viewer.page.payload import COLUMNS, Detail, details, figures, report
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.tokens import TokenTexts

PACKED_FROM = 20 << 20
"""Bytes of lines from which a page holds them compressed: it opens as fast, and is half as long."""

SCRIPTS = ["run.js", "elements.js", "list.js", "conversation.js", "tokens.js", "group.js", "app.js"]


@dataclass(frozen=True)
class PageSummary:
    """A page that was written: its rows, those that the query selected but the limit left out, and its bytes."""

    rows: int
    left_out: int
    bytes: int

    def __str__(self) -> str:
        of = f"the first {self.rows:,} of {self.rows + self.left_out:,}" if self.left_out else f"{self.rows:,}"
        return f"{of} trajector{'y' if of == '1' else 'ies'}, {self.bytes / 1e6:.1f} MB"


def write_page(
    index: RunIndex,
    out: Path,
    *,
    query: str = "",
    tokenizer: str | None = None,
    limit_bytes: int = 50 << 20,
) -> PageSummary:
    """Write the rows that a query selects, in its order, as one page; an earlier page is replaced at the end.

    Args:
        index: is read on to the end first.
        out: the page's file.
        query: see `Query`.
        tokenizer: see `TokenTexts`.
        limit_bytes: of lines; the first rows up to that are taken, and at least one.

    Raises:
        ConfigError: the query makes no sense, or the name of `out` does not end in .html.
        OSError: the page cannot be written.
    """
    out = Path(out)
    if out.suffix not in (".html", ".htm"):  # so that no file of a run is overwritten by mistake
        raise ConfigError(f"a page's name ends in .html, got {str(out)!r}")
    parsed = Query.parse(query)
    texts = TokenTexts(index.path, tokenizer)
    selected = parsed.ordered(list(parsed.select(index.read_all())))
    fitting = sum(size <= limit_bytes for size in itertools.accumulate(row.size for row in selected))
    rows = selected[: max(1, fitting)]
    shown, by_number = {row.number for row in rows}, dict[int, Detail]()
    for row in rows:
        if row.number not in by_number:
            by_number |= details(index, index.group(row), shown)
    ids = sorted({token for row in rows for token in by_number[row.number].ids})
    run = about(index, texts) | {"rows": len(rows), "left_out": len(selected) - len(rows), "query": query}
    run["packed"] = sum(row.size for row in rows) > PACKED_FROM
    lines = b"".join(_line(*pair) for pair in index.lines(rows))
    blocks = {
        "figures": _json([figures(row) for row in rows]),
        "details": b"\n".join(_json(by_number[row.number].to_json()) for row in rows),
        "texts": _json({token: texts.text(token) for token in ids} if texts.known else {}),
        "report": _json(report(index)),
        "lines": base64.b64encode(gzip.compress(lines, 6)) if run["packed"] else lines,
    }
    head, tail = skeleton(run).split(b"{{data}}")
    with whole_file(out) as file:
        file.write(head)
        for name, block in blocks.items():
            file.write(f'<script type="text/plain" id="data-{name}">'.encode() + _escaped(block) + b"</script>\n")
        file.write(tail)
    return PageSummary(len(rows), len(selected) - len(rows), out.stat().st_size)


def about(index: RunIndex, texts: TokenTexts) -> dict[str, Any]:
    """Return what a page says of a run as a whole."""
    return {"name": index.name, "columns": COLUMNS, "no_texts": texts.why_not, "total": len(index)}


def skeleton(run: dict[str, Any], connect: str = "'none'") -> bytes:
    """Return the page with what it says of the run, and `{{data}}` where the rows go. Its Content-Security-Policy lets
    its own script alone run, and nothing be loaded but from `connect`."""
    folder = Path(__file__).parent
    script = b"\n".join((folder / name).read_bytes() for name in SCRIPTS)
    parts = {
        "script-hash": base64.b64encode(hashlib.sha256(script).digest()),
        "connect": connect.encode(),
        "title": escape(run["name"]).encode(),
        "style": (folder / "page.css").read_bytes(),
        "run": _escaped(_json(run)),
        "script": script,
    }
    page = (folder / "page.html").read_bytes()
    for name, part in parts.items():
        before, after = page.split(b"{{" + name.encode() + b"}}")
        page = before + part + after
    return page


def _line(row: Row, line: bytes) -> bytes:
    """A row's line as JSON; one that is no trajectory as a JSON string, whatever it holds."""
    return (line.strip() if row.readable else _json(line.decode(errors="replace").rstrip("\r\n"))) + b"\n"


def _escaped(part: bytes) -> bytes:
    """JSON in which nothing ends a script's element or opens a comment in it; as JSON it is the same."""
    return part.replace(b"</", b"<\\/").replace(b"<!--", b"\\u003c!--")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
