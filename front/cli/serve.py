"""`toolgym serve`: the library's parts as servers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs

app = typer.Typer(
    name="serve",
    help="Serve the sandbox, envs, sessions, or a search over HTTP.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


# ------------------------------------------------------------------ options of every server

_Config = Annotated[Path | None, typer.Option(help="Settings in YAML, see --print-config; flags win.")]
_Host = Annotated[str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].")]
_SessionIdleTimeout = Annotated[
    float | None, typer.Option(help="Seconds after which an idle session is closed [default: 1800].")
]
_TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token that clients must send.")]
_LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error [default: info].")]
_AccessLog = Annotated[
    str | None, typer.Option(help="A line in the log for each request: none or requests [default: none].")
]
_PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print all settings and what they mean, for --config, and exit.")
]


def _token(variable: str) -> Any:
    """The option `--token`, which a variable of the environment may give."""
    return typer.Option(
        envvar=variable,
        show_envvar=True,
        help="The token itself; better by the variable, since others can see a command line.",
    )


# ------------------------------------------------------------------ the servers


@app.callback()
def _root() -> None:
    """Serve the sandbox, envs, sessions, or a search over HTTP."""


@app.command("sandbox")
def sandbox_command(
    config: _Config = None,
    host: _Host = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0: any free one [default: 8080].")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes [default: one per four processors].")] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Programs at once, those that sleep included [default: 32 per processor].")
    ] = None,
    max_computing: Annotated[
        int | None, typer.Option(help="How many of them may compute [default: 4 per processor].")
    ] = None,
    max_queue: Annotated[
        int | None, typer.Option(help="Requests that may wait; more get a 429 [default: 4096].")
    ] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Open sessions [default: 1024].")] = None,
    session_idle_timeout: _SessionIdleTimeout = None,
    drain_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running programs get when the server stops [default: 30].")
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(help="Weakest acceptable level: namespaces, uid or landlock [default: the strongest there is]."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="What programs can reach: off, loopback or host [default: off].")
    ] = None,
    datasets: Annotated[
        Path | None, typer.Option(help="Folder of data sets, NAME.jsonl each, to judge programs by.")
    ] = None,
    token_file: _TokenFile = None,
    token: Annotated[str | None, _token("TOOLGYM_SANDBOX_TOKEN")] = None,
    log_level: _LogLevel = None,
    access_log: _AccessLog = None,
    print_config: _PrintConfig = False,
) -> None:
    """Serve the sandbox: SandboxFusion's API and stateful sessions.

    Stops on SIGTERM or Ctrl-C after what runs has finished. Exit status: 0 it was stopped, 1 an error, 2 wrong usage.
    """
    from toolgym.tools.sandbox.server.config import load_config
    from toolgym.tools.sandbox.server.serve import serve
    from toolgym.tools.serving.settings_file import settings_file
    from toolgym.tools.serving.worker import LOG_FORMAT

    flags = {
        "host": host,
        "port": port,
        "workers": workers,
        "max_concurrency": max_concurrency,
        "max_computing": max_computing,
        "max_queue": max_queue,
        "max_sessions": max_sessions,
        "session_idle_timeout": session_idle_timeout,
        "drain_timeout": drain_timeout,
        "isolation": isolation,
        "network": network,
        "datasets": None if datasets is None else str(datasets),
        "token_file": token_file,
        "token": token,
        "log_level": log_level,
        "access_log": access_log,
    }
    settings = load_config(config, flags)
    if print_config:
        typer.echo(settings_file(settings, "toolgym serve sandbox"), nl=False)
        return
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    count = f"{settings.workers} worker{'s'[: settings.workers > 1]}"
    typer.echo(f"starting the sandbox server with {count}; their libraries take some seconds to load", err=True)
    console = Console(soft_wrap=True, highlight=False)
    asyncio.run(serve(settings, lambda text: console.print(text, markup=False)))


@app.command("openenv")
def openenv_command(
    envs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV]...",
            help="Ids (see `toolgym envs`), or module:Id. The first is the default.",
            autocompletion=env_ids,
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="ENV", help="The same as ENV; repeatable.", autocompletion=env_ids)
    ] = None,
    env_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments of each ENV as a JSON object; for one each see --print-config."),
    ] = None,
    config: _Config = None,
    host: _Host = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0: any free one [default: 8000].")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Open sessions, an env each [default: 1024].")] = None,
    session_idle_timeout: _SessionIdleTimeout = None,
    reset_timeout: Annotated[float | None, typer.Option(help="Seconds for a reset [default: 600].")] = None,
    step_timeout: Annotated[float | None, typer.Option(help="Seconds for a step [default: 600].")] = None,
    num_tasks: Annotated[int | None, typer.Option(help="Tasks of a split that has no end [default: 1000].")] = None,
    drain_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running steps get when the server stops [default: 30].")
    ] = None,
    token_file: _TokenFile = None,
    token: Annotated[str | None, _token("TOOLGYM_OPENENV_TOKEN")] = None,
    log_level: _LogLevel = None,
    access_log: _AccessLog = None,
    print_config: _PrintConfig = False,
) -> None:
    """Serve envs: OpenEnv's API and the Open Reward Standard, for trainers that take a URL.

    Stops on SIGTERM or Ctrl-C after what runs has finished. Exit status: 0 it was stopped, 1 an error, 2 wrong usage.
    """
    from toolgym.envs.served.environments.config import load_config
    from toolgym.envs.served.environments.serve import serve
    from toolgym.tools.errors import ConfigError
    from toolgym.tools.serving.settings_file import settings_file
    from toolgym.tools.serving.worker import LOG_FORMAT

    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "max_sessions": max_sessions,
        "session_idle_timeout": session_idle_timeout,
        "reset_timeout": reset_timeout,
        "step_timeout": step_timeout,
        "num_tasks": num_tasks,
        "drain_timeout": drain_timeout,
        "token_file": token_file,
        "token": token,
        "log_level": log_level,
        "access_log": access_log,
    }
    named = [*(envs or ()), *(env or ())]
    if named:
        flags["envs"] = dict.fromkeys(named, read_env_kwargs(env_kwargs))
    elif env_kwargs is not None:
        raise ConfigError("--env-kwargs goes with ENV; in a file each env has its own")
    settings = load_config(config, flags)
    if print_config:
        typer.echo(settings_file(settings, "toolgym serve openenv"), nl=False)
        return
    if not settings.envs:
        raise ConfigError("name at least one env to serve, such as CodeInterpreter-v0 (`toolgym envs` lists them)")
    for name in settings.envs:
        load_env(name)  # here, where a mistake stops the command
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    console = Console(soft_wrap=True, highlight=False)
    asyncio.run(serve(settings, lambda text: console.print(text, markup=False)))


@app.command("sessions")
def sessions_command(
    backend: Annotated[
        str | None,
        typer.Option(help="repository, env, sandbox_fusion, or module:Class of your own [default: repository]."),
    ] = None,
    backend_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the backend as a JSON object.")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(help="File that holds the sessions, to go on with later [default: sessions.db].")
    ] = None,
    config: _Config = None,
    host: _Host = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0: any free one [default: 5000].")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Open sessions [default: 1024].")] = None,
    max_sessions_per_client: Annotated[
        int | None, typer.Option(help="Open sessions of one client [default: 1024].")
    ] = None,
    session_idle_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which an idle session is deleted [default: 3600].")
    ] = None,
    drain_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running calls get when the server stops [default: 30].")
    ] = None,
    clients_file: Annotated[Path | None, typer.Option(help="YAML file with names of clients and their tokens.")] = None,
    token_file: _TokenFile = None,
    token: Annotated[str | None, _token("TOOLGYM_SESSIONS_TOKEN")] = None,
    log_level: _LogLevel = None,
    access_log: _AccessLog = None,
    print_config: _PrintConfig = False,
) -> None:
    """Serve sessions: veRL's multi-turn sandbox protocol, over repositories to repair, envs, or SandboxFusion.

    Stops on SIGTERM or Ctrl-C after what runs has finished; the sessions go on when it is started again. Exit status: 0
    it was stopped, 1 an error, 2 wrong usage.
    """
    from toolgym.envs.served.sessions.config import load_config, make_backend
    from toolgym.envs.served.sessions.serve import serve
    from toolgym.tools.serving.settings_file import settings_file
    from toolgym.tools.serving.worker import LOG_FORMAT

    flags = {
        "backend": backend,
        "backend_kwargs": None if backend_kwargs is None else read_env_kwargs(backend_kwargs, "--backend-kwargs"),
        "database": database,
        "host": host,
        "port": port,
        "max_sessions": max_sessions,
        "max_sessions_per_client": max_sessions_per_client,
        "session_idle_timeout": session_idle_timeout,
        "drain_timeout": drain_timeout,
        "clients_file": clients_file,
        "token_file": token_file,
        "token": token,
        "log_level": log_level,
        "access_log": access_log,
    }
    settings = load_config(config, flags)
    if print_config:
        typer.echo(settings_file(settings, "toolgym serve sessions"), nl=False)
        return
    make_backend(settings.backend, settings.backend_kwargs)  # here, where a mistake stops the command
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    console = Console(soft_wrap=True, highlight=False)
    asyncio.run(serve(settings, lambda text: console.print(text, markup=False)))


@app.command("search")
def search_command(
    corpus: Annotated[Path | None, typer.Option(help="The file of passages, in JSON Lines.")] = None,
    index: Annotated[Path | None, typer.Option(help="Folder of its index [default: beside the file].")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model whose vectors are compared [default: none, BM25].")
    ] = None,
    topk: Annotated[int | None, typer.Option(help="Passages where a request does not say [default: 3].")] = None,
    config: _Config = None,
    host: _Host = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0: any free one [default: 8000].")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, which read one index [default: 1].")] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Requests that search at once [default: 4 per processor].")
    ] = None,
    drain_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running searches get when the server stops [default: 30].")
    ] = None,
    token_file: _TokenFile = None,
    token: Annotated[str | None, _token("TOOLGYM_SEARCH_TOKEN")] = None,
    log_level: _LogLevel = None,
    access_log: _AccessLog = None,
    print_config: _PrintConfig = False,
) -> None:
    """Serve passages of a file: Search-R1's `/retrieve`, and the older `/observation_kilt/`.

    Stops on SIGTERM or Ctrl-C after what runs has finished. Exit status: 0 it was stopped, 1 an error, 2 wrong usage.
    """
    from toolgym.tools.search.server.config import load_config
    from toolgym.tools.search.server.open_retriever import open_retriever
    from toolgym.tools.search.server.serve import serve
    from toolgym.tools.serving.settings_file import settings_file
    from toolgym.tools.serving.worker import LOG_FORMAT

    flags = {
        "corpus": corpus,
        "index": index,
        "model": model,
        "topk": topk,
        "host": host,
        "port": port,
        "workers": workers,
        "max_concurrency": max_concurrency,
        "drain_timeout": drain_timeout,
        "token_file": token_file,
        "token": token,
        "log_level": log_level,
        "access_log": access_log,
    }
    settings = load_config(config, flags)
    if print_config:
        typer.echo(settings_file(settings, "toolgym serve search"), nl=False)
        return
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    asyncio.run(open_retriever(settings).close())  # here, where a mistake stops the command; once for all workers
    console = Console(soft_wrap=True, highlight=False)
    asyncio.run(serve(settings, lambda text: console.print(text, markup=False)))
