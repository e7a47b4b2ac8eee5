"""`toolgym rollout --config`: a YAML file whose settings stand for the options that are not given."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import typer
import yaml

from toolgym.cli.rollout_resume import OF_ONE_CALL
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.yaml_file import read_yaml

NOT_IN_A_FILE = {"resume", "config_file", "print_config", "verbose"}


def take_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Let a file's settings be the defaults; called before the other options are read."""
    if path is not None and not ctx.resilient_parsing:
        settings = read_yaml("configuration file", path) or {}
        if not isinstance(settings, dict):
            raise ConfigError(f"{path}: expected a mapping of settings, got {type(settings).__name__}")
        known = {str(option.name): option for option in ctx.command.params if option.name not in NOT_IN_A_FILE}
        for name in settings:
            if name not in known:
                raise UnknownNameError(f"{path}: no such setting {name!r}{nearest(str(name), known)}")
        ctx.default_map = {name: _as_typed(known[name], value) for name, value in settings.items() if value is not None}
    return path


def _as_typed(option: Any, value: Any) -> Any:
    """The value as it would be typed, so that 2.5 and true are no whole numbers here either."""
    if option.name == "env_kwargs" and not isinstance(value, str):
        return json.dumps(value)
    if option.multiple or option.nargs == -1:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    return str(value)


def as_yaml(ctx: typer.Context) -> str:
    """Make a file for `take_file` of what would run, each setting below its meaning. Secrets are left out."""
    from toolgym.rollout.trajectory.trajectory import plain

    lines = [f"# Settings of `toolgym {ctx.command.name}`."]
    for option in list[Any](ctx.command.params):
        if option.name in ctx.params.keys() - NOT_IN_A_FILE - {*OF_ONE_CALL} | {"out", "metrics_port"}:
            value = ctx.params[option.name]
            value = json.loads(value) if option.name == "env_kwargs" and value else plain(value)
            lines += ["", *textwrap.wrap(option.help, 100, initial_indent="# ", subsequent_indent="# ")]
            lines.append(yaml.safe_dump({option.name: value}, allow_unicode=True, sort_keys=False).rstrip())
    return "\n".join(lines) + "\n"
