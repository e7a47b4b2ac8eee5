"""`evaluate`: figures of a policy on tasks of envs, played as a training run validates. `toolgym eval` calls it."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.report.report import By, Report, RunPart, powers_of_two
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.orchestrator import RunOutput, chosen_tasks, progress_of, rollout
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.resumed import EarlierRun
from toolgym.rollout.trajectory.failures import RunFailedError
from toolgym.tools.errors import ConfigError, require_whole_number, shorten
from toolgym.tools.keywords import named_keywords
from toolgym.viewer.run_index import RunIndex

Env: TypeAlias = "str | Callable[[], BaseEnv] | EnvFactory"
Tasks: TypeAlias = "Sequence[Task] | TaskSource"

_log = logging.getLogger("toolgym.report")

MOST_TASKS = 100
"""Tasks that are drawn of a source if no number is given."""

PARTS: tuple[By, ...] = ("env", "source", "level")


class EvalSet(NamedTuple):
    """The tasks that an evaluation plays of an env."""

    env: EnvFactory
    tasks: Sequence[Task]

    @property
    def file(self) -> str:
        """Name of the file that gets the trajectories."""
        return re.sub(r"[^\w.-]", "_", self.env.env_id) + ".jsonl"


@dataclass(frozen=True)
class Evaluation:
    """Figures of a policy: those of all episodes, and of each env, source and level of difficulty where there are
    several.

    `report.whole` and each part have `figures` (docs/report.md), `estimates` with intervals over tasks (`reward`,
    `success`, `pass@K`, `pass^K`) and `stops`, the counts of each end. `weight_versions` has one version unless the
    weights changed during the evaluation; `report.notes` says so too."""

    report: Report
    parts: Mapping[By, tuple[RunPart, ...]]

    @property
    def weight_versions(self) -> Mapping[str, int]:
        """The versions of the policy's weights, each with the number of episodes in which it sampled a token."""
        return self.report.weight_versions

    @classmethod
    def of(cls, index: RunIndex, ks: Sequence[int] | None = None) -> Evaluation:
        """Take the figures of a run on disk; `ks` as in `Report.of`."""
        reports = Report.divided(index, PARTS, ks=ks)
        return cls(reports[0], {report.by: report.parts for report in reports if report.by is not None})

    def to_json(self) -> dict[str, Any]:
        value = self.report.to_json()
        return {name: item for name, item in value.items() if name != "by"} | {"parts": dict(self.parts)}


@named_keywords
async def evaluate(
    envs: Env | Sequence[Env | tuple[Env, Tasks]],
    engine: Engine,
    *,
    num_tasks: int | None = None,
    ks: Sequence[int] | None = None,
    config: RunConfig | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    observers: Sequence[EpisodeObserver] = (),
) -> Evaluation:
    """Play `config.group_size` episodes of each task, one env behind the other, and return the figures.

    The episodes are those of a training run's validation with the same config: `rollout` with `validate=True`, so with
    `validation_sampling`, and with the tasks and seeds that belong to `seed` and `training_step`.

    Example:
        >>> import asyncio
        >>> from toolgym.rollout import RunConfig, open_engine
        >>> async def main():
        ...     async with open_engine("tiny") as engine:
        ...         return await evaluate("GSM8K-v0", engine, num_tasks=2, config=RunConfig(group_size=2))
        >>> asyncio.run(main()).report.whole.figures["episodes"]
        4.0

    Args:
        envs: an env id, a function that makes an env, or an `EnvFactory`; several in a list, each alone or in a pair
            with its tasks, a list or a source. Without tasks it is the env's own source.
        engine: started; it stays the caller's to close.
        num_tasks: most tasks of each env. None: all of a list, and `MOST_TASKS` at most of a source.
        ks: the k of pass@k and pass^k; None: 1, 2, 4, ... up to `group_size`.
        config: as the training run has it; `validate` is set. Without a seed it has 0, so that two evaluations play the
            same tasks. None: one episode of each task.
        out: a new folder for the trajectories, a file for each env; None keeps none.
        resume: continue the evaluation that `out` holds, given the same arguments, as `rollout` does. The engine must
            have the weights that the evaluation began with.
        progress: show on standard error, or in the notebook, how far it is.
        observers: hear of each episode while it is played.

    Raises:
        ConfigError: a k is above `group_size`, an argument is wrong as for `rollout`, two envs have the same name, or
            `out` holds something else, such as episodes of other weights.
        RunFailedError: every episode of an env failed at its first turn, and all in the same way. `out` then holds none
            of them, so that `resume` plays them again.
    """
    if resume and out is None:
        raise ConfigError("resume=True goes on with the evaluation in the folder out, and none is named")
    config = as_validation(config or RunConfig())
    ks = checked_ks(ks, config.group_size)
    sets = await eval_sets(envs, num_tasks, config)
    with contextlib.ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolgym-eval-"))) / "evaluation"
        finished = count_finished(Path(out), sets, resume=resume)
        if progress:
            episodes = sum(len(each.tasks) for each in sets) * config.group_size
            observers = [*observers, *progress_of(episodes, finished)]
        for each in sets:
            journal = Path(out, each.file).with_suffix(".journal")
            output = RunOutput(trajectories=Path(out, each.file), journal=journal)
            env, tasks = each
            try:
                await rollout(env, engine, tasks, config=config, out=output, resume=resume, observers=observers)
            except RunFailedError:  # nothing of this env was played: to go on is to play it
                Path(out, each.file).unlink(missing_ok=True)
                raise
            journal.unlink(missing_ok=True)
        evaluation = Evaluation.of(RunIndex(out).read_all(), ks)
    if len(evaluation.weight_versions) > 1:
        _log.warning(
            "the weights changed during the evaluation, so its figures are not of one policy: episodes by version %s",
            dict(evaluation.weight_versions),
        )
    return evaluation


def as_validation(config: RunConfig) -> RunConfig:
    """Return the config of a training run's validation."""
    return replace(config, validate=True, seed=config.seed or 0)


def checked_ks(ks: Sequence[int] | None, episodes: int) -> list[int]:
    """Return the k in order. Raises ConfigError if one is above the number of episodes: from fewer than k, pass@k
    cannot be estimated."""
    ks = sorted(set(powers_of_two(episodes) if ks is None else ks))
    for k in ks:
        require_whole_number("k", k, at_least=1)
        if k > episodes:
            raise ConfigError(
                f"pass@{k} cannot be estimated from fewer than {k} episodes of a task, and n = {episodes} for k = {k}: "
                f"play {k} or more of each (--samples, group_size), or ask for a k up to {episodes}"
            )
    return ks


async def eval_sets(
    envs: Env | Sequence[Env | tuple[Env, Tasks]], num_tasks: int | None, config: RunConfig
) -> list[EvalSet]:
    """Draw the tasks of each env, see `evaluate`."""
    listed = envs if isinstance(envs, Sequence) and not isinstance(envs, str) else [envs]
    sets: dict[str, EvalSet] = {}
    for each in listed:
        env, tasks = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
        factory = EnvFactory.of(env)
        source = await factory.tasks() if tasks is None else tasks
        drawn = EvalSet(factory, _drawn(source, num_tasks, config))
        if drawn.file in sets:
            raise ConfigError(
                f"two envs would write the file {drawn.file!r}: name each env once; EnvFactory(NAME, make) gives one "
                "with other arguments a name of its own"
            )
        sets[drawn.file] = drawn
    if not sets:
        raise ConfigError("expected an env to evaluate on, or several, and there is none: `toolgym envs` lists the ids")
    return list(sets.values())


def _drawn(source: Tasks, num_tasks: int | None, config: RunConfig) -> Sequence[Task]:
    if not isinstance(source, TaskSource | Sequence):
        raise ConfigError(f"the tasks of an evaluation are a list or a source of tasks, got {shorten(repr(source))}")
    if isinstance(source, TaskSource):
        num_tasks = MOST_TASKS if num_tasks is None else num_tasks
        require_whole_number("num_tasks", num_tasks, at_least=1)
        if source.size is not None:
            num_tasks = min(num_tasks, source.size)  # a source would begin anew, and a task count twice
    drawn = chosen_tasks(source, num_tasks, config)
    assert isinstance(drawn, Sequence)  # as the source is, or what is taken of it
    return drawn


def count_finished(folder: Path, sets: Sequence[EvalSet], *, resume: bool) -> int:
    """Return how many episodes an earlier call finished. Raises ConfigError if the folder holds other trajectories, or
    some that are not resumed."""
    there = {path.name for path in folder.glob("*.jsonl")}
    if there and not resume:
        raise ConfigError(
            f"{str(folder)!r} holds the results of an earlier run ({', '.join(sorted(there))}): go on with it "
            f"(resume=True, --resume {folder}), or name another folder (out)"
        )
    if others := there - {each.file for each in sets}:
        raise ConfigError(
            f"{str(folder)!r} holds trajectories that are of none of these envs ({', '.join(sorted(others))}): resume "
            "with the envs that the evaluation began with, or write elsewhere"
        )
    return sum(len(EarlierRun(folder / each.file)) for each in sets if each.file in there)
