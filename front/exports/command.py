"""`toolgym export`: a run in the formats of other tools."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track

from toolgym.exports.writing import Options, Tally, becoming
from toolgym.tools.errors import ConfigError
from toolgym.tools.lazy import missing_extra

if TYPE_CHECKING:
    from toolgym.rollout.trajectory.trajectory import Trajectory
    from toolgym.viewer.run_index import Row, RunIndex

FILES = {"inspect": ".eval", "mooncake": ".jsonl", "parquet": ".parquet", "sft": ".jsonl"}
"""Formats of one file, and how its name ends."""

FOLDERS = {"atif": r".+\.json", "verl": r"-?\d+\.jsonl"}
"""Formats of a folder, and the names of the files in it."""


def _print_schema(wanted: bool) -> None:
    if wanted:
        from toolgym.exports.row_model import json_schema

        typer.echo(json.dumps(json_schema(), indent=2))
        raise typer.Exit


def command(
    run: Annotated[Path, typer.Argument(help="A file of trajectories, or the folder of a run.")],
    to: Annotated[Literal["atif", "inspect", "mooncake", "parquet", "sft", "verl"], typer.Option(help="The format.")],
    out: Annotated[Path, typer.Option(help="A folder for atif and verl, else a file.")],
    query: Annotated[str, typer.Option("--filter", help="Only these, such as 'success step=2 sort:-reward'.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many trajectories.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="inspect: whose texts tokens have; default: the run's.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="sft: those that earned it; default: successes.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="sft: exact token ids and labels, no messages.")] = False,
    scale: Annotated[int, typer.Option(min=1, help="mooncake: how often each token is repeated.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", callback=_print_schema, is_eager=True, help="Print the JSON Schema of a line.")
    ] = False,
) -> None:
    """Write a run in a format of another tool; docs/exports.md says what each holds."""
    try:
        from toolgym.viewer.query import Query
        from toolgym.viewer.run_index import RunIndex
        from toolgym.viewer.tokens import model_of
    except ImportError as error:
        raise missing_extra("export", "Exporting a run", error) from error
    if out.suffix != FILES.get(to, out.suffix):
        raise ConfigError(f"--out: a file of {to} ends in {FILES[to]}, got {str(out)!r}")
    for option, wish, format in (("--ids", ids, "sft"), ("--min-reward", min_reward is not None, "sft"),
                                 ("--tokenizer", tokenizer, "inspect"),
                                 ("--scale", scale > 1, "mooncake")):  # fmt: skip
        if wish and to != format:
            raise ConfigError(f"{option} is for --to {format}, got --to {to}")
    index = RunIndex(run).read_all()
    if any(out.resolve() in (path.resolve(), *path.resolve().parents) for path in index.files):
        raise ConfigError(f"--out {str(out)!r} is the run itself, or holds it: name another place")
    if out.suffix == ".jsonl" and out.resolve().parent == run.resolve():
        raise ConfigError(f"--out {str(out)!r} would be read as part of the run: name a file outside its folder")
    selection = Query.parse(query)
    rows = selection.ordered(list(selection.select(index)))[:limit]
    tally = Tally()
    began_at = min((row.started_at for row in rows if row.readable), default=0.0)
    options = Options(model_of(run) or "policy", run, began_at, tokenizer, min_reward, ids, scale)
    with becoming(out, overwrite=overwrite, members=FOLDERS.get(to, "")) as part:
        module = importlib.import_module(f"toolgym.exports.{to if to != 'inspect' else 'inspect_log'}")
        module.write(_trajectories(index, rows, tally), part, options, tally)
        if not tally.written:
            what = _counts(tally.left_out) if rows else f"none of {len(index)} is selected by {query!r}"
            raise ConfigError(f"there is no trajectory to write: {what}")
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": to, **vars(tally)}, indent=2))
        return
    typer.echo(f"{out}: {tally.written} rows of {len(rows)} trajectories, as {to}")
    typer.echo(f"left out: {_counts(tally.left_out) or 'nothing'}")
    typer.echo(f"{to} cannot hold: {_counts(tally.lost) or 'nothing'}")


def _counts(counter: dict[str, int]) -> str:
    return "; ".join(f"{what} ({count})" for what, count in counter.items())


def _trajectories(index: RunIndex, rows: list[Row], tally: Tally) -> Iterator[Trajectory]:
    console = Console(stderr=True)
    for row in track(rows, "exporting", console=console, transient=True, disable=not console.is_terminal):
        try:
            yield index.trajectory(row)
        except ConfigError:
            tally.left_out["unreadable"] += 1
