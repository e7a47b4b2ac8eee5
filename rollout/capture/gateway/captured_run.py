"""`CapturedRun`: the run that a gateway's sessions belong to, each with a place of its own, and its files."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.gateway.journal_folder import EndedSession, JournalFolder
from toolgym.rollout.capture.journal import NotWrittenError, SessionJournal
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.recording.recorder import tokenizer_fingerprint
from toolgym.rollout.recording.run_folder import RUN, TRAJECTORIES, RunFile, RunFolder, tasks_hash
from toolgym.rollout.recording.secrets import scrub
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.runner.base import Sink
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "capture"
"""Option in `run.json` of a run that a gateway wrote: `toolgym rollout` cannot go on with it."""

GROUP = "group"
"""Setting of a trajectory: the name of its group, as the caller has it."""

SESSION = "session"
"""Setting of a trajectory: the name of its session."""


@dataclass
class CapturedRun:
    """Gives each session its place, and its trajectory to the sink. Groups are numbered in the order of their first
    session, and stand in the run as tasks do."""

    sink: Sink
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    seed: int | None = None
    files: JournalFolder | None = None
    """The files of open sessions; None if the sink is not a folder."""
    _earlier: dict[str, Trajectory] = field(default_factory=dict)
    _groups: dict[str, int] = field(default_factory=dict)
    _group_names: dict[int, str] = field(default_factory=dict)
    _taken: set[EpisodeKey] = field(default_factory=set)

    def place(self, task: Task, group: str | None = None, sample: int | None = None) -> Job:
        """Reserve a place: in the group of that name (None: that of the task's id, or a new one), the sample of that
        number (None: the first free one). Raises ConfigError if it is taken."""
        name = group or task.id or f"session-{len(self._groups)}"
        number = self._groups.get(name, len(self._groups))
        numbers = itertools.count() if sample is None else [sample]
        key = next((key for n in numbers if (key := EpisodeKey(number, n)) not in self._taken), None)
        if key is None:
            raise ConfigError(
                f"sample {sample} of group {name!r} is there already: delete its session, or leave the sample out"
            )
        self._take(name, key)
        return Job(task, key, f"{self.run_id}-{number}", self.seed)

    def release(self, job: Job) -> None:
        """Free the place of a session that was dropped."""
        self._taken.discard(job.key)

    def write(self, trajectory: Trajectory, ended: EndedSession) -> Trajectory:
        """Hand a trajectory to the sink, and return it, with the names of its group and session in its settings. Raises
        NotWrittenError if that failed: then the sink does not have it."""
        names = {GROUP: self._group_names[trajectory.task_index], SESSION: ended.name}
        trajectory = replace_fields(trajectory, settings={**trajectory.settings, **names})
        try:
            self.sink.write(trajectory)
        except ConfigError as error:
            if isinstance(self.sink, TrajectoryWriter):
                self.sink.drop_unwritten()
            raise NotWrittenError(f"cannot write the trajectory: {error}") from error
        if self.files is not None:
            with contextlib.suppress(NotWrittenError):  # a restarted gateway reads the end from the trajectory
                self.files.end(ended)
        return trajectory

    def forget(self, ended: EndedSession) -> None:
        """Note that a session was dropped. Raises NotWrittenError."""
        if self.files is not None:
            self.files.end(ended)

    def journal(self, name: str) -> SessionJournal | None:
        return None if self.files is None else self.files.journal(name)

    def open_journals(self) -> Iterator[SessionJournal]:
        """Yield the journals of the sessions that an earlier process left open."""
        yield from () if self.files is None else self.files.journals()

    def ended_sessions(self, most: int) -> list[tuple[EndedSession, Trajectory | None]]:
        """Return the newest sessions of earlier processes that ended, with their trajectories unless they were
        dropped."""
        ended = {} if self.files is None else dict(self.files.ended)
        for name, trajectory in self._earlier.items():
            ended.setdefault(name, EndedSession.of(trajectory, name))
        newest = [(each, self._earlier.get(name)) for name, each in ended.items()][-most:]
        self._earlier.clear()
        return newest

    def reserve(self, group: str, job: Job) -> None:
        """Take the place of a session of an earlier process."""
        self._take(group, job.key)

    def group_of(self, job: Job) -> str:
        return self._group_names[job.key.task_index]

    def remember(self, trajectory: Trajectory) -> None:
        """Take the place of an earlier trajectory of this run."""
        key = EpisodeKey(trajectory.task_index, trajectory.sample_index)
        if SESSION in trajectory.settings:
            self._earlier[trajectory.settings[SESSION]] = trajectory
        self._take(trajectory.settings.get(GROUP, f"task-{key.task_index}"), key)

    def _take(self, group: str, key: EpisodeKey) -> None:
        self._groups[group] = key.task_index
        self._group_names[key.task_index] = group
        self._taken.add(key)


@contextlib.contextmanager
def captured_run(
    out: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    engine: str,
    tokenizer_name: str | None,
    seed: int | None,
    fsync: bool = False,
) -> Iterator[CapturedRun]:
    """Begin the run in a folder, or go on with it. Raises ConfigError if another run is there, of another command or
    with another tokenizer, or a server writes it now."""
    fingerprint = tokenizer_fingerprint(tokenizer)
    earlier = RunFile.read(out) if (out / RUN).is_file() else None
    if earlier is not None and MARK not in earlier.options:
        raise ConfigError(f"{str(out / RUN)!r} is of another run: name another folder with --out")
    if earlier is not None and earlier.tokenizer != fingerprint:
        raise ConfigError(f"the run in {str(out)!r} has another tokenizer: its tokens mean something else")
    with RunFolder(out) as folder:
        if earlier is None and (out / TRAJECTORIES).stat().st_size:
            raise ConfigError(f"{str(out / TRAJECTORIES)!r} holds trajectories of another run: name another folder")
        options: dict[str, Any] = {MARK: True, "engine": scrub(engine), "tokenizer": tokenizer_name}
        pad = next(pad for pad in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if pad is not None)
        run_id = earlier.run_id if earlier is not None else uuid.uuid4().hex
        file = RunFile(run_id, options, 0, tasks_hash([]), tokenizer=fingerprint, pad_token_id=pad)
        run = CapturedRun(folder.writer, run_id, seed, JournalFolder(out, fsync=fsync))
        if earlier is None:
            folder.begin(file)
        else:
            folder.go_on(file)
            for trajectory in read_trajectories(out / TRAJECTORIES):
                run.remember(trajectory)
        yield run
