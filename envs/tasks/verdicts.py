"""Verdicts on the tasks of a file, as `toolgym validate` writes them beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from toolgym.tools.errors import ConfigError

_log = logging.getLogger("toolgym.envs")


def verdict_file(tasks: Path) -> Path:
    """Return the file that holds the verdicts on the tasks of a file."""
    return tasks.with_name(f"{tasks.name}.verdicts.jsonl")


def known_faults(tasks: Path) -> Mapping[str, str]:
    """Return the faults of a file's tasks by their ids, as the verdicts beside it say; empty if there are none.

    A file of tasks that was changed after its verdicts were written raises ConfigError, as does a file of verdicts that
    cannot be read.
    """
    path = verdict_file(tasks)
    if not path.exists():
        return {}
    if path.stat().st_mtime < tasks.stat().st_mtime:
        raise ConfigError(
            f"{tasks} was changed after {path.name} was written: run `toolgym validate` again, or delete the verdicts"
        )
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        faults = {str(row["id"]): str(row["fault"]) for row in rows if row["fault"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} does not hold verdicts of `toolgym validate`: {error!r}") from error
    if faults:
        names = ", ".join(faults)
        _log.warning("Left out %d tasks of %s; %s says why: %s", len(faults), tasks, path.name, names)
    return faults
