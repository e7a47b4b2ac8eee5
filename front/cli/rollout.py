"""`toolgym rollout`: play tasks, write trajectories and a batch, show what happened."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from toolgym.cli.files import require_absent
from toolgym.cli.tables import conversation, pick_conversation, summary_table
from toolgym.cli.user_code import env_ids, load_env
from toolgym.rollout.engines.open import open_engine
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.tools.errors import BatchError, ConfigError, ToolgymError

TRAJECTORIES, BATCH = "trajectories.jsonl", "batch.safetensors"

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.envs.tasks.task import Task
    from toolgym.rollout.runner.local import Runner
    from toolgym.rollout.trajectory import Trajectory

app = typer.Typer(rich_markup_mode=None, add_completion=False)


_LINES = 10
"""Lines that a run prints while it goes on, where there is no terminal for a bar."""

STOPPED_BY = 128
"""Exit status after a signal is this plus its number, as shells have it: 130 after Ctrl-C."""


@app.command("rollout")
def rollout_command(
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
    out: Annotated[Path, typer.Option(help="Folder for trajectories.jsonl and batch.safetensors.")] = Path(
        "rollout-out"
    ),
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
            "the chat template shows it."
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
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes in flight.")] = 64,
    episode_timeout: Annotated[float, typer.Option(help="Seconds per episode.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of tasks and sampling.")] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Record all of the run to this file, for toolgym replay and bug reports.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier run left at --out and --record.")
    ] = False,
) -> None:
    """Play tasks with a policy; write trajectories and a batch of masked token tensors."""
    from toolgym.envs.tasks.loading import load_tasks
    from toolgym.rollout.engines.base import SamplingParams
    from toolgym.rollout.limits import EpisodeLimits
    from toolgym.rollout.runner.config import RunConfig
    from toolgym.tools.config import from_config

    env_class = load_env(env).load()  # so that a typo is an error before anything else is loaded
    if task_columns is not None and task_file is None:
        raise ConfigError("--task-columns are those of a --task-file, and there is none")
    source = load_tasks(task_file, columns=_columns(task_columns)) if task_file is not None else None
    env_kwargs: dict[str, Any] = {}
    if tool_config is not None:
        env_kwargs["tools"] = from_config(tool_config)
        if "own_tools" in inspect.signature(env_class).parameters:
            env_kwargs["own_tools"] = False
    if source is not None:
        env_kwargs["tasks"] = source
    if max_turns is not None:
        env_kwargs["max_turns"] = max_turns
    config = RunConfig(
        group_size=group_size,
        max_concurrent=concurrency,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p),
        limits=EpisodeLimits(max_response_tokens=max_response_tokens, episode_timeout=episode_timeout),
        history=history,
        on_truncated_turn=on_truncated_turn,
        seed=seed,
        parser=parser,
    )
    try:
        opened = {"tokenizer": tokenizer, "api_key": api_key, "device": device, "dtype": dtype}
        with _failures_told_once():
            status = asyncio.run(_main(env, env_kwargs, tasks, out, engine, opened, config, record, overwrite))
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
    env_id: str,
    env_kwargs: dict[str, Any],
    num_tasks: int,
    out: Path,
    engine_name: str,
    engine_options: dict[str, Any],
    config: Any,
    record: Path | None,
    overwrite: bool,
) -> int:
    from toolgym.rollout.recording.recorder import recorded
    from toolgym.rollout.runner.env_factory import EnvFactory
    from toolgym.rollout.runner.local import Runner
    from toolgym.rollout.trajectory_file import TrajectoryWriter

    errors = Console(stderr=True, highlight=False)
    async with EnvFactory.of(env_id, env_kwargs)() as probe:
        source = getattr(probe, "tasks", None)
        if source is None:
            raise ConfigError(f"env {env_id!r} has no tasks of its own; give some with --task-file")
        tasks: list[Task] = source.take(num_tasks, seed=config.seed)
    results = [out / name for name in (TRAJECTORIES, BATCH)]
    if not overwrite:
        require_absent("--out", *results)
        require_absent("--record", *([record] if record is not None else []))
    _require_writable("trajectories", out / TRAJECTORIES)
    if record is not None:
        if record.resolve() in [path.resolve() for path in results]:
            raise ConfigError(f"--record {str(record)!r} is where the results of --out go: name another file")
        _require_writable("the recording", record)
    trajectories: list[Trajectory] = []
    stopped_by, broken = None, None
    try:
        async with contextlib.AsyncExitStack() as stack:
            for made in env_kwargs.get("tools", ()):
                stack.push_async_callback(made.close)
            with errors.status(f"starting engine {engine_name}"):
                engine = await open_engine(engine_name, **engine_options)
            stack.push_async_callback(engine.close)
            tokenizer = engine.tokenizer
            assert tokenizer is not None  # `open_engine` has loaded one
            started = time.monotonic()
            writer = stack.enter_context(TrajectoryWriter(out / TRAJECTORIES))
            runner = Runner(env_id, engine, env_kwargs=env_kwargs, sinks=[writer], config=config)
            if record is not None:
                tiny = engine_name == "tiny" and engine_options["tokenizer"] is None
                source = "tiny" if tiny else tokenizer.name_or_path
                runner = stack.enter_context(recorded(runner, tasks, record, tokenizer_source=source))
            _say_what_device(engine_name, engine_options["device"], errors)
            (out / BATCH).unlink(missing_ok=True)  # an earlier run's, which does not belong to the new trajectories
            stopped_by = await _play(runner, tasks, config.group_size, trajectories, errors)
    except ToolgymError as error:
        if not trajectories:
            raise
        broken = error  # what has finished is shown and made a batch before it is raised
    seconds = time.monotonic() - started
    status = _report(trajectories, len(tasks) * config.group_size, seconds, stopped_by, tokenizer, out)
    if broken is not None:
        raise broken
    return status


def _say_what_device(engine_name: str, device: str | None, errors: Console) -> None:
    """Say it where a model of one's own runs on the CPU beside a GPU."""
    if device is None and engine_name != "tiny" and not engine_name.startswith(("http://", "https://")):
        import torch

        if torch.cuda.is_available():
            errors.print("the model runs on the CPU; --device cuda puts it on the GPU", style="yellow")


@contextlib.contextmanager
def _failures_told_once() -> Iterator[None]:
    """Keep the log's warnings of failed episodes back: the report says the same at its end."""
    from toolgym.rollout.failures import log

    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _require_writable(what: str, path: Path) -> None:
    """Find out before the engine starts, and leave what an earlier run wrote there until it has."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {what} to {str(path)!r}: {error}") from error


async def _play(
    runner: Runner, tasks: list[Task], group_size: int, done: list[Trajectory], errors: Console
) -> signal.Signals | None:
    """Play until the end or a signal, which is returned. The trajectories that finish are appended to `done`."""
    total = len(tasks) * group_size
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("reward {task.fields[reward]:.2f}"),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )

    def show(finished: int) -> None:
        reward = sum(one.reward for one in done) / max(1, finished)
        if errors.is_terminal:
            progress.update(bar, completed=finished, reward=reward)
        elif finished * _LINES // total > (finished - 1) * _LINES // total:
            errors.print(f"{finished} of {total} episodes, reward {reward:.2f}", highlight=False)

    async def consume() -> None:
        async with contextlib.aclosing(runner.stream(tasks)) as stream:
            async for trajectory in stream:
                done.append(trajectory)
                show(len(done))

    bar = progress.add_task("episodes", total=total, reward=0.0)
    with progress:
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


def _report(
    trajectories: list[Trajectory],
    total: int,
    seconds: float,
    stopped_by: signal.Signals | None,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
) -> int:
    from toolgym.rollout.batch.io import save_batch
    from toolgym.rollout.batch.make import make_batch
    from toolgym.rollout.failures import FailureLog, require_one_that_played

    trajectories = sorted(trajectories, key=lambda one: (one.task_index, one.sample_index))
    batch, problem = None, ""
    try:
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)  # any will do: masks tell what is padding
        batch = make_batch(trajectories, pad_token_id=next(pad for pad in pads if pad is not None))
        save_batch(batch, out / BATCH)  # before anything is shown: the reader of that may have gone away
    except BatchError as error:
        problem = str(error)

    console = Console(highlight=False)
    if trajectories:
        console.print(summary_table(trajectories, seconds))
        chosen = pick_conversation(trajectories)
        if chosen is not None:
            console.print(conversation(chosen))
    failures = FailureLog()
    for one in trajectories:
        failures.add(one)
    for line in failures.lines():
        console.print(line, style="red", markup=False, soft_wrap=True)
    console.print(f"trajectories  {out / TRAJECTORIES}  ({len(trajectories)} of {total})", markup=False, soft_wrap=True)
    if batch is None:
        console.print(f"no batch: {problem}", style="red", markup=False, soft_wrap=True)
    else:
        prompt, response = batch.prompts.shape[1], batch.responses.shape[1]
        sources = int(batch.trajectory_ids[-1]) + 1
        origin = f" from {sources} trajectories" if sources < len(batch) else ""
        console.print(
            f"batch         {out / BATCH}  ({len(batch)} rows{origin} of {prompt} + {response} tokens, "
            f"{int(batch.response_mask.sum())} of them the policy's; checked: every invariant holds)",
            markup=False,
            soft_wrap=True,
        )
    if stopped_by is not None:
        console.print(f"interrupted: {total - len(trajectories)} episodes were not finished", style="yellow")
        return STOPPED_BY + stopped_by
    require_one_that_played(trajectories)
    return 0 if batch is not None else 1
