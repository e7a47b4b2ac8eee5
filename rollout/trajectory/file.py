"""Trajectories on disk: JSON Lines, one trajectory a line."""

from __future__ import annotations

import io
import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolgym.rollout.trajectory.locked_file import LineFile, open_locked
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, missing_file, shorten

BLOCK = 1 << 20

_log = logging.getLogger("toolgym.rollout")


class TrajectoryWriter:
    """Appends trajectories to a JSON Lines file, each as soon as it is finished.

    Every line is handed to the operating system at once, so that a killed run keeps all that had finished. A line that
    could not be written, to a full disk for example, is tried again with the next one. The file is locked until it is
    closed or the process ends. With `append`, a last line that was cut is removed; else an existing file is replaced.

    Raises ConfigError if the file cannot be written, or another run is writing it.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        self.count = 0
        self._waiting = 0
        try:
            self._file = LineFile(open_locked(self.path))
            try:
                if append:
                    _end_last_line(self._file.file, self.path)
                else:
                    self.clear()
            except BaseException:  # an interrupt too: the lock must not outlive the writer
                self._file.file.close()
                raise
        except OSError as error:
            raise ConfigError(f"cannot write trajectories to {str(self.path)!r}: {error}") from error

    def clear(self) -> None:
        self._file.clear()

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory. Raises ConfigError if it is no trajectory, or if the disk is full or the file is
        gone; lines before it stay readable."""
        if not isinstance(trajectory, Trajectory):
            raise ConfigError(f"expected a toolgym Trajectory, got {shorten(repr(trajectory))}")
        # Lone surrogates, which a model may well produce, cannot be UTF-8; JSON escapes keep them.
        line = json.dumps(trajectory.to_json(), ensure_ascii=False)
        try:
            encoded = line.encode("utf-8")
        except UnicodeEncodeError:
            encoded = json.dumps(trajectory.to_json(), ensure_ascii=True).encode("ascii")
        self._waiting += 1
        try:
            self._file.write(encoded + b"\n")
        except OSError as error:
            raise ConfigError(
                f"cannot append to {str(self.path)!r} after {self.count} trajectories: {error}"
            ) from error
        self._count_written()

    def drop_unwritten(self) -> None:
        """Give up the trajectories that `write` could not append, so that the caller may write them again."""
        self._file.drop_pending()
        self._waiting = 0

    def remove_last(self, count: int) -> None:
        """Remove the last lines of the file."""
        with self.path.open("rb") as lines:
            starts = deque(accumulate(map(len, lines), initial=0), maxlen=count + 1)
        self._file.file.truncate(starts[0])
        self._file.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Write what is left to disk and close the file. Closing twice is fine. Raises ConfigError as `write` does."""
        try:
            self._file.close()
        except OSError as error:
            raise ConfigError(f"cannot finish {str(self.path)!r} after {self.count} trajectories: {error}") from error
        self._count_written()

    def _count_written(self) -> None:
        self.count, self._waiting = self.count + self._waiting, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ConfigError:
            if error is None:  # otherwise the error that is on its way says it
                raise


def read_trajectories(path: str | Path, *, skip_broken: bool = False) -> Iterator[Trajectory]:
    """Read a JSON Lines file of trajectories, one by one.

    A last line that was cut off, as a killed run leaves it, is skipped with a warning in the log. So is, with
    `skip_broken`, every line that is not a trajectory.

    Raises:
        UnknownNameError: there is no such file; names the nearest one.
        ConfigError: a line is not a trajectory; names the line.
    """
    path = Path(path)
    try:
        file = path.open("rb")  # a line that was cut may end within a character
    except FileNotFoundError:
        raise missing_file("trajectories", path) from None
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
    with file:
        for number, line in enumerate(file, start=1):
            try:
                trajectory = Trajectory.from_json(_json_object(line))
            except ConfigError as error:
                if isinstance(error, _NotJsonError) and not line.endswith(b"\n"):
                    _log.warning("%s: line %d was cut off and is skipped", path, number)
                    return
                if not skip_broken:
                    raise ConfigError(
                        f"{path}, line {number}: {error} (read_trajectories(..., skip_broken=True) skips such lines)"
                    ) from error
                _log.warning("%s: line %d is skipped: %s", path, number, error)
                continue
            yield trajectory


def _end_last_line(file: io.FileIO, path: Path) -> None:
    """Go to the end of a file of lines, and let the last one be whole: cut it off, unless only its end is missing."""
    end = file.seek(0, os.SEEK_END)
    start, tail = end, b""
    while start and b"\n" not in tail:
        before = max(0, start - BLOCK)
        file.seek(before)
        tail, start = file.read(start - before) + tail, before
    last = tail[tail.rfind(b"\n") + 1 :]
    if last:
        try:
            _json_object(last)
        except _NotJsonError:
            file.truncate(end - len(last))
            _log.warning("%s: the last line was cut off while it was written; it is removed", path)
        else:
            file.seek(end)
            file.write(b"\n")
    file.seek(0, os.SEEK_END)


class _NotJsonError(ConfigError):
    pass


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _NotJsonError(str(error)) from error
    if not isinstance(value, dict):
        raise _NotJsonError(f"expected a JSON object, got {type(value).__name__}")
    return value
