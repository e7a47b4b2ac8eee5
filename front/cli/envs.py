"""`toolgym envs`: the ids that `--env` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Annotated

import typer

from toolgym.cli.user_code import import_module


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="Only ids with this in them, such as sudoku or 'TextArena/*'; upper or lower case."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE", help="Import this module first, which may be in the current folder; repeatable."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Each id of the families too, which else have one line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each id with its line as JSON.")] = False,
) -> None:
    """List the ids of envs, with a line about each, or about each family of them."""
    from toolgym.envs.registry import registered
    from toolgym.tools.errors import ConfigError

    named: dict[str, str] = {}
    for text in env or ():
        module = text.partition(":")[0]  # of `module:Id`, as `toolgym rollout --env` takes it
        before = set(registered())
        import_module(module)
        named |= dict.fromkeys(set(registered()) - before, module)
    lines = {f"{named[id]}:{id}" if id in named else id: spec.description for id, spec in sorted(registered().items())}
    if name is not None:
        lines = {id: about for id, about in lines.items() if fnmatch(id.lower(), f"*{name.lower()}*")}
        if not lines:
            raise ConfigError(f"no id has {name!r} in it; `toolgym envs --all` lists every id")
    elif not every and not as_json:
        lines = _families_as_lines(lines)
    if as_json:
        typer.echo(json.dumps([{"id": id, "description": about} for id, about in lines.items()], indent=2))
        return
    width = max(map(len, lines))
    for id, about in lines.items():
        typer.echo(f"{id:<{width}}  {about}".rstrip())
    if name is None and not every:
        typer.echo("\nThe ids of a family: toolgym envs 'TextArena/*'. All: toolgym envs --all", err=True)


def _families_as_lines(lines: Mapping[str, str]) -> dict[str, str]:
    """The same lines, with one for each family that toolgym brings."""
    from toolgym.envs.ids import FAMILIES

    grouped: dict[str, str] = {}
    for id, about in lines.items():
        family = id.partition("/")[0]
        if family in FAMILIES:
            count = sum(other.startswith(f"{family}/") for other in lines)
            grouped[f"{family}/*"] = f"{FAMILIES[family]} ({count} ids)"
        else:
            grouped[id] = about
    return grouped
