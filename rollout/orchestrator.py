"""`rollout`: tasks in, trajectories out, in one call. `toolgym rollout` makes the same call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.recording.engine import JournaledEngine
from toolgym.rollout.recording.recorder import recorded
from toolgym.rollout.runner.base import Sink, in_order, tell_interrupt
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.runner.resumed import EarlierRun, Resumed
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.scheduler import Stragglers
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.seeds import stream_seed
from toolgym.rollout.trajectory.failures import require_one_that_played
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """The files that a run writes while it goes on.

    Attributes:
        trajectories: gets each trajectory as soon as it has finished: a JSON Lines file, or a sink of yours.
        journal: a file with the engine's answers to unfinished episodes, with which a resumed run goes on in the middle
            of an episode. Remove it behind the run.
        record: a file to record all of the run to, see `recorded`. The tasks are a list then.
        tokenizer_source: see `recorded`.
        earlier: the run to go on with; None: the one that the file `trajectories` holds, if it is resumed.
        run_id: what the ids of the groups begin with; None: those of the earlier run, or new ones.
    """

    trajectories: str | Path | Sink
    journal: str | Path | None = None
    record: str | Path | None = None
    tokenizer_source: str | None = None
    earlier: EarlierRun | None = None
    run_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.trajectories, str | Path | Sink):
            raise ConfigError(f"out must be the name of a file, got {self.trajectories!r}")

    def open(self, *, resume: bool) -> TrajectoryWriter | contextlib.nullcontext[Sink]:
        """Return what gives the sink, and closes it. Raises `ConfigError` if an earlier run is in the file and not
        resumed."""
        out = self.trajectories
        if not isinstance(out, str | Path):
            return contextlib.nullcontext(out)
        if not resume and Path(out).is_file() and Path(out).stat().st_size:
            raise ConfigError(
                f"{str(out)!r} holds the results of an earlier run: go on with it (resume=True), name another file as "
                "out, or remove it"
            )
        return TrajectoryWriter(out, append=resume)

    def earlier_run(self, *, resume: bool) -> EarlierRun:
        if self.earlier is not None:
            return self.earlier
        return EarlierRun(self.trajectories if resume and isinstance(self.trajectories, str | Path) else None)


@named_keywords
async def rollout(
    env: str | Callable[[], BaseEnv] | EnvFactory,
    engine: Engine,
    tasks: Tasks | TaskSource | None = None,
    *,
    num_tasks: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
    plan: GroupPlan | None = None,
    out: str | Path | RunOutput | None = None,
    resume: bool = False,
    progress: bool = False,
    observers: Sequence[EpisodeObserver] = (),
) -> list[Trajectory]:
    """Play tasks and return the trajectories, ordered by task and sample.

    An interrupt (Ctrl-C, a notebook's stop button, a cancelled task) or an error loses no episode that has finished:
    they are in the file `out`, and in the exception's attribute `trajectories`.

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
        tasks: the tasks, in a list or anything else to iterate over; or a source of tasks; None: the env's source.
        num_tasks: how many tasks to draw from a source, which hears of the rewards of each group
            (`TaskSource.observe`). The same seed and training step give the same tasks; to validate, each step gives
            the same, drawn apart from those of training, and the source hears nothing. Of a sequence, how many to play
            at most: a training step goes on where the one before ended.
        tokenizer: of the model that the engine serves, a fast tokenizer with a chat template; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        config: see `RunConfig`.
        plan: which groups are wanted; `num_tasks` is then how many tasks there are to choose from. None: every episode.
        out: a new JSON Lines file that gets each trajectory as soon as it has finished (see `read_trajectories`), or a
            `RunOutput`, to write more.
        resume: go on with the run that `out` holds, if there is one, given the same arguments, and return all as if one
            run had played it. What differs is an error, except for what `run_settings` says may change. A config
            without a seed takes that run's.
        progress: show on standard error, or in the notebook, how far the run is, see `Progress`.
        observers: hear of each episode while it is played, such as `RunMetrics`.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, `num_tasks` is missing for a source, `out` cannot be written or
            is being written by another run, or what it holds is of a run with other arguments.
        EngineError: the engine has not started.
        RunFailedError: every episode failed at its first turn, and all in the same way. Other failures are logged.
    """
    if resume and out is None:
        raise ConfigError("resume=True goes on with the run in the file out, and none is named")
    output = out if isinstance(out, RunOutput | None) else RunOutput(trajectories=out)
    runner = Runner(env, engine, tokenizer=tokenizer, env_kwargs=env_kwargs, config=config, observers=observers)
    with contextlib.ExitStack() as stack:
        stack.push(lambda _, error, trace: tell_interrupt(error, out))
        sinks = [] if output is None else [stack.enter_context(output.open(resume=resume))]
        earlier = EarlierRun(None) if output is None else output.earlier_run(resume=resume)
        if sinks and isinstance(sinks[0], TrajectoryWriter):
            earlier.remove_parts(sinks[0])
        config = earlier.seeded(runner.config)  # one seed for the tasks and for their episodes
        source = await runner.env.tasks() if tasks is None and num_tasks is not None else tasks
        observe = source.observe if isinstance(source, TaskSource) and not config.validate else None
        drawn = chosen_tasks(source, num_tasks, config)
        run_id = earlier.run_id if output is None else output.run_id or earlier.run_id
        scheduler = GroupScheduler(drawn, config, _checked_plan(plan), observe, run_id=run_id)
        if progress:
            observers = [*runner.observers, *progress_of(scheduler.count, len(earlier.trajectories))]
        if output is not None and output.journal is not None:
            engine = JournaledEngine(engine, output.journal, finished=earlier.trajectories.keys())
            stack.callback(engine.close_journal)
        runner = runner.replaced(engine=engine, sinks=sinks, observers=observers, config=config)
        members = config.group_size + (plan.spare_members if plan is not None else 0)
        began_as = output.run_id if output is not None else None
        earlier.check(runner.env, config, drawn, members, run_id=began_as)
        await earlier.check_settings(runner)
        if output is not None and output.record is not None:
            runner = stack.enter_context(_recorded(runner, drawn, output, earlier))
        resumed = Resumed(scheduler, earlier.trajectories)
        played = await runner.run(resumed)
    trajectories = in_order([*resumed.skipped, *played])
    require_one_that_played(trajectories)
    return trajectories


def _recorded(
    runner: Runner, tasks: Tasks, output: RunOutput, earlier: EarlierRun
) -> contextlib.AbstractContextManager[Runner]:
    assert output.record is not None
    if not isinstance(tasks, Sequence):
        raise ConfigError(f"a recording holds the tasks of its run: give them in a list, got {tasks!r}")
    finished = earlier.trajectories.keys() or None
    return recorded(runner, tasks, output.record, tokenizer_source=output.tokenizer_source, finished=finished)


def progress_of(count: int | None, finished: int) -> list[EpisodeObserver]:
    """Return observers that show how far a run of so many episodes is, of which an earlier call finished some."""
    from toolgym.rollout.runner.metrics.progress import Progress  # needs rich
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics

    metrics = RunMetrics()
    return [metrics, Progress(metrics, count, finished=finished)]


def _checked_plan(plan: GroupPlan | None) -> GroupPlan | None:
    if isinstance(plan, GroupPlan) and plan.stragglers == Stragglers.CARRY:
        raise ConfigError(
            "stragglers='carry' leaves episodes to the next call of the same runner, and `rollout` makes a runner for "
            "one call: use `async with Runner(...) as runner`, and `runner.run(tasks, plan=plan)` for each"
        )
    return plan


def draw_tasks(source: TaskSource, num_tasks: int, config: RunConfig) -> Sequence[Task]:
    """Return the tasks that a run draws from a source, see `rollout`."""
    require_whole_number("num_tasks", num_tasks, at_least=1)
    seed = stream_seed(config.seed, validate=config.validate)
    return source.take(num_tasks, seed=seed, training_step=0 if config.validate else config.training_step)


def chosen_tasks(source: Tasks | TaskSource | None, num_tasks: int | None, config: RunConfig) -> Tasks:
    """Return the tasks that a run plays of a source or of tasks, see `rollout`."""
    if source is None or (num_tasks is None and isinstance(source, TaskSource)):
        raise ConfigError("num_tasks must say how many tasks to draw from the source of tasks, got None")
    if isinstance(source, TaskSource):
        assert num_tasks is not None
        return draw_tasks(source, num_tasks, config)
    if num_tasks is None:
        return source
    require_whole_number("num_tasks", num_tasks, at_least=1)
    if not isinstance(source, Sequence):
        raise ConfigError(f"num_tasks goes with a source or a list of tasks, and these are neither: {source!r}")
    training_step = 0 if config.validate else config.training_step
    return TaskList(source).take(min(num_tasks, len(source)), training_step=training_step) if source else source
