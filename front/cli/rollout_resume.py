"""`toolgym rollout --resume`: the options of the run that is resumed stand for those that are not given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from toolgym.cli.user_code import tool_files
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.rollout.recording.run_folder import RunFile

ANEW = ("engine", "device", "dtype", "tokenizer", "concurrency", "log")
"""Options that may be given anew: they say how the run is played, and not what it is."""

OF_ONE_CALL = ("resume", "config_file", "print_config", "overwrite", "out", "api_key", "metrics_port", "as_json",
               "k", "compare")  # fmt: skip
"""Options that are not kept: they belong to one call of the command, or are secret."""

FILES = ("task_file", "tool_config")
"""Options that name a file that must not change until the run is over."""

PATHS = (*FILES, "record")

_META = "toolgym.resumed_run"


def take_options(ctx: typer.Context, folder: Path | None) -> Path | None:
    """Let the options of a run be the defaults; called before the other options are read."""
    if folder is not None and not ctx.resilient_parsing:
        from toolgym.rollout.recording.run_folder import RunFile

        run = RunFile.read(folder)
        began = "eval" if "envs" in run.options else "rollout"
        if began != ctx.command.name:
            raise ConfigError(f"{str(folder)!r} holds a run of another command: toolgym {began} --resume {folder}")
        known = {parameter.name for parameter in ctx.command.params}
        unknown = ", ".join(sorted(run.options.keys() - known))
        if unknown:
            raise ConfigError(
                f"the run in {str(folder)!r} has options that this version of toolgym does not know ({unknown}): "
                "resume it with the version that began it"
            )
        ctx.default_map = dict(run.options)
        ctx.meta[_META] = run
    return folder


def resumed_run(ctx: typer.Context) -> RunFile | None:
    """The run that is resumed, if any, checked against what was given beside `--resume`."""
    run: RunFile | None = ctx.meta.get(_META)
    if run is None:
        return None
    folder = ctx.params["resume"]
    if ctx.params.get("overwrite"):
        raise ConfigError("--resume goes on with a run and --overwrite replaces it: give one of them")
    if ctx.params["config_file"] is not None:
        raise ConfigError("--resume goes on with the settings of a run, and --config has others: give one of them")
    if _is_given(ctx, "out") and Path(ctx.params["out"]).resolve() != Path(folder).resolve():
        raise ConfigError(f"--out names another folder than --resume {folder}: leave it out")
    now = kept_options(ctx)
    labels = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    for name in ctx.params:
        if name in OF_ONE_CALL or (name in ANEW and _is_given(ctx, name)):
            continue
        option = labels[name]
        there, here = run.options.get(name), now.get(name)
        if not _is_given(ctx, name) and _is_redacted(there):
            raise ConfigError(f"{option} of the run in {folder} held a secret, which is not written: give it again")
        if there != here and (name in run.options or _is_given(ctx, name)):
            raise ConfigError(
                f"{option} contradicts the run in {folder}: it was begun with {there!r}, and {here!r} is given. "
                "Leave the option out, or begin another run"
            )
    hashes = file_hashes(ctx)
    for name in FILES:
        if run.files.get(name) != hashes.get(name):
            raise ConfigError(
                f"{run.options.get(name)!r} was changed since the run in {folder} began: put back what was there, or "
                "begin another run"
            )
    return run


def kept_options(ctx: typer.Context) -> dict[str, Any]:
    """The options of this call as `run.json` keeps them: as plain JSON, with whole paths and without secrets."""
    kept = {name: _kept(name, value) for name, value in ctx.params.items() if name not in OF_ONE_CALL}
    return {name: value for name, value in kept.items() if value is not None}


def _kept(name: str, value: Any) -> Any:
    from toolgym.rollout.recording.secrets import redacted, scrub
    from toolgym.rollout.trajectory.trajectory import plain

    if value is None:
        return None
    if name in PATHS:
        return ",".join(f"{id}={path}" if id else str(path) for id, path in _paths(name, value).items())
    if name in ("engine", "tokenizer") and Path(str(value)).is_dir():
        return str(Path(value).absolute())
    if name == "engine":
        return scrub(value)
    if name == "env_kwargs":
        return json.dumps(redacted(json.loads(value)))
    return plain(value)


def engine_options(ctx: typer.Context) -> dict[str, Any]:
    """The arguments to open the engine with. If another one is named, those of the one before do not hold."""
    names = ("tokenizer", "api_key", "device", "dtype")
    another = ctx.meta.get(_META) is not None and _is_given(ctx, "engine")
    return {name: ctx.params[name] if not another or _is_given(ctx, name) else None for name in names}


def file_hashes(ctx: typer.Context) -> dict[str, str]:
    from toolgym.rollout.recording.run_folder import file_hash

    files = {name: _paths(name, value) for name in FILES if (value := ctx.params[name]) is not None}
    return {name: " ".join(map(file_hash, paths.values())) for name, paths in files.items()}


def _paths(name: str, value: Any) -> dict[str, Path]:
    """The whole paths of the files of an option, by the env that each is for, "" for every one."""
    files = tool_files(str(value)) if name == "tool_config" else {"": Path(value)}
    return {id: path.absolute() for id, path in files.items()}


def require_same_run(begun: RunFile, now: RunFile, folder: Path) -> None:
    """Check that what a run is made of did not change since it began."""
    if (begun.tasks, begun.episodes) != (now.tasks, now.episodes):
        raise ConfigError(
            f"the tasks of the run in {str(folder)!r} are not those that it began with: its env, or the version of "
            "toolgym, gives others now. Resume it with what it began with, or begin another run"
        )
    for part in begun.tokenizer:
        if begun.tokenizer[part] != now.tokenizer.get(part):
            raise ConfigError(
                f"the engine's {part.replace('_', ' ')} is another one than that of the run in {str(folder)!r}: its "
                "tokens would mean something else"
            )


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_redacted(value: Any) -> bool:
    from toolgym.rollout.recording.secrets import REDACTED

    return isinstance(value, str) and REDACTED in value
