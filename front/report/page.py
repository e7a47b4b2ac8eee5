"""Reports as HTML: a fragment for the viewer's page, and a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from toolgym.exports.writing import becoming
from toolgym.report.plots import ReportPlots
from toolgym.report.report import Report
from toolgym.report.tables import FigureTable, notes_of, tables_of
from toolgym.viewer.run_index import RunIndex

CSS = """
.report table { border-collapse: collapse; font-variant-numeric: tabular-nums } .report .wide { overflow-x: auto }
.report :is(caption, th.text, td.text) { text-align: left } .report caption { font-weight: bold; padding: 1.2em 0 .4em }
.report :is(th, td) { padding: .2em .8em; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap }
.report .tables { display: flex; flex-wrap: wrap; column-gap: 3em } .report svg { width: 100%; height: auto }
.report .plots { display: grid; gap: 1em; grid-template-columns: repeat(auto-fill, minmax(min(26em, 100%), 1fr)) }
"""
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: report</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em }}</style>
<h1>{title}</h1>{fragment}</html>
"""


def report_fragment(index: RunIndex) -> str:
    """Return the report of a run as HTML that asks for nothing: tables, and plots as SVG."""
    return _fragment([Report.of(index)])


def write_page(reports: Sequence[Report], path: Path) -> None:
    """Write a page that needs no other file. A page at the path is replaced when the new one is whole."""
    title = escape(", ".join(report.name for report in reports))
    text = PAGE.format(title=title, fragment=_fragment(reports))
    with becoming(path, overwrite=True) as part:
        part.write_text(text, encoding="utf-8", errors="replace")


def _fragment(reports: Sequence[Report]) -> str:
    svgs = ReportPlots(reports).svgs().items()
    figures = "".join(f'<div role="img" aria-label="{name}">{svg}</div>' for name, svg in svgs)
    notes = "".join(f"<li>{escape(note)}" for note in notes_of(reports))
    first, *tables = map(_table, tables_of(reports))
    parts = f'{first}<ul>{notes}</ul><div class="plots">{figures}</div><div class="tables">{"".join(tables)}</div>'
    return f'<style>{CSS}</style><div class="report">{parts}</div>'


def _table(table: FigureTable) -> str:
    def line(tag: str, texts: Sequence[str]) -> str:
        cells = [f"<{tag}{' class=text' * (place < table.texts)}>{escape(text)}" for place, text in enumerate(texts)]
        return f"<tr>{''.join(cells)}"

    rows = "".join(line("td", row) for row in table.rows)
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="wide"><table>{caption}<thead>{line("th", table.head)}<tbody>{rows}</table></div>'
