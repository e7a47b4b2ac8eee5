"""`toolgym replay`: play a recorded run again without engine, network and sandbox, and compare every byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from toolgym.cli.files import require_absent

if TYPE_CHECKING:
    from toolgym.rollout.recording.replay import Replay


SHOWN = 5
"""Differences that are printed whole."""


def command(
    file: Annotated[Path, typer.Argument(help="A file that `toolgym rollout --record FILE` wrote.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or name, if the recorded one is not on this machine.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the replayed trajectories to this JSON Lines file.")] = None,
    allow_edited: Annotated[
        bool, typer.Option("--allow-edited", help="Replay a recording that was changed by hand.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file at --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a recorded run again. Exit status 1 when a byte differs, or when there is nothing to compare."""
    from toolgym.rollout.models.tiny import tiny_policy_path
    from toolgym.rollout.models.tokenizer import load_tokenizer
    from toolgym.rollout.recording.cassette import Cassette
    from toolgym.rollout.recording.replay import replay
    from toolgym.rollout.trajectory.file import TrajectoryWriter
    from toolgym.tools.errors import ConfigError

    if out is not None and out.resolve() == file.resolve():
        raise ConfigError(f"--out {str(out)!r} is the recording itself, which would be lost: name another file")
    if out is not None and not overwrite:
        require_absent("--out", out)
    cassette = Cassette.load(file, allow_edited=allow_edited)
    run = cassette.run
    if run is None:
        raise ConfigError(f"{str(file)!r} holds no run: record one with toolgym rollout --record FILE")
    source = tokenizer or run["tokenizer"].get("source")
    if source is None:
        raise ConfigError(f"{str(file)!r} does not say where its tokenizer is: give it with --tokenizer")
    loaded = load_tokenizer(tiny_policy_path() if source == "tiny" else source)
    result = asyncio.run(replay(cassette, loaded))
    if out is not None:
        with TrajectoryWriter(out) as writer:
            for trajectory in result.trajectories:
                writer.write(trajectory)
    if as_json:
        lists = {
            name: list(map(str, getattr(result, name))) for name in ("differences", "unfinished", "not_made", "misses")
        }
        summary = {"env": run["env"], "compared": result.compared, "trajectories": None if out is None else str(out)}
        typer.echo(json.dumps(summary | lists, indent=2))
    else:
        _report(result, run["env"], out)
    raise typer.Exit(0 if result.equal and result.compared else 1)


def _report(result: Replay, env: str, out: Path | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for difference in result.differences[:SHOWN]:
        console.print(str(difference), markup=False)
    hidden = len(result.differences) - SHOWN
    if hidden > 0:
        console.print(f"... and {hidden} more episodes differ", markup=False)
    for difference in result.differences[:1]:
        missed = next((miss for miss in result.misses if miss.startswith(f"{difference.episode}:")), None)
        if missed is not None:
            console.print(f"not recorded: {missed}", style="red", markup=False)
    if result.unfinished:
        console.print(
            f"{len(result.unfinished)} episodes were not finished when the recording ended, and were played as far as "
            f"it goes; the first is {result.unfinished[0]}",
            style="yellow",
            markup=False,
        )
    if result.not_made:
        console.print(f"{len(result.not_made)} episodes had no env when they were recorded", style="yellow")
    equal = result.compared - len(result.differences)
    console.print(
        f"{equal} of {result.compared} episodes of {env} are equal byte for byte: ids, masks, log-probabilities, texts "
        "and rewards (not compared: random ids and wall times)",
        style="green" if result.equal and result.compared else "red",
        markup=False,
    )
    if out is not None:
        console.print(f"trajectories  {out}", markup=False)
