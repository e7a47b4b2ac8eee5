"""`toolgym serve`: the library's parts as servers, each a command whose flags come from its settings' class."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

import typer
from rich.console import Console

from toolgym.cli.app import LazyCommands, as_command
from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.tools.serving.config import ServingConfig

HELP = "Serve the sandbox, envs, sessions, a search, or a gateway for agents over HTTP."

STOPS = "Stops on SIGTERM or Ctrl-C after what runs has finished."


def _named_envs(
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
) -> dict[str, Any]:
    names = [*(envs or ()), *(env or ())]
    if names:
        return {"envs": dict.fromkeys(names, read_env_kwargs(env_kwargs))}
    if env_kwargs is not None:
        raise ConfigError("--env-kwargs goes with ENV; in a file each env has its own")
    return {}


def _check_envs(config: Any) -> None:
    if not config.envs:
        raise ConfigError("name at least one env to serve, such as CodeInterpreter-v0 (`toolgym envs` lists them)")
    for name in config.envs:
        load_env(name)


def _check_backend(config: Any) -> None:
    from toolgym.envs.served.sessions.config import make_backend

    make_backend(config.backend, config.backend_kwargs)


def _make_index(config: Any) -> None:
    """Make the index once for all workers."""
    asyncio.run(config.open_retriever().close())


def _announce_start(config: Any) -> None:
    count = f"{config.workers} worker{'s'[: config.workers > 1]}"
    typer.echo(f"starting the sandbox server with {count}; their libraries take some seconds to load", err=True)


@dataclass(frozen=True)
class _Server:
    settings: str
    """The settings' class, `module:Class`."""
    help: str
    before: Callable[[Any], None]
    """Called with the settings before the workers start: mistakes stop the command here."""
    arguments: Callable[..., dict[str, Any]] = lambda: {}  # noqa: PIE807  `dict` has no signature
    """Takes further parameters of the command; returns the settings that they give."""


SERVERS = {
    "sandbox": _Server(
        "toolgym.tools.integrations.sandbox_fusion.config:EvaluatingServerConfig",
        "Serve the sandbox: SandboxFusion's API and stateful sessions.",
        _announce_start,
    ),
    "openenv": _Server(
        "toolgym.envs.served.environments.config:EnvServerConfig",
        "Serve envs: OpenEnv's API and the Open Reward Standard, for trainers that take a URL.",
        _check_envs,
        _named_envs,
    ),
    "sessions": _Server(
        "toolgym.envs.served.sessions.config:SessionServerConfig",
        "Serve sessions: veRL's multi-turn sandbox protocol, over repositories to repair, envs, or SandboxFusion. "
        "A server that is started again continues its sessions.",
        _check_backend,
    ),
    "search": _Server(
        "toolgym.tools.search.server.config:SearchServerConfig",
        "Serve passages of a file: Search-R1's `/retrieve`, and the older `/observation_kilt/`.",
        _make_index,
    ),
    "capture": _Server(
        "toolgym.rollout.capture.gateway.config:CaptureConfig",
        "Serve a gateway for agents: OpenAI's and Anthropic's APIs over an engine, which keeps exact tokens.",
        lambda config: typer.echo(f"starting engine {config.engine}", err=True),
    ),
}
"""The servers by the names of their commands."""


class ServerCommands(LazyCommands):
    """The commands of `SERVERS`. Each is made when it is used, since its flags need its settings' class."""

    summaries: ClassVar[dict[str, str]] = {name: server.help for name, server in SERVERS.items()}

    def make(self, name: str) -> Any:
        return as_command(_command(SERVERS[name]), help=f"{SERVERS[name].help}\n\n{STOPS}")


app = typer.Typer(
    name="serve", cls=ServerCommands, help=HELP, no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback(help=HELP)
def _root() -> None:
    pass


def _command(server: _Server) -> Callable[..., None]:
    module, _, name = server.settings.partition(":")
    model: type[ServingConfig] = getattr(importlib.import_module(module), name)

    def run(config: Path | None, print_config: bool, **values: Any) -> None:
        flags = {name: values.pop(name) for name in model.flags()}
        for name, value in flags.items():
            if value is not None and _kind(model.model_fields[name].annotation) is dict:
                flags[name] = read_env_kwargs(value, f"--{name.replace('_', '-')}")
        settings = model.load(config, flags | server.arguments(**values))
        if print_config:
            typer.echo(settings.as_yaml(), nl=False)
            return
        server.before(settings)
        _serve(settings)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *inspect.signature(server.arguments, eval_str=True).parameters.values(),
            _option("config", Path, typer.Option(help="Settings in YAML, see --print-config; flags win.")),
            *_flags(model),
            _option(
                "print_config",
                bool,
                typer.Option("--print-config", help="Print all settings and what they mean, for --config, and exit."),
                default=False,
            ),
        ]
    )
    return run


def _option(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    annotation: Any = Annotated[kind, info]  # typer takes it without a value too, since there is a default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flags(model: type[ServingConfig]) -> Iterator[inspect.Parameter]:
    from toolgym.tools.serving.config import meanings

    texts = meanings(model)
    for name in model.flags():
        field = model.model_fields[name]
        text = re.sub(r"\bNone\b", "not set", texts[name])
        if field.default_factory is None and field.default is not None:
            default = f"{field.default:g}" if isinstance(field.default, float) else field.default
            text += f" [default: {default}]"
        kind = _kind(field.annotation)
        info = typer.Option(
            help=text[0].upper() + text[1:],
            metavar="JSON" if kind is dict else None,
            envvar=model.spec.token_variable if name == "token" else None,
            show_envvar=True,
        )
        yield _option(name, str if kind is dict else kind, info)


def _kind(annotation: Any) -> type:
    """Return the type of a flag's value: int, float, Path, dict for a JSON object, or str."""
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Mapping:
        return dict
    return annotation if annotation in (int, float, Path) else str


def _serve(settings: ServingConfig) -> None:
    from toolgym.tools.serving.process_secrets import hide_secrets
    from toolgym.tools.serving.supervisor import serve
    from toolgym.tools.serving.worker import LOG_FORMAT

    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT)
    console = Console(soft_wrap=True, highlight=False)
    hide_secrets(settings.secrets().values())

    def announce(text: str) -> None:
        console.print(text, markup=False)
        if settings.generated_secret is not None:
            console.print(f"token of its control API: {settings.generated_secret}", markup=False)

    asyncio.run(serve(settings, announce))
