"""Files and folders that are there whole or not at all, and the tally of an export."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from toolgym.tools.errors import ConfigError

UNPARSED = "(unparsed)"
"""Name of a call whose own name could not be read; readers of ATIF and Inspect want one."""

FACTS = (
    *("env_id", "task_id", "source", "group_id", "sample_index", "training_step", "validate", "reward", "ground_truth"),
    *("stop_reason", "error", "parent", "branch_turn", "seconds", "role"),
)
"""Facts of a trajectory that formats of conversations have no place for."""


@dataclass
class Tally:
    """The account of an export: rows `written`, trajectories `left_out` by reason, and by what the format `lost`."""

    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def lose(self, what: str, happened: bool = True) -> None:
        if happened:
            self.lost[what] += 1


class Options(NamedTuple):
    """The name of the model, the run's path, when the first trajectory began (seconds since the epoch), and the options
    of the command that only some formats have; `block` is the number of tokens that a block of a trace has."""

    model: str
    run: Path
    began_at: float = 0.0
    tokenizer: str | None = None
    min_reward: float | None = None
    ids: bool = False
    scale: int = 1
    block: int = 64


@contextlib.contextmanager
def becoming(out: Path, *, overwrite: bool, members: str = "") -> Iterator[Path]:
    """Yield a path beside `out` to write to, which takes its name at the end unless an error comes before.

    With `members`, a regular expression for names, it is a folder, and replaces only a folder of such files. Raises
    ConfigError if there is something at `out` that may not be replaced, or the disk refuses.
    """
    if os.path.lexists(out):
        if not overwrite:
            raise ConfigError(f"{str(out)!r} is there: name another place with --out, or replace it with --overwrite")
        others = [path for path in out.iterdir() if not re.fullmatch(members, path.name)] if out.is_dir() else []
        if others or out.is_dir() != bool(members):
            raise ConfigError(f"--out {str(out)!r} is no earlier export of this format: name another place")
    part, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("part", "old"))
    try:
        (part if members else out.parent).mkdir(parents=True, exist_ok=True)
        yield part
        if members and out.exists():
            out.rename(old)
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error}") from error
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        for path in (part, old):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def encodable(value: Any) -> Any:
    """A value as JSON with `?` for each lone surrogate; arrays become lists."""
    return json.loads(json.dumps(value, ensure_ascii=False, default=methodcaller("tolist")).encode(errors="replace"))


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
