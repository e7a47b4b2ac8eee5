"""`RunFolder`: all that a run leaves on disk, and all that is needed to go on with it.

| file | what it holds |
| --- | --- |
| `run.json` | what the run is: its options, hashes of its tasks and files, its id; written before the first episode |
| `0.jsonl` | the trajectories of the episodes that have finished |
| `turns.journal` | what the engine answered for those that have not (see `JournaledEngine`); removed at the run's end |
| `batch.safetensors` | the batch of all, written at the end |

The trajectories are named as in verl's `rollout_data_dir`, by their training step, and no other file ends with
`.jsonl`: so verl's `rollout_viewer.py` opens the folder.

`run.json` is replaced at once and never half written. The run that writes a folder has a lock on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolgym.envs.tasks.task import Task
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.rollout.trajectory.trajectory import plain
from toolgym.tools.errors import ConfigError

RUN, TRAJECTORIES, TURNS, BATCH = "run.json", "0.jsonl", "turns.journal", "batch.safetensors"

FORMAT = "toolgym-run"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunFile:
    """The contents of `run.json`: `tasks` and `files` are SHA-256 sums of the tasks and of each option's file.

    The ids of its groups begin with the `run_id`, the `options` are plain JSON, and the `tokenizer` is a
    `tokenizer_fingerprint`.
    """

    run_id: str
    options: Mapping[str, Any]
    episodes: int
    tasks: str
    files: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    pad_token_id: int = 0

    @classmethod
    def read(cls, folder: Path) -> RunFile:
        path = folder / RUN
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                f"{str(folder)!r} holds no run to resume: there is no {RUN} in it, which a run writes before its first "
                "episode. Name the folder that was the run's --out, or start the run anew"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {str(path)!r}: {error}. {_ANEW}") from error
        if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
            raise ConfigError(f"{str(path)!r} is no file of a run of toolgym. {_ANEW}")
        version = value.pop("version", None)
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{str(path)!r} has version {version!r} of the format, and this library reads {FORMAT_VERSION}: resume "
                "the run with the version of toolgym that began it"
            )
        kinds = {item.name: item.type for item in dataclasses.fields(cls)}
        wrong = [name for name, kind in kinds.items() if not isinstance(value.get(name), _TYPES[str(kind)])]
        if wrong or value.keys() - kinds.keys():
            raise ConfigError(f"{str(path)!r} is broken: expected {', '.join(kinds)}, got {', '.join(value)}. {_ANEW}")
        return cls(**value)

    def write(self, folder: Path) -> None:
        path, new = folder / RUN, folder / f"{RUN}.new"
        value = {"format": FORMAT, "version": FORMAT_VERSION, **dataclasses.asdict(self)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as file:
                file.write(json.dumps(value, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


_TYPES: dict[str, type] = {"str": str, "int": int, "Mapping[str, Any]": dict, "Mapping[str, str]": dict}
_ANEW = f"Without it the run cannot be resumed; what has finished is in {TRAJECTORIES}, which `read_trajectories` reads"


class RunFolder:
    """The folder of a run, locked for it: a `ConfigError` if another run is writing it.

    What is in it stays as it is, except for a line of `0.jsonl` that was cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = TrajectoryWriter(path / TRAJECTORIES, append=True)

    def begin(self, run: RunFile) -> None:
        """Begin a run: what an earlier one left is removed."""
        try:
            # First that which says that the rest belongs together.
            for name in (RUN, TURNS, BATCH):
                (self.path / name).unlink(missing_ok=True)
            self.writer.clear()
        except OSError as error:
            raise ConfigError(f"cannot write to {str(self.path)!r}: {error}") from error
        run.write(self.path)

    def go_on(self, run: RunFile) -> None:
        (self.path / BATCH).unlink(missing_ok=True)  # of fewer trajectories
        run.write(self.path)

    def complete(self) -> None:
        (self.path / TURNS).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)


def file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error


def tasks_hash(tasks: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        row = task.to_json_row()
        if not task.row:  # its kwargs were in the rows, and so in the hashes of runs, also where there are none
            row["extra_info"] = {"tools_kwargs": {}, **row["extra_info"]}
        digest.update(json.dumps(plain(row), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
