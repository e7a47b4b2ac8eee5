"""The `toolgym` command."""

from __future__ import annotations

import importlib
import io
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console
from typer.core import TyperGroup

from toolgym.tools.errors import ConfigError, ToolgymError, nearest
from toolgym.version import __version__

COMMANDS = {
    "rollout": "Play tasks with a policy; write trajectories and a batch.",
    "eval": "Evaluate a policy on tasks of envs: pass@k, pass^k, reward, with intervals.",
    "report": "Report reward, pass@k, lengths, times and ends of runs, with intervals and plots.",
    "view": "Look at the trajectories of a run, in the terminal or as a page.",
    "play": "Play a task yourself, as the policy, in the terminal.",
    "replay": "Play a recorded run again, without its engine and tools, and compare.",
    "prepare": "Turn a public data set, as downloaded, into tasks.",
    "validate": "Play each task with its known solution and without a change, before a policy trains on it.",
    "envs": "List the ids of envs.",
    "check-env": "Check that an env keeps its contract, leaks nothing, and cannot be cheated.",
    "check-template": "Check whether a model's chat template keeps tokens exact.",
    "tools": "List the tools and their schemas, or run one once.",
    "doctor": "Say what this machine offers: isolation, languages, libraries.",
    "bench": "Measure this machine: sandbox, vector env, and the runner's turns.",
    "export": "Write a run in a format of another tool or trainer.",
    "serve": "Serve the sandbox, envs, sessions, a search, or a gateway for agents over HTTP.",
}
"""Each command and what it does. Its module, loaded when it is used, holds a `command`, or a group `app`."""

ELSEWHERE = {
    "eval": "toolgym.report.eval_command",
    "report": "toolgym.report.command",
    "play": "toolgym.commands.play",
    "tools": "toolgym.commands.tools",
    "doctor": "toolgym.commands.doctor",
    "bench": "toolgym.commands.bench",
    "export": "toolgym.exports.command",
    "view": "toolgym.viewer.command",
    "validate": "toolgym.validation.command",
}
"""Modules of the commands that are not `toolgym.cli.NAME`."""

EXIT_STATUS = "Exit status: 0 done, 1 an error, 2 wrong usage, 130 interrupted."


def as_command(function: Callable[..., None], **settings: Any) -> Any:
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(**settings)(function)
    return typer.main.get_command(single)


class LazyCommands(TyperGroup):
    """A group that makes a command when it is used. (Typer's copy of click has types without public names.)"""

    summaries: ClassVar[dict[str, str]] = COMMANDS

    def make(self, name: str) -> Any:
        module = importlib.import_module(ELSEWHERE.get(name, f"toolgym.cli.{name.replace('-', '_')}"))
        return typer.main.get_command(module.app) if hasattr(module, "app") else as_command(module.command)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.summaries)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in self.summaries:
            return None
        command = self.make(name)
        command.name = name
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help = f"{each.help}\n\n{EXIT_STATUS}"
            each.params.extend(option for option in self.params if option.name == "verbose")
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.summaries:
            ctx.fail(f"No such command {args[0]!r}{nearest(args[0], self.summaries) or '.'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


app = typer.Typer(
    name="toolgym",
    cls=LazyCommands,
    help="Gymnasium-style environments for training language models that use tools.",
    no_args_is_help=True,
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", expose_value=False, help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Gymnasium-style environments for training language models that use tools."""


def main() -> None:
    """Run the command line, with the exit status that `EXIT_STATUS` says."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark in a terminal that knows few characters
    if "" not in sys.path:  # for `module:Id`; behind all others, as a folder here may be called like a package
        sys.path.append("")
    try:
        app(prog_name="toolgym")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  also of the user's env or tool: one line, unless -v asks for more
        if _came_of_interrupt(error):
            sys.exit(130)
        text = str(error)
        if not isinstance(error, ToolgymError | OSError):  # such as a full disk behind standard output
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno}; -v shows the traceback)"
        if {"-v", "--verbose"} & set(sys.argv):
            traceback.print_exception(error)
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {text}", style="red", markup=False)
        # A path that is not there is a mistake in the command; a full disk is not.
        absent = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
        wrong = isinstance(error, ConfigError) and (absent or not isinstance(error.__cause__, OSError))
        sys.exit(2 if wrong else 1)


def _came_of_interrupt(error: BaseException | None) -> bool:
    """Whether an error came of Ctrl-C, as while a library is imported: some make it an error of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
