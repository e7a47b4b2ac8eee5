"""`toolgym rollout`: play tasks, write trajectories and a batch, show what happened."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from toolgym.cli import rollout_resume
from toolgym.cli.files import require_absent
from toolgym.cli.rollout_report import STOPPED_BY, pad_token_id, report, report_complete
from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs
from toolgym.rollout.engines.open import open_engine
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.rollout.runner.metrics.log_to import LogTo
from toolgym.tools.errors import ConfigError, ToolgymError

if TYPE_CHECKING:
    from toolgym.rollout.recording.run_folder import RunFile
    from toolgym.rollout.runner.local import Runner
    from toolgym.rollout.runner.metrics.loggers import MetricLogger
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
    from toolgym.rollout.runner.scheduling.scheduler import Scheduler
    from toolgym.rollout.trajectory.trajectory import Trajectory

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("rollout")
def rollout_command(
    ctx: typer.Context,
    env: Annotated[
        str,
        typer.Option(
            help="Id of the env (`toolgym envs` lists them), or 'module:Id', where the module, which may be in the "
            "current folder, registers the id.",
            autocompletion=env_ids,
        ),
    ] = "CodeInterpreter-v0",
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to play.")] = 32,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 4,
    out: Annotated[
        Path, typer.Option(help="Folder for trajectories (0.jsonl), batch.safetensors and run.json.")
    ] = Path("rollout-out"),
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            is_eager=True,
            callback=rollout_resume.take_options,
            help="Go on with the run in this folder, the --out of an earlier call that was killed or interrupted. "
            "Nothing that has finished is played again. The run has its own options; only --engine and what belongs "
            "to it, --concurrency, --log and --metrics-port may be given anew.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="'tiny' (a small policy on the CPU), an SGLang server's URL (of several: with commas between; or a "
            "router's), another server's (vLLM's) with its /v1, a model folder, or a model's name on the hub, org/name."
        ),
    ] = "tiny",
    device: Annotated[
        str | None, typer.Option(help="Where to put a model that is loaded here: cpu, cuda, cuda:1 ... [default: cpu]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a model that is loaded here: bfloat16, float32 ... [default: the checkpoint's]"),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or name, if the server's own path is not on this machine.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TOOLGYM_API_KEY", help="Key for servers that want one.", show_default=False)
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option(
            help="How the model writes tool calls: a parser's name, or 'sglang:NAME' for one of SGLang's; default: as "
            "the chat template shows it. 'open_thinking:NAME' runs calls in a <think> that never closes, too."
        ),
    ] = None,
    task_file: Annotated[
        Path | None,
        typer.Option(
            help="File of tasks, instead of the env's own: JSON Lines, JSON, Parquet or CSV, with rows in verl's shape "
            "or with --task-columns."
        ),
    ] = None,
    task_columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=COLUMN,...",
            help="Columns of the task file that hold the prompt, ground_truth, id and source, such as "
            "'prompt=question,ground_truth=answer'.",
        ),
    ] = None,
    tool_config: Annotated[
        Path | None, typer.Option(help="YAML file of tools in verl's shape, instead of the env's own.")
    ] = None,
    env_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments of the env as a JSON object, 'wrappers' among them."),
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns per episode, if not the env's default.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn.")] = 512,
    max_response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per episode after the prompt; default: what the context holds.")
    ] = None,
    history: Annotated[
        HistoryMode,
        typer.Option(
            help="What the policy sees of its earlier turns: what it generated, or what the chat template makes of it."
        ),
    ] = HistoryMode.APPEND,
    on_truncated_turn: Annotated[
        TruncationPolicy,
        typer.Option(help="A turn that reached its length ends the episode, or is closed and the episode goes on."),
    ] = TruncationPolicy.END,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    refills: Annotated[
        int, typer.Option(min=0, help="How often an episode that the infrastructure broke off is played again.")
    ] = 0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Episodes in flight; else as many as fill the engine's KV cache, or 64.")
    ] = None,
    episode_timeout: Annotated[float, typer.Option(help="Seconds per episode.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of tasks and sampling.")] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Record all of the run to this file, for toolgym replay and bug reports.")
    ] = None,
    journal: Annotated[
        bool,
        typer.Option(
            help="Keep the engine's answers in the folder until their episode has finished, so that --resume goes on "
            "with an interrupted episode where it was; else it begins anew."
        ),
    ] = True,
    log: Annotated[
        list[LogTo] | None,
        typer.Option(help="Log config, figures and a few examples there; may be given several times."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve the figures to Prometheus at this port of localhost.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier run left at --out and --record.")
    ] = False,
) -> None:
    """Play tasks with a policy; write trajectories and a batch of masked token tensors."""
    from toolgym.envs.tasks.loading import load_tasks
    from toolgym.rollout.engines.base import SamplingParams
    from toolgym.rollout.limits import EpisodeLimits
    from toolgym.rollout.runner.adaptive import Adaptive
    from toolgym.rollout.runner.config import RunConfig
    from toolgym.tools.config import from_config

    begun = rollout_resume.resumed_run(ctx)
    env_class = load_env(env).load()  # so that a typo is an error before anything else is loaded
    if task_columns is not None and task_file is None:
        raise ConfigError("--task-columns are those of a --task-file, and there is none")
    source = load_tasks(task_file, columns=_columns(task_columns)) if task_file is not None else None
    made_with = read_env_kwargs(env_kwargs)
    if tool_config is not None:
        made_with["tools"] = from_config(tool_config)
        if "own_tools" in inspect.signature(env_class).parameters:
            made_with["own_tools"] = False
    if source is not None:
        made_with["tasks"] = source
    if max_turns is not None:
        made_with["max_turns"] = max_turns
    config = RunConfig(
        group_size=group_size,
        refills=refills,
        max_concurrent=Adaptive() if concurrency is None else concurrency,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p),
        limits=EpisodeLimits(max_response_tokens=max_response_tokens, episode_timeout=episode_timeout),
        history=history,
        on_truncated_turn=on_truncated_turn,
        seed=seed,
        parser=parser,
    )
    try:
        out = resume if resume is not None else out
        _require_places(out, record, new=not overwrite and resume is None)
        with _failures_told_once():
            watched = _Watched(log or [], metrics_port)
            playing = _main(ctx, env, made_with, tasks, out, engine, config, record, begun, journal, watched)
            status = asyncio.run(playing)
    except KeyboardInterrupt:
        typer.echo("interrupted before the first episode", err=True)
        status = STOPPED_BY + signal.SIGINT
    raise typer.Exit(status)


def _columns(given: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    pairs = [part.strip().partition("=") for part in given.split(",")]
    if not all(name and column for name, _, column in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
        raise ConfigError(f"expected --task-columns like 'prompt=question,ground_truth=answer', got {given!r}")
    return {name.strip(): column.strip() for name, _, column in pairs}


async def _main(
    ctx: typer.Context,
    env_id: str,
    env_kwargs: dict[str, Any],
    num_tasks: int,
    out: Path,
    engine_name: str,
    config: Any,
    record: Path | None,
    begun: RunFile | None,
    journal: bool,
    watched: _Watched,
) -> int:
    from toolgym.rollout.recording.engine import JournaledEngine
    from toolgym.rollout.recording.recorder import recorded, tokenizer_fingerprint
    from toolgym.rollout.recording.run_folder import TRAJECTORIES, TURNS, RunFile, RunFolder, tasks_hash
    from toolgym.rollout.runner.envs.env_factory import EnvFactory
    from toolgym.rollout.runner.local import Runner
    from toolgym.rollout.runner.metrics.loggers import logged
    from toolgym.rollout.runner.metrics.progress import Progress
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
    from toolgym.rollout.runner.resumed import EarlierRun, Resumed
    from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
    from toolgym.rollout.trajectory.trajectory import plain

    errors = Console(stderr=True, highlight=False)
    async with EnvFactory.of(env_id, env_kwargs)() as probe:
        source = getattr(probe, "tasks", None)
        if source is None:
            raise ConfigError(f"env {env_id!r} has no tasks of its own; give some with --task-file")
        tasks = source.take(num_tasks, seed=config.seed)
    run = RunFile(
        run_id=begun.run_id if begun is not None else uuid.uuid4().hex,
        options=rollout_resume.kept_options(ctx),
        episodes=len(tasks) * config.group_size,
        tasks=tasks_hash(tasks),
        files=rollout_resume.file_hashes(ctx),
    )
    trajectories: list[Trajectory] = []
    stopped_by, broken, started = None, None, None
    try:
        async with contextlib.AsyncExitStack() as stack:
            for made in env_kwargs.get("tools", ()):
                stack.push_async_callback(made.close)
            folder = stack.enter_context(RunFolder(out))
            earlier = EarlierRun(out / TRAJECTORIES if begun is not None else None)
            if begun is not None:
                rollout_resume.require_same_run(begun, replace(run, tokenizer=begun.tokenizer), out)
                earlier.check(env_id, config, tasks, config.group_size, run_id=begun.run_id)
                trajectories += earlier.trajectories.values()
                errors.print(f"resuming: {len(trajectories)} of {run.episodes} episodes have finished", soft_wrap=True)
                if len(trajectories) == run.episodes:
                    folder.complete()
                    return report_complete(trajectories, begun, out)
            if record is not None:
                _require_writable(record)
            metrics = RunMetrics()
            loggers = watched.open(stack, metrics, out, run.options | plain(config))
            engine_options = rollout_resume.engine_options(ctx)
            with errors.status(f"starting engine {engine_name}"):
                engine = await open_engine(engine_name, **engine_options)
            stack.push_async_callback(engine.close)
            tokenizer = engine.tokenizer
            assert tokenizer is not None  # `open_engine` has loaded one
            run = replace(run, tokenizer=tokenizer_fingerprint(tokenizer), pad_token_id=pad_token_id(tokenizer))
            if begun is not None:
                rollout_resume.require_same_run(begun, run, out)
                folder.go_on(run)
            else:
                folder.begin(run)
            started = time.monotonic()
            jobs: Scheduler = Resumed(GroupScheduler(tasks, config, run_id=run.run_id), earlier.trajectories)
            finished = earlier.trajectories.keys()
            if journal:
                engine = JournaledEngine(engine, out / TURNS, finished=finished)
                stack.callback(engine.close_journal)
            progress = Progress(metrics, run.episodes, finished=len(trajectories), console=errors, transient=True)
            watching = [metrics, progress]
            runner = Runner(
                env_id, engine, env_kwargs=env_kwargs, sinks=[folder.writer], observers=watching, config=config
            )
            await earlier.check_settings(runner, tasks)
            if record is not None:
                tiny = engine_name == "tiny" and engine_options["tokenizer"] is None
                source = "tiny" if tiny else tokenizer.name_or_path
                recording = recorded(runner, tasks, record, tokenizer_source=source, finished=finished or None)
                runner = stack.enter_context(recording)
            _say_what_device(engine_name, engine_options["device"], errors)
            async with logged(loggers, metrics, trajectories=trajectories):
                stopped_by = await _play(runner, jobs, trajectories)
            if len(trajectories) == run.episodes:
                folder.complete()
    except ToolgymError as error:
        if started is None or not trajectories:
            raise
        broken = error  # what has finished is shown and made a batch before it is raised
    played = trajectories[len(earlier.trajectories) :]
    status = report(trajectories, run, out, played, time.monotonic() - started, stopped_by)
    if broken is not None:
        raise broken
    return status


@dataclass(frozen=True)
class _Watched:
    """Where the figures of a run go while it goes on."""

    log: Sequence[LogTo]
    port: int | None

    def open(
        self, stack: contextlib.AsyncExitStack, metrics: RunMetrics, out: Path, config: Mapping[str, Any]
    ) -> list[MetricLogger]:
        """Open the loggers and the server; the stack closes them."""
        from toolgym.rollout.runner.metrics.loggers import opened
        from toolgym.rollout.runner.metrics.prometheus import MetricsServer

        if self.port is not None:
            server = stack.enter_context(MetricsServer(metrics, self.port))
            typer.echo(f"figures for Prometheus at {server.url}", err=True)
        return [stack.enter_context(opened(kind, out, config)) for kind in dict.fromkeys(self.log)]


def _say_what_device(engine_name: str, device: str | None, errors: Console) -> None:
    """Say it where a model of one's own runs on the CPU beside a GPU."""
    if device is None and engine_name != "tiny" and not engine_name.startswith(("http://", "https://")):
        import torch

        if torch.cuda.is_available():
            errors.print("the model runs on the CPU; --device cuda puts it on the GPU", style="yellow")


@contextlib.contextmanager
def _failures_told_once() -> Iterator[None]:
    """Keep the log's warnings of failed episodes back: the report says the same at its end."""
    from toolgym.rollout.trajectory.failures import log

    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _require_places(out: Path, record: Path | None, *, new: bool) -> None:
    """Check where a run is to write.

    Args:
        out: its folder.
        record: its recording.
        new: whether what an earlier run wrote there must stay.
    """
    from toolgym.rollout.recording.run_folder import BATCH, EARLIER, RUN, TRAJECTORIES, TURNS

    if record is not None and record.resolve() in [
        (out / name).resolve() for name in (RUN, TRAJECTORIES, TURNS, BATCH)
    ]:
        raise ConfigError(f"--record {str(record)!r} is where the results of --out go: name another file")
    if new:
        if (out / RUN).is_file():
            raise ConfigError(
                f"{str(out / RUN)!r} is of an earlier run: go on with that with --resume {out}, name another folder "
                "with --out, or replace it with --overwrite"
            )
        require_absent("--out", *(out / name for name in (TRAJECTORIES, BATCH, *EARLIER)))
        require_absent("--record", *([record] if record is not None else []))


def _require_writable(record: Path) -> None:
    """Find out before the engine starts, and leave what an earlier run wrote there until it has."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write the recording to {str(record)!r}: {error}") from error


async def _play(runner: Runner, jobs: Scheduler, done: list[Trajectory]) -> signal.Signals | None:
    """Play until the end or a signal, which is returned. The trajectories that finish are appended to `done`."""

    async def consume() -> None:
        async with contextlib.aclosing(runner.stream(jobs)) as stream:
            async for trajectory in stream:
                done.append(trajectory)

    player = asyncio.create_task(consume())
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
        await player
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return received[0] if received else None
