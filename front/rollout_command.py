"""`toolgym rollout`: play tasks, write trajectories and a batch, show what happened."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from toolgym.report import conversation, pick_conversation, summary_table
from toolgym.tools.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.envs.task import Task
    from toolgym.rollout.engines.base import Engine
    from toolgym.rollout.runner import Runner
    from toolgym.rollout.trajectory import Trajectory, TrajectoryWriter

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it for a process ended by SIGINT."""


def rollout_command(
    env: Annotated[str, typer.Option(help="Id of the env.")] = "CodeInterpreter-v0",
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to play.")] = 32,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 4,
    out: Annotated[Path, typer.Option(help="Folder for trajectories.jsonl and batch.safetensors.")] = Path("rollout"),
    engine: Annotated[
        str, typer.Option(help="'tiny' (a small policy on the CPU), an SGLang server's URL, or a model folder.")
    ] = "tiny",
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or name, if the server's own path is not on this machine.")
    ] = None,
    task_file: Annotated[
        Path | None, typer.Option(help="JSON Lines file of tasks in verl's row shape, instead of the env's own.")
    ] = None,
    tool_config: Annotated[
        Path | None, typer.Option(help="YAML file of tools in verl's shape, instead of the env's own.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns per episode, if not the env's default.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn.")] = 512,
    max_response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per episode behind the prompt; default: what the context holds.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes in flight.")] = 64,
    episode_timeout: Annotated[float, typer.Option(help="Seconds per episode.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of tasks and sampling.")] = 0,
) -> None:
    """Play tasks with a policy; write trajectories and a batch of masked token tensors."""
    from toolgym.envs.registry import spec
    from toolgym.envs.task import load_tasks
    from toolgym.rollout.engines.base import SamplingParams
    from toolgym.rollout.episode import Limits
    from toolgym.rollout.runner import RunConfig
    from toolgym.tools.config import from_config

    spec(env)  # a typo is told before anything is loaded
    source = load_tasks(task_file) if task_file is not None else None
    env_kwargs: dict[str, Any] = {}
    if tool_config is not None:
        env_kwargs["tools"] = from_config(tool_config)
    if source is not None:
        env_kwargs["tasks"] = source
    if max_turns is not None:
        env_kwargs["max_turns"] = max_turns
    config = RunConfig(
        group_size=group_size,
        max_concurrent=concurrency,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p),
        limits=Limits(max_response_tokens=max_response_tokens, episode_timeout=episode_timeout),
        seed=seed,
    )
    status = asyncio.run(_main(env, env_kwargs, tasks, out, engine, tokenizer, config))
    raise typer.Exit(status)


async def _main(
    env_id: str,
    env_kwargs: dict[str, Any],
    num_tasks: int,
    out: Path,
    engine_name: str,
    tokenizer_name: str | None,
    config: Any,
) -> int:
    from toolgym.envs.registry import make
    from toolgym.rollout.runner import Runner
    from toolgym.rollout.trajectory import TrajectoryWriter

    errors = Console(stderr=True, highlight=False)
    async with make(env_id, **env_kwargs) as probe:
        source = getattr(probe, "tasks", None)
        if source is None:
            raise ConfigError(f"env {env_id!r} has no tasks of its own; give some with --task-file")
        tasks: list[Task] = source.take(num_tasks, seed=config.seed or 0)
    with TrajectoryWriter(out / "trajectories.jsonl") as writer:
        with errors.status(f"starting engine {engine_name}"):
            engine, tokenizer = await _open_engine(engine_name, tokenizer_name)
        started = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(engine.close)
            runner = Runner(env_id, engine, tokenizer, config, env_kwargs=env_kwargs)
            trajectories, interrupted = await _play(runner, tasks, config.group_size, writer, errors)
        for made in env_kwargs.get("tools", ()):
            await made.close()
    seconds = time.monotonic() - started
    return _report(trajectories, len(tasks) * config.group_size, seconds, interrupted, tokenizer, out, writer.path)


async def _open_engine(name: str, tokenizer_name: str | None) -> tuple[Engine, PreTrainedTokenizerBase]:
    from toolgym.rollout.tiny import tiny_policy_path
    from toolgym.rollout.tokenizer import load_tokenizer

    engine: Engine
    if name.startswith(("http://", "https://")):
        from toolgym.rollout.engines.sglang import SGLangServer

        server = SGLangServer(name)
        await server.start()
        source = tokenizer_name or server.info.tokenizer_path
        engine = server
    else:
        from transformers.utils import logging as transformers_logging

        from toolgym.rollout.engines.transformers import TransformersEngine

        transformers_logging.disable_progress_bar()  # it would break into ours
        folder = tiny_policy_path() if name == "tiny" else Path(name)
        if not folder.is_dir():
            raise ConfigError(f"--engine takes 'tiny', an http:// URL or a model folder; {name!r} is none of these")
        engine = TransformersEngine(folder)
        await engine.start()
        source = tokenizer_name or str(folder)
    try:
        return engine, load_tokenizer(source)
    except BaseException:
        await engine.close()
        raise


async def _play(
    runner: Runner, tasks: list[Task], group_size: int, writer: TrajectoryWriter, errors: Console
) -> tuple[list[Trajectory], bool]:
    """Play until the end or the first Ctrl-C, writing each trajectory as it finishes."""
    done: list[Trajectory] = []
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
    )

    async def consume() -> None:
        bar = progress.add_task("episodes", total=total, reward=0.0)
        async with contextlib.aclosing(runner.stream(tasks)) as stream:
            async for trajectory in stream:
                writer.write(trajectory)
                done.append(trajectory)
                progress.update(bar, advance=1, reward=sum(one.reward for one in done) / len(done))

    with progress:
        player = asyncio.create_task(consume())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, player.cancel)
        try:
            await player
        except asyncio.CancelledError:
            return done, True
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    return done, False


def _report(
    trajectories: list[Trajectory],
    total: int,
    seconds: float,
    interrupted: bool,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    path: Path,
) -> int:
    from toolgym.rollout.batch import make_batch

    console = Console(highlight=False)
    trajectories = sorted(trajectories, key=lambda one: (one.group_id, one.sample))
    if trajectories:
        console.print(summary_table(trajectories, seconds))
        chosen = pick_conversation(trajectories)
        if chosen is not None:
            console.print(conversation(chosen))
    console.print(f"trajectories  {path}  ({len(trajectories)} of {total})", markup=False, soft_wrap=True)
    status = 0
    try:
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        batch = make_batch(trajectories, pad_token_id=pad)
    except BatchError as error:
        console.print(f"no batch: {error}", style="red", markup=False, soft_wrap=True)
        status = 1
    else:
        batch_path = out / "batch.safetensors"
        batch.save(batch_path)
        prompt, response = batch.prompts.shape[1], batch.responses.shape[1]
        console.print(
            f"batch         {batch_path}  ({len(batch)} rows of {prompt} + {response} tokens, "
            f"{int(batch.response_mask.sum())} of them the policy's; checked: every invariant holds)",
            markup=False,
            soft_wrap=True,
        )
        if batch.dropped:
            console.print(
                f"left out      {len(batch.dropped)}: {batch.dropped[0].reason}", markup=False, soft_wrap=True
            )
    if interrupted:
        console.print(f"interrupted: {total - len(trajectories)} episodes were not finished", style="yellow")
        return INTERRUPTED
    return status
