"""`rollout`: tasks in, trajectories out, in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.runner.base import in_order
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.runner.resumed import EarlierRun, Resumed
from toolgym.rollout.runner.scheduler import Stragglers
from toolgym.rollout.runner.scheduling.groups_in_order import GroupsInOrder
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.planned_groups import PlannedGroups
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.seeds import stream_seed
from toolgym.rollout.trajectory.failures import require_one_that_played
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, named_keywords, require_whole_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    observers: Sequence[EpisodeObserver] = (),
) -> list[Trajectory]:
    """Play tasks and return the trajectories, ordered by task and sample.

    An interrupt (Ctrl-C, a notebook's stop button, a cancelled task) or an error loses no episode that has finished:
    they are in the file `out`, and in the order that they finished, in the attribute `trajectories` of the exception
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
        tasks: the tasks, in a list or anything else to iterate over; or a source of tasks; None: the source that the
            env itself draws from.
        num_tasks: how many tasks to draw from a source. The same seed and training step of the config give the same
            tasks, another step gives others; but to validate, each step gives the same, drawn apart from those of
            training: other ones where the source generates them, another order of a list. Of a sequence, how many to
            play at most, in its order: a training step goes on where the one before ended. A source hears of the
            rewards of each group (`TaskSource.observe`), except to validate.
        tokenizer: of the model that the engine serves, a fast tokenizer with a chat template; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        config: see `RunConfig`.
        plan: which groups are wanted; `num_tasks` is then how many tasks there are to choose from. None: every episode.
        out: a JSON Lines file that gets each trajectory as soon as it has finished; `read_trajectories`
            reads it. A file that holds an earlier run's is refused.
        resume: go on with the run that `out` holds, given the same arguments: what is there is not played again, and is
            returned with what is played now, as if one run had played all; what differs is an error, except for what
            `run_settings` says may change. A config without a seed takes that run's.
            A file that is not there begins a run.
        progress: show on standard error, or in the notebook, how far the run is, see `Progress`.
        observers: hear of each episode while it is played, such as `RunMetrics`.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, `num_tasks` is missing for a source, `out` cannot be written or
            is being written by another run, or what it holds is of a run with other arguments.
        EngineError: the engine has not started.
        RunFailedError: every episode failed at its first turn, and all in the same way. (Other failures are logged, one
            warning for each kind, and stay in the trajectories.)
    """
    if not isinstance(out, str | Path | None):
        raise ConfigError(f"out must be the name of a file, got {out!r}")
    if resume and out is None:
        raise ConfigError("resume=True goes on with the run in the file out, and none is named")
    if not resume and out is not None and Path(out).is_file() and Path(out).stat().st_size:
        raise ConfigError(
            f"{str(out)!r} holds the results of an earlier run: go on with it (resume=True), name another file as out, "
            "or remove it"
        )
    runner = Runner(env, engine, tokenizer=tokenizer, env_kwargs=env_kwargs, config=config, observers=observers)
    with contextlib.ExitStack() as stack:
        if out is not None:
            runner.sinks = (*runner.sinks, stack.enter_context(TrajectoryWriter(out, append=resume)))
        earlier = EarlierRun(out if resume else None)
        runner.config = earlier.seeded(runner.config)  # one seed for the tasks and for their episodes
        source = await runner.env.tasks() if tasks is None and num_tasks is not None else tasks
        observe = source.observe if isinstance(source, TaskSource) and not runner.config.validate else None
        chosen = _chosen(source, num_tasks, runner.config)
        if plan is None:
            jobs: GroupsInOrder | PlannedGroups = GroupsInOrder(chosen, runner.config, observe, run_id=earlier.run_id)
        else:
            jobs = PlannedGroups(chosen, runner.config, _that_ends(plan), observe, run_id=earlier.run_id)
        members = runner.config.group_size + (plan.spare_members if plan is not None else 0)
        earlier.check(runner.env.env_id, runner.config, chosen, members)
        await earlier.check_settings(runner, chosen)
        resumed = Resumed(jobs, earlier.trajectories)
        if progress:
            from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
            from toolgym.rollout.runner.progress import Progress

            metrics = RunMetrics()
            shown = Progress(metrics, jobs.count, finished=len(earlier.trajectories))
            runner.observers = (*runner.observers, metrics, shown)
        played = await runner.run(resumed)
    trajectories = in_order([*resumed.skipped, *played])
    require_one_that_played(trajectories)
    return trajectories


def _that_ends(plan: GroupPlan) -> GroupPlan:
    if not isinstance(plan, GroupPlan):
        raise ConfigError(f"plan must be a GroupPlan, got {plan!r}")
    if plan.stragglers == Stragglers.CARRY:
        raise ConfigError(
            "stragglers='carry' leaves episodes to the next call of the same runner, and `rollout` makes a runner for "
            "one call: use `async with Runner(...) as runner`, and `runner.run(tasks, plan=plan)` for each"
        )
    return plan


def _chosen(source: Tasks | TaskSource | None, num_tasks: int | None, config: RunConfig) -> Tasks:
    if num_tasks is not None:
        require_whole_number("num_tasks", num_tasks, at_least=1)
    training_step = 0 if config.validate else config.training_step
    if source is not None and not isinstance(source, TaskSource):
        if num_tasks is None:
            return source
        if not isinstance(source, Sequence):
            raise ConfigError(f"num_tasks goes with a source or a list of tasks, and these are neither: {source!r}")
        if not source:
            return source
        return TaskList(source).take(min(num_tasks, len(source)), training_step=training_step)
    if source is None or num_tasks is None:
        raise ConfigError("num_tasks must say how many tasks to draw from the source of tasks, got None")
    seed = stream_seed(config.seed, validate=config.validate)
    return source.take(num_tasks, seed=seed, training_step=training_step)
