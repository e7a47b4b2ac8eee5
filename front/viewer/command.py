"""`toolgym view`: a run in the terminal, or as a page."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolgym.tools.errors import ConfigError
from toolgym.tools.lazy import missing_extra

if TYPE_CHECKING:
    from toolgym.viewer.run_index import RunIndex

DEMO = Path(__file__).parent / "demo"


def command(
    path: Annotated[
        Path | None, typer.Argument(help="A run's folder, a file of trajectories, or a folder of verl's dumps.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a run that comes with the library.")] = False,
    query: Annotated[
        str, typer.Option("--filter", metavar="QUERY", help="Show these rows alone, such as 'failed sort:-turns'.")
    ] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="The tokenizer's folder or name; default: the one that run.json names.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page that needs nothing else instead.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Most megabytes of trajectories in the page of --html.")
    ] = 50,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page, which follows the run, instead.")] = False,
    host: Annotated[str, typer.Option(help="Where --serve listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where --serve listens.")] = 8090,
) -> None:
    """Look at the trajectories of a run: conversations, tokens, groups, branches. `?` shows the keys."""
    if demo is (path is not None):
        raise ConfigError("say what to show: a file or folder of trajectories, or --demo")
    if html is not None and serve:
        raise ConfigError("--html writes a page and --serve serves it: choose between them")
    try:
        from toolgym.viewer.query import Query
        from toolgym.viewer.run_index import RunIndex
    except ImportError as error:
        raise missing_extra("view", "toolgym view", error) from error
    Query.parse(query)
    index = RunIndex(DEMO if path is None else path)
    if html is not None:
        from toolgym.viewer.page.write import write_page

        summary = write_page(index.read_all(), html, query=query, tokenizer=tokenizer, limit_bytes=limit << 20)
        typer.echo(f"{html}: {summary}")
    elif serve:
        from toolgym.viewer.page.serve import serve_page

        asyncio.run(serve_page(index, host=host, port=port, tokenizer=tokenizer))
    else:
        _show(index, query, tokenizer)


def _show(index: RunIndex, query: str, tokenizer: str | None) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("there is no terminal here: write a page with --html OUT.html, or serve it with --serve")
    try:
        from toolgym.viewer.terminal.app import RunViewer
    except ImportError as error:
        raise missing_extra("view", "toolgym view", error) from error
    viewer = RunViewer(index, query=query, tokenizer=tokenizer)
    viewer.run()
    if viewer.opened.error is not None:
        raise viewer.opened.error
