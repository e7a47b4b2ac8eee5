"""`JournalFolder`: the files that let a gateway continue after it was killed.

| file | what it holds |
| --- | --- |
| `sessions/NAME.journal` | an open session, see `SessionJournal`; removed when the session ends |
| `sessions.ended` | one line for each session that ended: its name, the digest of its key, and how it ended |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolgym.envs.types import StopReason
from toolgym.rollout.capture.journal import AppendedFile, SessionJournal, vars_of
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.errors import ConfigError

SESSIONS, ENDED, JOURNAL = "sessions", "sessions.ended", ".journal"


@dataclass(frozen=True)
class EndedSession:
    """The end of a session, as its caller asked for it. A `dropped` session has no trajectory."""

    name: str
    key_sha256: str
    reward: float = 0.0
    metrics: Mapping[str, Any] | None = None
    error: str | None = None
    reason: StopReason = StopReason.ANSWERED
    dropped: bool = False

    @classmethod
    def of(cls, trajectory: Trajectory, name: str) -> EndedSession:
        """The end of a session of which only the trajectory was written, and not how it was asked for."""
        error = None if trajectory.error is None else trajectory.error.message
        return cls(name, "", trajectory.reward, None, error, trajectory.stop_reason)

    def is_same_end(self, other: EndedSession) -> bool:
        if self.error is not None or other.error is not None:
            return self.error == other.error
        same_metrics = self.metrics is None or self.metrics == other.metrics
        return self.reward == other.reward and same_metrics and self.reason == other.reason


class JournalFolder:
    """The files of one run's sessions, in the run's folder. Raises ConfigError if they cannot be made."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self._folder, self._fsync = folder / SESSIONS, fsync
        self._ended = AppendedFile(folder / ENDED)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {str(folder)!r}: {error}") from error
        self.ended = {line["name"]: _ended_from_json(line) for line in self._ended.read()}
        """The sessions of earlier processes that ended, by name."""

    def journal(self, name: str) -> SessionJournal:
        return SessionJournal(self._folder / f"{name}{JOURNAL}", fsync=self._fsync)

    def journals(self) -> Iterator[SessionJournal]:
        """Yield the journals of all open sessions."""
        for path in sorted(self._folder.glob(f"*{JOURNAL}")):
            yield SessionJournal(path, fsync=self._fsync)

    def end(self, ended: EndedSession) -> None:
        """Note the end of a session, and remove its journal. Raises NotWrittenError."""
        self._ended.append(vars_of(ended))
        self.journal(ended.name).remove()


def _ended_from_json(line: Mapping[str, Any]) -> EndedSession:
    return EndedSession(**{**plain(line), "reason": StopReason(line["reason"])})
