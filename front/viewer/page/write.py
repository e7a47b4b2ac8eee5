"""`write_page`: a run as one HTML file that needs nothing else, neither a server nor the network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

from toolgym.tools.errors import ConfigError
from toolgym.viewer.page.payload import COLUMNS, Detail, details, figures, report
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.tokens import TokenTexts

PACKED_FROM = 20 << 20
"""Bytes of lines from which a page holds them compressed: it opens as fast, and is half as long."""

SCRIPTS = ["query.js", "run.js", "elements.js", "list.js", "conversation.js", "tokens.js", "group.js", "app.js"]

_DOCTYPE = b"<!doctype html>"


@dataclass(frozen=True)
class PageSummary:
    """A page that was written: its rows, those that the query selected but the limit left out, and its bytes."""

    path: Path
    rows: int
    left_out: int
    bytes: int

    def __str__(self) -> str:
        of = f"the first {self.rows:,} of {self.rows + self.left_out:,}" if self.left_out else f"{self.rows:,}"
        return f"{self.path}: {of} trajectories, {self.bytes / 1e6:.1f} MB"


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
        ConfigError: the query makes no sense, or `out` is something else than a page.
        OSError: the page cannot be written.
    """
    out = Path(out)
    if out.exists() and not _is_page(out):
        raise ConfigError(f"{str(out)!r} is there and is no page: name another file, such as {out.stem}.html")
    parsed = Query.parse(query)
    texts = TokenTexts(index.path, tokenizer)
    selected = parsed.ordered(list(parsed.select(index.read_all())))
    rows = _within(selected, limit_bytes)
    by_number = _details(index, rows)
    ids = sorted({token for row in rows for token in by_number[row.number].ids})
    run = about(index, texts) | {"rows": len(rows), "left_out": len(selected) - len(rows), "query": query}
    run["packed"] = sum(row.size for row in rows) > PACKED_FROM
    blocks = {
        "figures": iter([_json([figures(row) for row in rows])]),
        "details": (_json(by_number[row.number].to_json()) + b"\n" for row in rows),
        "texts": iter([_json({token: texts.text(token) for token in ids} if texts.known else {})]),
        "report": iter([_json(report(index))]),
        "lines": _packed(lines(index, rows)) if run["packed"] else lines(index, rows),
    }
    head, tail = skeleton(run).split(b"{{data}}")
    with NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}.", delete=False) as file:
        try:
            file.write(head)
            for name, parts in blocks.items():
                _write_block(file, name, parts)
            file.write(tail)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, out)
        except BaseException:
            os.unlink(file.name)
            raise
    return PageSummary(out, len(rows), len(selected) - len(rows), out.stat().st_size)


def about(index: RunIndex, texts: TokenTexts) -> dict[str, Any]:
    """Return what a page says of a run as a whole."""
    return {"name": index.name, "columns": COLUMNS, "no_texts": texts.why_not, "total": len(index)}


def policy(script: bytes, connect: str = "'none'") -> str:
    """The page's Content-Security-Policy: its own script alone runs, and nothing is loaded."""
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def skeleton(run: dict[str, Any], connect: str = "'none'") -> bytes:
    """Return the page with what it says of the run, and `{{data}}` where the rows go."""
    folder = Path(__file__).parent
    script = b"\n".join((folder / name).read_bytes() for name in SCRIPTS)
    parts = {
        "policy": policy(script, connect).encode(),
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


def line_text(line: bytes, row: Row) -> bytes:
    """A row's line as JSON, without its end; one that is no trajectory as a JSON string, whatever it holds."""
    return line.strip() if row.readable else _json(line.decode(errors="replace").rstrip("\r\n"))


def lines(index: RunIndex, rows: list[Row]) -> Iterator[bytes]:
    return (line_text(line, row) + b"\n" for row, line in index.lines(rows))


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_DOCTYPE)) in (_DOCTYPE, b"")


def _within(rows: list[Row], limit: int) -> list[Row]:
    size = 0
    for count, row in enumerate(rows):
        size += row.size
        if size > limit and count:
            return rows[:count]
    return rows


def _details(index: RunIndex, rows: list[Row]) -> dict[int, Detail]:
    shown = {row.number for row in rows}
    by_number: dict[int, Detail] = {}
    for row in rows:
        if row.number not in by_number:
            by_number |= details(index, index.group(row), shown)
    return by_number


def _write_block(file: IO[bytes], name: str, parts: Iterator[bytes]) -> None:
    file.write(f'<script type="text/plain" id="data-{name}">'.encode())
    for part in parts:
        file.write(_escaped(part))
    file.write(b"</script>\n")


def _escaped(part: bytes) -> bytes:
    """JSON in which nothing ends a script's element or opens a comment in it; as JSON it is the same."""
    return part.replace(b"</", b"<\\/").replace(b"<!--", b"\\u003c!--")


def _packed(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Compress by gzip, as base64 in pieces of three bytes."""
    gzip, rest = zlib.compressobj(6, wbits=31), b""
    for part in parts:
        rest += gzip.compress(part)
        whole = len(rest) - len(rest) % 3
        if whole:
            yield base64.b64encode(rest[:whole])
            rest = rest[whole:]
    yield base64.b64encode(rest + gzip.flush())


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
