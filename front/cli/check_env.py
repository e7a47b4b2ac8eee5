"""`toolgym check-env`: whether an env keeps its contract, leaks nothing, and gives rewards that can be trusted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs
from toolgym.tools.errors import missing_file

_WORDS = {True: ("passed", "green"), False: ("FAILED", "bold red"), None: ("not checked", "yellow")}


def command(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="An id (see `toolgym envs`), or module:Id.", autocompletion=env_ids)
    ],
    env_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the env as a JSON object.")
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A turn of the episode that is played, in order; repeatable."),
    ] = None,
    full_reward: Annotated[float, typer.Option(help="What the known solution earns.")] = 1.0,
    silent_reward: Annotated[float, typer.Option(help="The most that an empty answer earns.")] = 0.0,
    hidden: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A text that the policy must not be able to read; repeatable."),
    ] = None,
    repeatable: Annotated[
        bool, typer.Option(help="Whether the same seed and actions lead to the same observations and rewards.")
    ] = True,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps within which an episode must end.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play an env, cancel it, count what it leaves behind, attack its verdict. Exit status 1 when a check failed."""
    from toolgym.testing.env_report import CheckResult, PlayOptions, run_checks

    spec = load_env(env)
    kwargs = {**spec.kwargs, **read_env_kwargs(env_kwargs)}
    options: PlayOptions = {
        "repeatable": repeatable,
        "max_steps": max_steps,
        "full_reward": full_reward,
        "silent_reward": silent_reward,
        "hidden": [_read(path) for path in hidden or ()],
    }
    console = Console(highlight=False, soft_wrap=True)
    asyncio.run(spec.build(kwargs).close())  # a mistake in the arguments is one error, not one for each check

    async def run() -> list[CheckResult]:
        results = []
        async for result in run_checks(lambda: spec.build(kwargs), action, **options):
            results.append(result)
            if not as_json:
                word, colour = _WORDS[result.passed]
                console.print(f"{word:<12} {result.name}: {result.description}", style=colour, markup=False)
                if result.detail:
                    console.print(f"{'':<12} {result.detail}", markup=False)
        return results

    results = asyncio.run(run())
    if as_json:
        console.print_json(json.dumps([dataclasses.asdict(result) for result in results]))
    raise typer.Exit(1 if any(result.passed is False for result in results) else 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise missing_file("hidden text", path) from None
