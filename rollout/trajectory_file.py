"""Trajectories on disk: JSON Lines, one trajectory a line."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from toolgym.rollout.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, missing_file

_log = logging.getLogger("toolgym.rollout")


class TrajectoryWriter:
    """Appends trajectories to a JSON Lines file, each as soon as it is finished.

    Every line is flushed to the operating system, so that a killed run keeps all that had finished.

    Args:
        path: the file; an existing one is replaced.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.count = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write trajectories to {str(self.path)!r}: {error}") from error

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory.

        Raises:
            ConfigError: the disk is full or the file is gone; what was written before stays readable.
        """
        # Lone surrogates, which a model may well produce, cannot be UTF-8; JSON escapes keep them.
        line = json.dumps(trajectory.to_json(), ensure_ascii=False)
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            line = json.dumps(trajectory.to_json(), ensure_ascii=True)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"cannot append to {str(self.path)!r} after {self.count} trajectories: {error}"
            ) from error
        self.count += 1

    def close(self) -> None:
        """Write what is left to disk and close the file. Closing twice is fine.

        Raises:
            ConfigError: the disk is full or the file is gone.
        """
        if self._file.closed:
            return
        try:
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()
        except OSError as error:
            raise ConfigError(f"cannot finish {str(self.path)!r} after {self.count} trajectories: {error}") from error

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


def read_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """Read a JSON Lines file of trajectories, one by one.

    A last line that was cut off, as a killed run leaves it, is skipped with a warning in the log. Groups of files of
    versions 1 and 2 get ids that are the same at every reading, and that no other file's groups have.

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
    run = ""
    with file:
        for number, line in enumerate(file, start=1):
            run = run or hashlib.blake2b(bytes(path.resolve()) + line, digest_size=8).hexdigest()
            try:
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise ConfigError(f"expected a JSON object, got {type(value).__name__}")
            except (ValueError, RecursionError) as error:  # a ConfigError is a ValueError, too
                if not line.endswith(b"\n"):
                    _log.warning("%s: line %d was cut off and is skipped", path, number)
                    return
                raise ConfigError(f"{path}, line {number}: {error}") from error
            try:
                yield Trajectory.from_json(value, run=run)
            except ConfigError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
