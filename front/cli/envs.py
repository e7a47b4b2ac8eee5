"""`toolgym envs`: the ids that `--env` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from toolgym.cli.user_code import import_module

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("envs")
def envs_command(
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE", help="Import this module first, which may be in the current folder; repeatable."
        ),
    ] = None,
) -> None:
    """List the ids of envs, with a line about each."""
    from toolgym.envs.registry import registered

    own: dict[str, str] = {}
    for name in env or ():
        module = name.partition(":")[0]  # of `module:Id`, as `toolgym rollout --env` takes it
        before = set(registered())
        import_module(module)
        own |= dict.fromkeys(set(registered()) - before, module)
    specs = {f"{own[id]}:{id}" if id in own else id: spec for id, spec in sorted(registered().items())}
    width = max(map(len, specs))
    for name, spec in specs.items():
        typer.echo(f"{name:<{width}}  {spec.description}".rstrip())
