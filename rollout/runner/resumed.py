"""A run that an earlier one began: `EarlierRun` is what that left on disk, `Resumed` gives a runner the rest."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.episode.record import task_label
from toolgym.rollout.job import EpisodeKey, Job, task_group
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.role_plan import labelled_roles
from toolgym.rollout.runner.run_settings import ENV_SEEDS
from toolgym.rollout.runner.scheduling.scheduler import RunCounts, Scheduler, finish
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.distribution import versions_of
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.errors import ConfigError, TemplateError, shorten
from toolgym.tools.schema import ToolSchema

if TYPE_CHECKING:
    from toolgym.rollout.runner.local import Runner

_log = logging.getLogger("toolgym.rollout")

_Facts = Iterable[tuple[str, Any, Any]]
"""The name of something, and its value in the earlier run and in the run that is resumed."""


class EarlierRun:
    """The trajectories in the JSON Lines file of a run that ended, at whatever point, by job: one, or one for each
    role; none if there is no path. A job of which a role is missing, as a killed run may leave its last one, counts as
    not played. Raises `ConfigError` if they are not those of one run."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        lines = list(read_trajectories(path)) if path is not None else []
        counts = Counter((_key(trajectory), trajectory.role) for trajectory in lines)
        twice = next((key for (key, _), count in counts.items() if count > 1), None)
        if twice is not None:
            raise ConfigError(f"{path} holds {twice} twice: it is not the file of one run")
        self.trajectories = whole_jobs(lines)
        self._parts = len(lines) - len(self.finished)
        finished = self.finished
        groups = (task_group(trajectory.group_id, trajectory.role) for trajectory in finished)
        self.run_id = self._only("runs", (group.rpartition("-")[0] for group in groups))
        # A trajectory without an env has no sampling.
        self.seed = self._only("seeds", (each.sampling["seed"] for each in finished if each.sampling))

    def __len__(self) -> int:
        return len(self.trajectories)

    @property
    def finished(self) -> list[Trajectory]:
        return list(itertools.chain(*self.trajectories.values()))

    def remove_parts(self, writer: TrajectoryWriter) -> None:
        """Remove the trajectories of a job that is not whole, and is played again, from the file. They are its last
        lines, since those of a job are written one behind the other."""
        if self._parts:
            writer.remove_last(self._parts)

    def _only(self, what: str, values: Iterable[Any]) -> Any:
        different = set(values)
        if len(different) > 1:
            raise ConfigError(f"{self.path} holds trajectories of {len(different)} {what}: only one run can be resumed")
        return next(iter(different), None)

    def seeded(self, config: RunConfig) -> RunConfig:
        """The config with a seed: if it has none, with this run's, or else with one that is drawn now."""
        return (replace(config, seed=self.seed) if config.seed is None else config).seeded()

    def check(
        self, env: EnvFactory, config: RunConfig, tasks: Tasks, members: int, *, run_id: str | None = None
    ) -> None:
        """Check that the run that is to be resumed is this one: its `tasks`, of which each begins so many `members`,
        and the `run_id` that its groups' ids should begin with. Tasks that are not in a list are checked by `Resumed`.
        Raises `ConfigError` if an episode was played otherwise, or the run's episodes branch."""
        if self.path is not None and config.branching is not None:
            raise ConfigError(
                "a run whose episodes branch cannot be resumed: where a branch stood is in no file. Leave resume out, "
                "or branching"
            )
        for trajectory in self.finished:
            key = _key(trajectory)
            if run_id is not None:
                _require_same(key, [("the run id", self.run_id, run_id)])
            factory = env.members.get(trajectory.env_id, env)
            plan = factory.roles.get(trajectory.role)
            sampling = (config if plan is None else plan.config(config)).sampling_in_use
            _require_same(key, _of_config(trajectory, factory.env_id, config, sampling))
            _require_same(key, [("a sample_index below", max(key.sample_index + 1, members), members)])
            if isinstance(tasks, Sequence):
                count = len(tasks)
                _require_same(key, [("a task_index below", max(key.task_index + 1, count), count)])
                _require_same(key, _of_task(trajectory, tasks[key.task_index], env))

    async def check_settings(self, runner: Runner) -> None:
        """Check what takes an env, the tokenizer and its chat template to see. Raises `ConfigError` as `check` does."""
        played = [trajectory for trajectory in self.finished if trajectory.sequences]
        if not played:
            return
        member_seeds = any(trajectory.settings and ENV_SEEDS not in trajectory.settings for trajectory in played)
        if member_seeds:
            _log.warning(
                "an earlier version of toolgym began this run, and gave each member of a group another seed for its "
                "env. Members that are played now may begin in another state, if the state depends on that seed"
            )
        _check_versions(played, runner)
        for factory in runner.env.each:
            env = factory()
            try:
                now = runner.settings(env, factory)
            finally:
                await close_env(env)
            if member_seeds:
                now.pop(ENV_SEEDS)
            for trajectory in played:
                if trajectory.settings and trajectory.env_id == factory.env_id:
                    names = {**now, **trajectory.settings}.keys() - {"task"}
                    facts = ((name, trajectory.settings.get(name), now.get(name)) for name in sorted(names))
                    _require_same(_key(trajectory), facts)
        first = min(played, key=lambda each: each.started_at)  # what a template says of the day is this one's
        if len(first.sequences) == 1:
            _require_same(_key(first), _of_tokens(first, runner))


def _check_versions(played: Sequence[Trajectory], runner: Runner) -> None:
    """Raise ConfigError if a validation was begun with other weights; of a training run, which may update its weights
    while it plays, log a warning."""
    for role in dict.fromkeys(trajectory.role for trajectory in played):
        plan = runner.env.roles.get(role)
        engine = runner.engine if plan is None or plan.engine is None else plan.engine
        now = engine.weight_version
        counts = Counter(
            version
            for trajectory in played
            if trajectory.role == role
            for version in versions_of(trajectory.sequences)
            if version != now
        )
        if not counts:
            continue
        there = ", ".join(f"{count} episodes of version {version!r}" for version, count in counts.items())
        if runner.config.validate:
            raise ConfigError(
                f"what is on disk was played with other weights: {there}, and the engine now has version {now!r}. "
                "Resume with the weights that the validation began with, or write elsewhere"
            )
        _log.warning("the run that is resumed has %s, and the engine now has version %r", there, now)


def whole_jobs(trajectories: Iterable[Trajectory]) -> dict[EpisodeKey, tuple[Trajectory, ...]]:
    """Return trajectories by job, without the jobs of which a role's is missing."""
    jobs: dict[EpisodeKey, tuple[Trajectory, ...]] = {}
    for trajectory in trajectories:
        jobs[_key(trajectory)] = (*jobs.get(_key(trajectory), ()), trajectory)
    return {
        key: there for key, there in jobs.items() if {each.role for each in there} >= labelled_roles(there[0].settings)
    }


def _key(trajectory: Trajectory) -> EpisodeKey:
    return EpisodeKey(trajectory.task_index, trajectory.sample_index)


def _of_tokens(trajectory: Trajectory, runner: Runner) -> _Facts:
    """The first prompt as its messages give it now, and all texts as its ids do."""
    began = datetime.fromtimestamp(trajectory.started_at)
    plan = runner.env.roles.get(trajectory.role)
    renderer = ChatRenderer(
        runner.tokenizer if plan is None else plan.tokenizer_in_use(runner.tokenizer),
        [ToolSchema.from_openai(tool, external=True) for tool in trajectory.tools],
        runner.config.template_kwargs,
        parser=runner.config.parser,
        processor=runner.config.processor,
        now=began,
    )
    there, now = trajectory.prompt_ids.tolist(), list[int]()
    for count in range(1, len(trajectory.messages) + 1):
        with contextlib.suppress(TemplateError):  # some templates refuse a conversation that no user has begun
            now = renderer.prompt(messages := trajectory.messages[:count], examples=messages)
        if len(now) >= len(there):
            break
    yield "the first prompt, as tokens,", there, now
    texts = renderer.decode(there), renderer.decode(trajectory.response_ids.tolist())
    yield "the texts of its tokens", (trajectory.prompt_text, trajectory.response_text), texts


def _of_config(trajectory: Trajectory, env_id: str, config: RunConfig, sampling: SamplingParams) -> _Facts:
    yield "the env", trajectory.env_id, env_id
    yield "the training step", trajectory.training_step, config.training_step
    yield "validate", trajectory.validate, config.validate
    if trajectory.sampling:
        there, now = _as_read(trajectory.sampling), _as_read({**asdict(sampling), "seed": config.seed})
        for name in {**there, **now}:
            yield f"the sampling's {name}", there.get(name), now.get(name)


def _of_task(trajectory: Trajectory, task: Task, env: EnvFactory | None = None) -> _Facts:
    if env is not None:
        yield "the task's env", trajectory.env_id, env.member(task).env_id
    yield "the task", trajectory.task_id, task.id
    if trajectory.settings:
        yield "the task's messages and arguments of tools", trajectory.settings.get("task"), task_label(task)
    yield "the source", trajectory.source, task.source
    yield "the ground truth", _as_read(trajectory.ground_truth), _as_read(task.ground_truth)


def _require_same(key: EpisodeKey, facts: _Facts) -> None:
    differ = [
        f"{what} {shorten(repr(there), 100)}, and the run to be resumed {shorten(repr(now), 100)}"
        for what, there, now in facts
        if there != now
    ]
    if differ:
        raise ConfigError(
            f"what is on disk is of another run: {key} has {'; '.join(differ[:8])}. Resume with the arguments of the "
            "run that wrote it, or write elsewhere"
        )


def _as_read(value: Any) -> Any:
    """A value as it is after it was written as JSON."""
    return json.loads(json.dumps(plain(value)))


class Resumed(Scheduler):
    """Gives the jobs of another scheduler, but for those that an earlier run finished. To the other scheduler, which
    has the `run_id` of the earlier run, these finish at once, in its own order. The consumer gets what is played now;
    `skipped` are the earlier trajectories that it would have got."""

    def __init__(self, scheduler: Scheduler, earlier: Mapping[EpisodeKey, Sequence[Trajectory]]) -> None:
        self._inside, self._earlier = scheduler, earlier
        self.skipped: list[Trajectory] = []
        for name in ("tell_cuts", "ready", "cuts", "suspended", "carried", "branch", "require_roles", "close"):
            setattr(self, name, getattr(scheduler, name))

    @property
    def counts(self) -> RunCounts:
        return self._inside.counts

    async def next(self) -> Job | None:
        while not self._inside.over:
            job = await self._inside.next()
            if job is None or job.key not in self._earlier:
                return job
            trajectories = self._earlier[job.key]
            for trajectory in trajectories:
                _require_same(job.key, _of_task(trajectory, job.task))
            self._new(finish(self._inside, job, trajectories))
            self._new(await self._inside.decide())
        return None

    async def decide(self) -> Sequence[Trajectory]:
        return self._new(await self._inside.decide())

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        return self.finished_roles(job, (trajectory,))

    def finished_roles(self, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        return self._new(finish(self._inside, job, trajectories))

    def _new(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        new: list[Trajectory] = []
        for trajectory in trajectories:
            known = any(trajectory is each for each in self._earlier.get(_key(trajectory), ()))
            (self.skipped if known else new).append(trajectory)
        return new

    @property
    def over(self) -> bool:
        return self._inside.over
