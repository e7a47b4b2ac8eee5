"""The `toolgym` command."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
from rich.console import Console

from toolgym.check_template_command import check_template_command
from toolgym.doctor_command import doctor_command
from toolgym.replay_command import replay_command
from toolgym.rollout_command import rollout_command
from toolgym.serve_command import serve_app
from toolgym.tools.errors import ToolgymError
from toolgym.version import __version__

app = typer.Typer(
    name="toolgym",
    help="Gymnasium-style environments for training language models that use tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"toolgym {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Gymnasium-style environments for training language models that use tools."""


app.command("rollout")(rollout_command)
app.command("replay")(replay_command)
app.command("doctor")(doctor_command)
app.command("check-template")(check_template_command)
app.add_typer(serve_app)


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark in a terminal that knows few characters
    try:
        app()
    except (ToolgymError, OSError) as error:  # of the latter, a full disk behind standard output for example
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
