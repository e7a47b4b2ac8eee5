"""`toolgym validate`: whether the tasks of a file can be solved as they say, before a policy trains on them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolgym.cli.files import require_absent
from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs

if TYPE_CHECKING:
    from toolgym.envs.registry import EnvSpec
    from toolgym.validation.sweep import SweepOptions, TaskVerdict


def command(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="An id (see `toolgym envs`), or module:Id.", autocompletion=env_ids)
    ],
    tasks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The env's tasks, as `tasks` of its arguments.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the verdicts, JSON Lines. [default: FILE.verdicts.jsonl]")
    ] = None,
    env_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the env as a JSON object.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each task is played.")] = 3,
    full_reward: Annotated[float, typer.Option(help="The least that the known solution must earn.")] = 1.0,
    silent_reward: Annotated[float, typer.Option(help="The most that an episode without a change may earn.")] = 0.0,
    at_once: Annotated[int, typer.Option(min=1, help="Tasks that are played at the same time.")] = 4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play each task with its known solution and without a change. Exit status 1 when a task does not hold."""
    from toolgym.envs.tasks.verdicts import verdict_file

    spec = load_env(env)
    kwargs = {**spec.kwargs, **read_env_kwargs(env_kwargs)}
    if tasks is not None:
        kwargs["tasks"] = str(tasks)
    beside = verdict_file(tasks) if tasks is not None else None
    target = out or beside
    for path in {path for path in (target, beside) if path is not None}:
        if not overwrite:
            require_absent("--out", path)
        path.unlink(missing_ok=True)  # a file of tasks is read without those that its verdicts refuse

    options: SweepOptions = {"full_reward": full_reward, "silent_reward": silent_reward}
    options |= {"repeats": repeats, "at_once": at_once}
    results = asyncio.run(_validate(spec, kwargs, options, _keep_silent if as_json else _show))
    if target is not None:
        lines = [json.dumps(dataclasses.asdict(verdict), ensure_ascii=False) for verdict in results]
        target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    bad = sum(bool(verdict.fault) for verdict in results)
    unknown = sum(not verdict.gold and not verdict.fault for verdict in results)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(verdict) for verdict in results], indent=2, ensure_ascii=False))
    else:
        note = f", {unknown} without a known solution" if unknown else ""
        typer.echo(f"{len(results) - bad} of {len(results)} tasks hold{note}")
    raise typer.Exit(1 if bad else 0)


async def _validate(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: SweepOptions, report: Callable[[TaskVerdict], object]
) -> list[TaskVerdict]:
    from toolgym.tools.errors import ConfigError
    from toolgym.validation.sweep import validate_tasks

    async with spec.build(kwargs) as first:
        source = getattr(first, "tasks", None)
        count = getattr(source, "size", None)
        if source is None or count is None:
            raise ConfigError(f"{spec.id} has tasks without end, or none; only counted tasks can be validated")
        tasks = [source.task(place) for place in range(count)]
    results = []
    async for verdict in validate_tasks(lambda: spec.build(kwargs), tasks, **options):
        results.append(verdict)
        report(verdict)
    return results


def _keep_silent(verdict: TaskVerdict) -> None:
    pass


def _show(verdict: TaskVerdict) -> None:
    typer.echo(f"{'FAILED' if verdict.fault else 'holds':<8} {verdict.id}  {verdict.fault}".rstrip())
