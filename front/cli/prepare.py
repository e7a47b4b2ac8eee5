"""`toolgym prepare`: a public data set, as downloaded, becomes tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toolgym.cli.files import require_absent


def _names(incomplete: str) -> list[str]:
    from toolgym.envs.tasks.prepare.recipes import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="gsm8k, math, dapo-math, hotpotqa, 2wiki, musique, nq, triviaqa, popqa, bamboogle, mbpp, humaneval, "
            "apps, taco, codecontests, codeforces, livecodebench, leetcode, synthetic-1 or deepcoder.",
            autocompletion=_names,
        ),
    ],
    source: Annotated[
        Path,
        typer.Option("--in", help="The file as downloaded (JSON Lines, also .gz, JSON, Parquet), or a folder of such."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where to write the tasks: .parquet or .jsonl.")],
    split: Annotated[
        str | None,
        typer.Option(
            help="Split that the rows say; of mbpp, which file has all, those of this split. "
            "[default: that in the file's name, else train]"
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="First message, in place of the data set's own; '' for none.")
    ] = None,
    agent_name: Annotated[
        str | None, typer.Option(help="Column agent_name, by which verl chooses its agent loop: toolgym_agent.")
    ] = None,
    tools_kwargs: Annotated[
        bool, typer.Option(help="What the env's own tools are made with; without it the rows fit any env.")
    ] = True,
    ignore_column: Annotated[
        list[str] | None,
        typer.Option(help="A column that may be overlooked, although its name is that of one that matters; repeat it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn a public data set, as downloaded, into tasks in verl's row shape."""
    from toolgym.envs.tasks.prepare.recipes import Preparation
    from toolgym.envs.tasks.writing import write_tasks

    tasks = Preparation(name, source, split, system, agent_name, tools_kwargs, ignore_column or ())
    if not overwrite:
        require_absent("--out", out)
    count = write_tasks(out, tasks)
    for reason, left_out in tasks.left_out.items():
        typer.echo(f"{left_out} left out: each {reason}", err=True)
    summary = {"tasks": count, "path": str(out), "env": tasks.recipe.env_id, "left_out": dict(tasks.left_out)}
    typer.echo(json.dumps(summary, indent=2) if as_json else f"{out}: {count} tasks for {tasks.recipe.env_id}")
