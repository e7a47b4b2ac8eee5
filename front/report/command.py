"""`toolgym report`: the figures of runs, with intervals and plots."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.tools.lazy import missing_extra

try:
    from toolgym.report.report import By, Report, compare
    from toolgym.report.tables import FigureTable, notes_of, tables_of
    from toolgym.viewer.query import Query
    from toolgym.viewer.run_index import RunIndex
except ImportError as error:
    raise missing_extra("report", "toolgym report", error) from error

DEMO = Path(__file__).parents[1] / "viewer" / "demo"


def command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or files; verl's dumps too.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Report the run that comes with the library.")] = False,
    by: Annotated[By | None, typer.Option(help="Parts of a run; default: steps, or else envs, if several.")] = None,
    k: Annotated[str | None, typer.Option("-k", metavar="1,4,8", help="Each k of pass@k; default: 1,2,4,...")] = None,
    select: Annotated[str, typer.Option("--filter", metavar="QUERY", help="Only these, as in `toolgym view`.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
    png: Annotated[Path | None, typer.Option(help="Write the plots as a file that ends in .png.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write tables and plots as a page.")] = None,
) -> None:
    """Report reward, success, pass@k, lengths, times and ends of runs; of several beside each other."""
    paths = [*(runs or ()), *([DEMO] if demo else ())]
    if not paths:
        raise ConfigError("expected a folder of a run, or a file of trajectories; --demo has one to try")
    ks, reports = read_ks(k), []
    for path in paths:
        index = RunIndex(path).read_all()
        reports.append(Report.of(index, Query.parse(select).select(index), by, ks))
        if not reports[-1].whole.figures["episodes"]:
            raise ToolgymError(": ".join([f"{str(path)!r} has no episodes to report", *reports[-1].notes]))
    reports = told_apart(reports)
    if png is not None:
        if png.suffix != ".png":
            raise ConfigError(f"--png takes a file that ends in .png, got {str(png)!r}")
        from toolgym.report.plots import ReportPlots

        ReportPlots(reports).write_png(png)
    if html is not None:
        from toolgym.report.page import write_page

        write_page(reports, html)
    if as_json:
        differences = {other.path: compare(reports[0], other) for other in reports[1:]}
        value = {"runs": [report.to_json() for report in reports], "differences": differences}
        typer.echo(json.dumps(value, indent=2, default=dataclasses.asdict))
        return
    written = [f"written: {path}" for path in (png, html) if path is not None]
    print_tables(tables_of(reports), [*(f"- {note}" for note in notes_of(reports)), *written])


def read_ks(k: str | None) -> list[int] | None:
    """Read the option `-k`. Raises ConfigError for what is no list of whole numbers."""
    try:
        return None if k is None else sorted(int(part) for part in k.split(","))
    except ValueError:
        raise ConfigError(f"-k takes whole numbers, such as 1,4,8, got {k!r}") from None


def told_apart(reports: list[Report]) -> list[Report]:
    """Return reports whose names differ: if some are the same, their paths."""
    if len({report.name for report in reports}) == len(reports):
        return reports
    return [dataclasses.replace(report, name=report.path) for report in reports]


def print_tables(tables: Iterable[FigureTable], lines: Iterable[str]) -> None:
    """Print tables, and lines below them, on standard output."""
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())  # no colours in a pipe, whatever asks for it
    for table in tables:
        console.print(_rich(table), "")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _rich(table: FigureTable) -> Table:
    shown = Table(title=Text(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    shown.padding = (0, 1, 0, 0)
    for place, name in enumerate(table.head):
        is_text = place < table.texts
        shown.add_column(Text(name), justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
