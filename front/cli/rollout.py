"""`toolgym rollout`: play tasks, write trajectories and a batch, show what happened."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import typer
from rich.console import Console

from toolgym.cli import rollout_config, rollout_resume
from toolgym.cli.rollout_options import RolloutOptions
from toolgym.cli.rollout_report import STOPPED_BY, pad_token_id, report
from toolgym.cli.user_code import tools_in
from toolgym.rollout.engines.open import open_engine
from toolgym.tools.errors import ConfigError, ToolgymError

if TYPE_CHECKING:
    from toolgym.envs.tasks.sources import TaskSource
    from toolgym.envs.tasks.task import Task
    from toolgym.rollout.engines.base import Engine
    from toolgym.rollout.recording.run_folder import RunFile, RunFolder
    from toolgym.rollout.runner.config import RunConfig
    from toolgym.rollout.runner.envs.env_factory import EnvFactory
    from toolgym.rollout.runner.metrics.loggers import MetricLogger
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
    from toolgym.rollout.runner.resumed import EarlierRun
    from toolgym.rollout.trajectory.file import TrajectoryWriter
    from toolgym.rollout.trajectory.trajectory import Trajectory

T = TypeVar("T")


def command(ctx: typer.Context, **values: Any) -> None:
    """Play tasks with a policy; write trajectories and a batch of masked token tensors."""
    options = RolloutOptions(**values)
    begun = rollout_resume.resumed_run(ctx)
    if options.print_config:
        typer.echo(rollout_config.as_yaml(ctx), nl=False)
        return
    env_kwargs = options.env_arguments()
    options.check_files()
    with _failures_told_once():
        run_to_exit(_main(ctx, options, env_kwargs, begun))


CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
command.__signature__ = inspect.Signature([CONTEXT, *RolloutOptions.parameters()])  # type: ignore[attr-defined]


def run_to_exit(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Run what a command does, and leave with the exit status that it returns."""
    try:
        status = asyncio.run(main)
    except KeyboardInterrupt:
        typer.echo("interrupted before the first episode", err=True)
        status = STOPPED_BY + signal.SIGINT
    raise typer.Exit(status)


class _Prepared(NamedTuple):
    env: EnvFactory
    config: RunConfig
    source: TaskSource
    tasks: Sequence[Task]
    run: RunFile


async def _prepare(
    ctx: typer.Context, options: RolloutOptions, env_kwargs: dict[str, Any], begun: RunFile | None
) -> _Prepared:
    from toolgym.rollout.orchestrator import draw_tasks
    from toolgym.rollout.recording.run_folder import RunFile, tasks_hash
    from toolgym.rollout.runner.envs.env_factory import EnvFactory

    env, config = EnvFactory.of(options.env, env_kwargs), options.config()
    source = await env.tasks()
    tasks = draw_tasks(source, options.tasks, config)
    run = RunFile(
        run_id=begun.run_id if begun is not None else uuid.uuid4().hex,
        options=rollout_resume.kept_options(ctx),
        episodes=len(tasks) * config.group_size,
        tasks=tasks_hash(tasks),
        files=rollout_resume.file_hashes(ctx),
    )
    return _Prepared(env, config, source, tasks, run)


async def _main(ctx: typer.Context, options: RolloutOptions, env_kwargs: dict[str, Any], begun: RunFile | None) -> int:
    from toolgym.rollout.orchestrator import RunOutput, rollout
    from toolgym.rollout.recording.recorder import tokenizer_fingerprint
    from toolgym.rollout.recording.run_folder import TRAJECTORIES, TURNS, RunFolder
    from toolgym.rollout.runner.metrics.loggers import logged
    from toolgym.rollout.runner.metrics.progress import Progress
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
    from toolgym.rollout.runner.resumed import EarlierRun, whole_jobs
    from toolgym.rollout.trajectory.trajectory import plain

    errors, out = Console(stderr=True, highlight=False), options.folder
    env, config, source, tasks, run = await _prepare(ctx, options, env_kwargs, begun)
    trajectories: list[Trajectory] = []
    stopped_by, broken, started = None, None, None
    try:
        async with contextlib.AsyncExitStack() as stack:
            for tool in tools_in(env_kwargs):
                stack.push_async_callback(tool.close)
            folder = stack.enter_context(RunFolder(out))
            earlier = EarlierRun(out / TRAJECTORIES if begun is not None else None)
            stack.callback(lambda: folder.complete() if len(whole_jobs(trajectories)) == run.episodes else None)
            if begun is not None:
                rollout_resume.require_same_run(begun, replace(run, tokenizer=begun.tokenizer), out)
                earlier.check(env, config, tasks, config.group_size, run_id=begun.run_id)
                trajectories += earlier.finished
                errors.print(f"resuming: {len(earlier)} of {run.episodes} episodes have finished", soft_wrap=True)
                if len(earlier) == run.episodes:
                    return report(trajectories, begun, out, [], 0.0, None, options.as_json)
            if options.record is not None:
                _require_writable(options.record)
            metrics = RunMetrics()
            loggers = _open_loggers(options, stack, metrics, run, plain(config))
            engine = await open_shown(ctx, options, stack, errors)
            tokenizer = engine.tokenizer
            assert tokenizer is not None  # `open_engine` has loaded one
            run = replace(run, tokenizer=tokenizer_fingerprint(tokenizer), pad_token_id=pad_token_id(tokenizer))
            _begin(folder, run, begun, earlier)
            started = time.monotonic()
            output = RunOutput(
                trajectories=_Finished(folder.writer, trajectories),
                journal=out / TURNS if options.journal else None,
                record=options.record,
                tokenizer_source="tiny" if _is_tiny(ctx, options) else tokenizer.name_or_path,
                earlier=earlier,
                run_id=run.run_id,
            )
            progress = Progress(metrics, run.episodes, finished=len(earlier), console=errors, transient=True)
            heard = [metrics, progress]
            playing = rollout(env, engine, source, num_tasks=options.tasks, config=config, out=output, observers=heard)
            async with logged(loggers, metrics, trajectories=trajectories, finished=len(trajectories)):
                _, stopped_by = await until_signal(playing)
    except ToolgymError as error:
        if started is None or not trajectories:
            raise
        broken = error  # what has finished is shown and made a batch before it is raised
    played = trajectories[len(earlier.finished) :]
    status = report(trajectories, run, out, played, time.monotonic() - started, stopped_by, options.as_json)
    if broken is not None:
        raise broken
    return status


def _begin(folder: RunFolder, run: RunFile, begun: RunFile | None, earlier: EarlierRun) -> None:
    if begun is not None:
        rollout_resume.require_same_run(begun, run, folder.path)
        folder.go_on(run)
        earlier.remove_parts(folder.writer)
    else:
        folder.begin(run)


class _Finished:
    def __init__(self, writer: TrajectoryWriter, trajectories: list[Trajectory]) -> None:
        self._writer, self._trajectories = writer, trajectories

    def write(self, trajectory: Trajectory) -> None:
        self._trajectories.append(trajectory)
        self._writer.write(trajectory)


async def open_shown(
    ctx: typer.Context, options: RolloutOptions, stack: contextlib.AsyncExitStack, errors: Console
) -> Engine:
    """Open the engine that the options name, and say so; the stack closes it."""
    arguments = rollout_resume.engine_options(ctx)
    with errors.status(f"starting engine {options.engine}"):
        engine = await open_engine(options.engine, **arguments)
    stack.push_async_callback(engine.close)
    if (
        arguments["device"] is None
        and options.engine != "tiny"
        and not options.engine.startswith(("http://", "https://"))
    ):
        import torch

        if torch.cuda.is_available():
            errors.print("the model runs on the CPU; --device cuda puts it on the GPU", style="yellow")
    return engine


def _is_tiny(ctx: typer.Context, options: RolloutOptions) -> bool:
    """Whether a replay finds the tokenizer in the library."""
    return options.engine == "tiny" and rollout_resume.engine_options(ctx)["tokenizer"] is None


def _open_loggers(
    options: RolloutOptions, stack: contextlib.AsyncExitStack, metrics: RunMetrics, run: RunFile, config: dict[str, Any]
) -> list[MetricLogger]:
    from toolgym.rollout.runner.metrics.loggers import opened
    from toolgym.rollout.runner.metrics.prometheus import MetricsServer

    if options.metrics_port is not None:
        server = stack.enter_context(MetricsServer(metrics, options.metrics_port))
        typer.echo(f"figures for Prometheus at {server.url}", err=True)
    return [
        stack.enter_context(opened(kind, options.folder, {**run.options, **config}, run_id=run.run_id))
        for kind in dict.fromkeys(options.log or [])
    ]


@contextlib.contextmanager
def _failures_told_once() -> Iterator[None]:
    """Keep the log's warnings of failed episodes back: the report says the same at its end."""
    from toolgym.rollout.trajectory.failures import log

    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _require_writable(record: Path) -> None:
    """Find out before the engine starts, and leave what an earlier run wrote there until it has."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write the recording to {str(record)!r}: {error}") from error


async def until_signal(playing: Coroutine[Any, Any, T]) -> tuple[T | None, signal.Signals | None]:
    """Return what a coroutine returns, or the signal of the terminal that cancelled it."""
    player = asyncio.create_task(playing)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        player.cancel()

    # A signal that ends this process must end its programs too: they are not children of the terminal.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        return await player, None
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return None, received[0]
