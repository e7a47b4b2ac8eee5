"""`toolgym eval`: figures of a policy on tasks of envs, with intervals; resumed, and compared with another run."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from toolgym.cli import rollout_config, rollout_resume
from toolgym.cli.rollout import CONTEXT, open_shown, run_to_exit, until_signal
from toolgym.cli.rollout_options import RolloutOptions, ids_of
from toolgym.cli.rollout_report import STOPPED_BY
from toolgym.cli.user_code import env_ids, tools_in
from toolgym.tools.lazy import missing_extra

try:
    from toolgym.report.command import print_tables, read_ks, told_apart
    from toolgym.report.report import Report, compare
    from toolgym.report.tables import notes_of, tables_of_evaluation
    from toolgym.viewer.run_index import RunIndex
except ImportError as error:
    raise missing_extra("report", "toolgym eval", error) from error


if TYPE_CHECKING:
    from toolgym.report.evaluation import Evaluation
    from toolgym.rollout.recording.run_folder import RunFile
    from toolgym.rollout.runner.envs.env_factory import EnvFactory

NOT_HERE = ("env", "record", "journal", "log", "metrics_port", "overwrite")
"""Options of `toolgym rollout` that an evaluation does not have."""

_Tasks = Annotated[int | None, typer.Option(min=1, help="Tasks of each env, at most as many as it has. [default: 100]")]


@dataclass(frozen=True, kw_only=True)
class EvalOptions(RolloutOptions):
    envs: Annotated[
        list[str] | None, typer.Argument(metavar="ENV", help="Ids of envs, or 'module:Id'.", autocompletion=env_ids)
    ] = None
    tasks: _Tasks = None  # type: ignore[assignment]
    group_size: Annotated[int, typer.Option("--samples", "-n", min=1, help="Episodes per task.")] = 4
    k: Annotated[str | None, typer.Option("-k", metavar="1,4,8", help="Each k of pass@k; default: 1,2,4,...")] = None
    compare: Annotated[Path | None, typer.Option(metavar="RUN", help="A run to compare with, task by task.")] = None
    training_step: Annotated[int, typer.Option(min=0, help="Sample as a training run's validation at this step.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for the trajectories, a file for each env.")] = Path("eval-out")
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            is_eager=True,
            callback=rollout_resume.take_options,
            help="Go on with the evaluation in this folder, the --out of an earlier call, with its options.",
        ),
    ] = None

    @property
    def every_id(self) -> list[str]:
        return [id for env in self.envs or () for id in ids_of(env)]


def command(ctx: typer.Context, **values: Any) -> None:
    """Evaluate a policy: pass@k, pass^k and reward on tasks of envs, played as a training run validates."""
    options = EvalOptions(**values)
    begun = rollout_resume.resumed_run(ctx)
    if options.print_config:
        typer.echo(rollout_config.as_yaml(ctx), nl=False)
    else:
        run_to_exit(_main(ctx, options, begun))


_OPTIONS = [each for each in EvalOptions.parameters() if each.name not in NOT_HERE]
command.__signature__ = inspect.Signature([CONTEXT, *_OPTIONS])  # type: ignore[attr-defined]


async def _main(ctx: typer.Context, options: EvalOptions, begun: RunFile | None) -> int:
    from toolgym.report import evaluation
    from toolgym.rollout.recording.recorder import tokenizer_fingerprint
    from toolgym.rollout.recording.run_folder import RunFile, tasks_hash

    errors, out, started = Console(stderr=True, highlight=False), options.folder, time.monotonic()
    config = evaluation.as_validation(options.config())
    ks = evaluation.checked_ks(read_ks(options.k), config.group_size)
    others = [] if options.compare is None else [Report.of(RunIndex(options.compare).read_all(), ks=ks)]
    result, stopped_by = None, None
    async with contextlib.AsyncExitStack() as stack:
        sets = await evaluation.eval_sets(_envs(options, stack), options.tasks, config)
        run = RunFile(
            run_id=begun.run_id if begun is not None else uuid.uuid4().hex,
            options=rollout_resume.kept_options(ctx),
            episodes=sum(len(each.tasks) for each in sets) * config.group_size,
            tasks=tasks_hash([task for each in sets for task in each.tasks]),
            files=rollout_resume.file_hashes(ctx),
        )
        finished = evaluation.count_finished(out, sets, resume=begun is not None)
        if begun is not None:
            rollout_resume.require_same_run(begun, replace(run, tokenizer=begun.tokenizer), out)
            errors.print(f"resuming: {finished} of {run.episodes} episodes have finished", soft_wrap=True)
        if finished < run.episodes:
            engine = await open_shown(ctx, options, stack, errors)
            assert engine.tokenizer is not None  # `open_engine` has loaded one
            run = replace(run, tokenizer=tokenizer_fingerprint(engine.tokenizer))
            if begun is not None:
                rollout_resume.require_same_run(begun, run, out)
            run.write(out)
            further: Any = {"config": config, "out": out, "resume": begun is not None, "progress": True}
            result, stopped_by = await until_signal(evaluation.evaluate(list(sets), engine, ks=ks, **further))
    if stopped_by is not None:
        text = f"interrupted: go on with: toolgym eval --resume {out}"
        errors.print(text, style="yellow", markup=False, soft_wrap=True)
        return STOPPED_BY + stopped_by
    _print(
        result or evaluation.Evaluation.of(RunIndex(out).read_all(), ks), others, options, time.monotonic() - started
    )
    return 0


def _envs(options: EvalOptions, stack: contextlib.AsyncExitStack) -> list[EnvFactory]:
    from toolgym.rollout.runner.envs.env_factory import EnvFactory

    envs = []
    for name in options.envs or ():
        arguments = replace(options, env=name).env_arguments()
        for tool in tools_in(arguments):
            stack.push_async_callback(tool.close)
        envs.append(EnvFactory.of(name, arguments))
    return envs


def _print(result: Evaluation, others: list[Report], options: EvalOptions, seconds: float) -> None:
    *others, report = reports = told_apart([*others, result.report])
    if options.as_json:
        differences = {other.path: compare(other, report) for other in others}
        value = {**result.to_json(), "seconds": seconds, "differences": differences}
        typer.echo(json.dumps(value, indent=2, default=dataclasses.asdict))
    else:
        lines = [*(f"- {note}" for note in notes_of(reports)), f"trajectories  {options.folder}"]
        print_tables(tables_of_evaluation(reports, result.parts), lines)
