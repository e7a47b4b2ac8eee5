"""`Runner`: the runner of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode import Episode, never_played
from toolgym.rollout.failures import FailureLog, require_one_that_played
from toolgym.rollout.job import Job
from toolgym.rollout.runner.admission import Admission
from toolgym.rollout.runner.base import RunnerProtocol
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.env_factory import EnvFactory
from toolgym.rollout.runner.env_pool import EnvPool
from toolgym.rollout.runner.scheduler import GroupsInOrder, Scheduler
from toolgym.rollout.runner.sinks import Sink
from toolgym.rollout.runner.stream import BoundedStream
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory import Trajectory
from toolgym.rollout.trajectory_file import TrajectoryWriter
from toolgym.tools.concurrency.rate_limit import Lease
from toolgym.tools.errors import ConfigError, EngineError, named_keywords, require_whole_number
from toolgym.tools.schema import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger("toolgym.rollout")


class Runner(RunnerProtocol):
    """Plays many episodes at once in this process, on one event loop, each with an env of its own.

    Example:
        >>> import asyncio
        >>> from toolgym.envs import ArithmeticTasks
        >>> from toolgym.rollout import open_engine
        >>> async def main(tasks):
        ...     async with open_engine("tiny") as engine:
        ...         runner = Runner("CodeInterpreter-v0", engine, config=RunConfig(group_size=2))
        ...         return [trajectory.reward async for trajectory in runner.stream(tasks)]
        >>> len(asyncio.run(main(ArithmeticTasks().take(1))))
        2

    Args:
        env: an env id, a function that makes an env, or an `EnvFactory`.
        engine: started; it stays the caller's to close.
        tokenizer: of the model that the engine serves, a fast tokenizer with a chat template; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        sinks: get each trajectory before the consumer does, in this order.
        config: see `RunConfig`.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, `env_kwargs` were given with another than an id, or the engine
            has no tokenizer and none was given.
    """

    @named_keywords
    def __init__(
        self,
        env: str | Callable[[], BaseEnv] | EnvFactory,
        engine: Engine,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        config: RunConfig | None = None,
    ) -> None:
        self.env = EnvFactory.of(env, env_kwargs)
        if not isinstance(engine, Engine):
            raise ConfigError(
                "engine must be an Engine (`await open_engine("
                f"{(str(engine) if isinstance(engine, str | Path) else 'tiny')!r})` gives one), got {engine!r}"
            )
        if not isinstance(config, RunConfig | None):
            raise ConfigError(f"config must be a RunConfig, got {config!r}")
        self.engine = engine
        self.tokenizer = _tokenizer(tokenizer, engine)
        self.sinks = tuple(sinks)
        for sink in self.sinks:
            if not isinstance(sink, Sink):
                raise ConfigError(f"a sink must have a method `write(trajectory)`, got {sink!r}")
        self.config = config or RunConfig()
        self._renderers: dict[tuple[str, ...], ChatRenderer] = {}

    async def stream(self, tasks: Sequence[Task] | Scheduler) -> AsyncGenerator[Trajectory, None]:
        scheduler = tasks if isinstance(tasks, Scheduler) else GroupsInOrder(tasks, self.config.seeded())
        first = await scheduler.next()
        if first is None:
            return
        _ = self.engine.vocab_size, self.engine.context_length  # raises where it has not started
        envs = EnvPool(self.env)
        failures = FailureLog()
        try:
            # The first env is made here, and its renderer: an error in them is the caller's, not an episode's.
            env = envs.take()
            self._renderer(env.tool_schemas)
            envs.give_back(env)
            run = _Run(self, scheduler, envs)
            playing = asyncio.create_task(run.play(first))
            broken: Exception | None = None
            try:
                async for trajectory in run.finished:
                    failures.add(trajectory)
                    for sink in self.sinks:
                        try:
                            sink.write(trajectory)
                        except Exception as error:  # noqa: BLE001  raised when the episodes that run have finished
                            broken = broken or error
                            run.stop()
                    yield trajectory
                if broken is not None:
                    raise broken
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
        finally:
            failures.warn()
            await envs.close()

    def _renderer(self, schemas: Sequence[ToolSchema]) -> ChatRenderer:
        key = tuple(schema.canonical_json for schema in schemas)
        if key not in self._renderers:
            made = ChatRenderer(self.tokenizer, schemas, self.config.template_kwargs, parser=self.config.parser)
            made.require_parser()
            self._renderers[key] = made
        return self._renderers[key]


class _Run:
    """One call of `Runner.stream`: starts the episodes and hands their trajectories to `finished`."""

    def __init__(self, runner: Runner, scheduler: Scheduler, envs: EnvPool) -> None:
        self._runner, self._scheduler, self._envs = runner, scheduler, envs
        self._admission = Admission(episodes=runner.config.max_concurrent)
        self._playing = 0
        self._stopping = False
        self.finished: BoundedStream[Trajectory] = BoundedStream(runner.config.max_concurrent)

    async def play(self, job: Job | None) -> None:
        """Play this job and all that follow, one whenever there is a lease, and end the stream; with an error where it
        was not the runner who ended an episode."""
        async with asyncio.TaskGroup() as episodes:
            try:
                lease = await self._admission.episodes.acquire()
                while job is not None and not self._stopping:
                    self._playing += 1
                    task = episodes.create_task(self._play(job, lease), name=f"toolgym episode of {job.key}")
                    task.add_done_callback(self._on_done)
                    lease = await self._admission.episodes.acquire()
                    job = await self._scheduler.next()
                lease.release()
            except asyncio.CancelledError:
                self.finished.end(EngineError("the run was cancelled from outside"))
                raise
            except BaseException as error:
                self.finished.end(error)
                raise
        self.finished.end()

    def stop(self) -> None:
        """Start no further episode; the stream ends when those that run have finished."""
        self._stopping = True
        self._end_if_stopped()

    def _end_if_stopped(self) -> None:
        if self._stopping and not self._playing:
            self.finished.end()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Let an error reach the consumer; without this, a cancelled episode would be waited for, for ever."""
        if task.cancelled():  # if the runner itself cancelled it, nothing reads the stream any more
            self.finished.end(EngineError("an episode of the run was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self.finished.end(error)

    async def _play(self, job: Job, lease: Lease) -> None:
        runner = self._runner
        try:
            try:
                env = self._envs.take()
            except Exception as error:  # noqa: BLE001  one env that cannot be made is one failed trajectory
                _log.debug("making an env failed", exc_info=True)
                trajectory = never_played(job, runner.config, runner.env.env_id, error)
            else:
                episode = Episode(job, runner.config, env, runner.engine, runner._renderer, env_id=runner.env.env_id)
                trajectory = await episode.run()
                if trajectory.failed:  # the env's state is unknown: the next episode gets a fresh one
                    await self._envs.discard(env)
                else:
                    self._envs.give_back(env)
            for one in self._scheduler.finished(job, trajectory):
                await self.finished.send(one)
            if self._scheduler.over:
                self.finished.end()
        finally:
            self._playing -= 1
            self._end_if_stopped()
            lease.release()


def _tokenizer(given: PreTrainedTokenizerBase | None, engine: Engine) -> PreTrainedTokenizerBase:
    tokenizer = engine.tokenizer if given is None else given
    if tokenizer is None:
        raise ConfigError(
            f"this {type(engine).__name__} knows no tokenizer: give the model's with tokenizer=load_tokenizer(...)"
        )
    if not callable(getattr(tokenizer, "apply_chat_template", None)):
        raise ConfigError(f"tokenizer must be a Hugging Face tokenizer (`load_tokenizer` loads one), got {tokenizer!r}")
    return tokenizer


@named_keywords
async def rollout(
    env: str | Callable[[], BaseEnv] | EnvFactory,
    engine: Engine,
    tasks: Sequence[Task] | TaskSource | None = None,
    *,
    num_tasks: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
    out: str | Path | None = None,
    progress: bool = False,
) -> list[Trajectory]:
    """Play tasks and return the trajectories, ordered by task and sample.

    An interrupt (Ctrl-C, a notebook's stop button, a cancelled task) or an error loses no episode that has finished:
    they are in the file `out`, and in the order in which they finished in the attribute `trajectories` of the exception
    (`CancelledError`, ...) that leaves this function.

    Example:
        >>> import asyncio
        >>> from toolgym.rollout import open_engine
        >>> async def main():
        ...     async with open_engine("tiny") as engine:
        ...         return await rollout("CodeInterpreter-v0", engine, num_tasks=2)
        >>> [trajectory.task_index for trajectory in asyncio.run(main())]
        [0, 1]

    Args:
        env: an env id, a function that makes an env, or an `EnvFactory`.
        engine: started; it stays the caller's to close.
        tasks: the tasks, or a source of tasks; None: the source that the env itself draws from.
        num_tasks: how many tasks to draw from a source. The same seed and training step of the config give the same
            tasks, another step gives others; but to validate, each step gives the same. Of a sequence, how many to
            play at most, in its order: a training step goes on where the one before ended.
        tokenizer: of the model that the engine serves, a fast tokenizer with a chat template; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        config: see `RunConfig`.
        out: a JSON Lines file to which each trajectory is appended as soon as it has finished; `read_trajectories`
            reads it. A file that holds an earlier run's is refused.
        progress: show a progress bar on standard error, in a terminal or a notebook.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, `num_tasks` is missing for a source, or `out` cannot be written.
        EngineError: the engine has not started.
        RunFailedError: every episode failed at its first turn, and all in the same way. (Other failures are logged, one
            warning for each kind, and stay in the trajectories.)
    """
    if not isinstance(out, str | Path | None):
        raise ConfigError(f"out must be the name of a file, got {out!r}")
    if out is not None and Path(out).is_file() and Path(out).stat().st_size:
        raise ConfigError(f"{str(out)!r} holds the results of an earlier run: name another file as out, or remove it")
    runner = Runner(env, engine, tokenizer=tokenizer, env_kwargs=env_kwargs, config=config)
    runner.config = runner.config.seeded()  # one seed for the tasks and for their episodes
    jobs = GroupsInOrder(await _chosen(tasks, num_tasks, runner), runner.config)
    with contextlib.ExitStack() as stack:
        if out is not None:
            runner.sinks = (*runner.sinks, stack.enter_context(TrajectoryWriter(out)))
        if progress:
            from toolgym.rollout.runner.progress import ProgressBar

            runner.sinks = (*runner.sinks, stack.enter_context(ProgressBar(jobs.count)))
        trajectories = await runner.run(jobs)
    require_one_that_played(trajectories)
    return trajectories


async def _chosen(tasks: Sequence[Task] | TaskSource | None, num_tasks: int | None, runner: Runner) -> Sequence[Task]:
    if num_tasks is not None:
        require_whole_number("num_tasks", num_tasks, at_least=1)
    training_step = 0 if runner.config.validate else runner.config.training_step
    if tasks is not None and not isinstance(tasks, TaskSource):
        if num_tasks is None or not tasks:
            return tasks
        return TaskList(tasks).take(min(num_tasks, len(tasks)), training_step=training_step)
    if num_tasks is None:
        raise ConfigError("num_tasks must say how many tasks to draw from the source of tasks, got None")
    source = await runner.env.tasks() if tasks is None else tasks
    return source.take(num_tasks, seed=runner.config.seed, training_step=training_step)
