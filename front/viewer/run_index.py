"""`RunIndex`: the trajectories of a run on disk, a `Row` of figures for each, and each whole when it is asked for.

It reads a file of trajectories, a run's folder, and what verl writes to its `rollout_data_dir`; files that grow are
read on. Of a file only places and figures are kept: 100,000 trajectories of 1 GB take about 1.5 s and 100 MB.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from sys import intern
from typing import Any, TypeVar

import msgspec

from toolgym.envs.types import StopReason
from toolgym.rollout.advantages.advantages import group_advantages
from toolgym.rollout.recording.lines import is_recording
from toolgym.rollout.trajectory.summary import has_full_marks
from toolgym.rollout.trajectory.trajectory import FORMAT_VERSION, Trajectory
from toolgym.tools.errors import ConfigError, missing_file

MAX_ERROR = 200
"""Characters of a failure's text that a row keeps."""

COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")

UNREADABLE = "unreadable"
"""Stop reason of a line that is no trajectory; its `error` says why."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One trajectory's place and figures.

    `number` is its place in the index, `start` and `size` are bytes of the file at `file` in `RunIndex.files`. `reward`
    is NaN for an unreadable line. `problems` are the statuses of tool calls that were not ok, each once. `tokens` are
    those that the policy generated.
    """

    number: int
    file: int
    start: int
    size: int
    id: str = ""
    env: str = ""
    task: str = ""
    group: str = ""
    sample: int = 0
    step: int = 0
    reward: float = float("nan")
    success: bool = False
    stop: str = UNREADABLE
    blame: str = "user"
    failed: bool = False
    counted: bool = False
    turns: int = 0
    calls: int = 0
    problems: tuple[str, ...] = ()
    tokens: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    env_seconds: float = 0.0
    role: str = "policy"
    parent: str | None = None
    branch_turn: int | None = None
    validate: bool = False
    error: str = ""
    started_at: float = 0.0

    @property
    def readable(self) -> bool:
        return self.stop != UNREADABLE

    @property
    def troubled(self) -> bool:
        """Whether the episode failed, or a tool call of it was not ok."""
        return self.failed or bool(self.problems)


class _Call(msgspec.Struct):
    status: str = "ok"
    infra_failure: bool = False


class _Turn(msgspec.Struct):
    generated_tokens: int = 0
    engine_seconds: float = 0.0
    env_seconds: float = 0.0
    tool_calls: list[_Call] = []


class _Error(msgspec.Struct):
    message: str = ""
    turn: int = 0


class _Line(msgspec.Struct):
    """The keys of a line that are decoded; others are skipped."""

    score: float | str  # a text for NaN and Infinity
    format_version: int = 0
    id: str = ""
    env_id: str = ""
    task_id: str = ""
    task_index: int = 0
    group_id: str = ""
    sample_index: int = 0
    step: int = 0
    stop_reason: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    validate: bool = False
    role: str = "policy"
    parent: str | None = None
    branch_turn: int | None = None
    error: _Error | None = None
    metrics: dict[str, Any] = {}
    turns: list[_Turn] = []


class _VerlLine(msgspec.Struct):
    """The columns of verl that are decoded. Others may have names of ours, and hold anything."""

    input: msgspec.Raw = msgspec.Raw()
    score: Any = None
    step: Any = 0
    request_id: Any = ""
    format_version: Any = 0


_lines = msgspec.json.Decoder(_Line)
_verl_lines = msgspec.json.Decoder(_VerlLine)
T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """Decode a line, with `?` for halves of surrogate pairs, and texts for NaN and Infinity: msgspec refuses those."""
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        try:
            mended = json.dumps(json.loads(line, parse_constant=str), ensure_ascii=False).encode(errors="replace")
        except (ValueError, RecursionError):
            mended = line
        return decoder.decode(mended)


class RunIndex:
    """Reads lazily: call `read` until it returns False, and again later if the run goes on.

    Args:
        path: a file of trajectories, or a folder with such files (`*.jsonl`).

    Raises:
        UnknownNameError: there is no such file or folder; names the nearest one.
        ConfigError: the folder has no file of trajectories.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise missing_file("trajectories", self.path)
        if self.path.suffix in COMPRESSED:
            raise ConfigError(f"{str(self.path)!r} is compressed, and is read at places: unpack it first")
        self.files: list[Path] = []
        self.rows: list[Row] = []
        self.groups: dict[str, list[int]] = {}
        self.by_id: dict[str, int] = {}
        self._ends: list[int] = []
        self._find_files()
        if not self.files:
            raise ConfigError(
                f"{str(self.path)!r} holds no trajectories: it is a recording, which `toolgym replay` plays"
                if self.path.is_file()
                else f"{str(self.path)!r} holds no trajectories: there is no *.jsonl in it but recordings, if any"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def size(self) -> int:
        """Bytes of all files as they are now."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def bytes_read(self) -> int:
        return sum(self._ends)

    def read(self, seconds: float = float("inf")) -> bool:
        """Read on for about so many seconds. Returns whether it stopped for the time, so that more is to be read.

        A last line without its end, which a run may be writing, is read when it is whole.

        Raises:
            ConfigError: a file has become shorter than what was read of it.
        """
        stop_at = time.monotonic() + seconds
        self._find_files()
        for number, path in enumerate(self.files):
            with path.open("rb", buffering=1 << 20) as file:
                if file.seek(0, os.SEEK_END) < self._ends[number]:
                    raise ConfigError(f"{str(path)!r} has become shorter, so another run replaced it: open it again")
                file.seek(self._ends[number])
                for line in file:
                    if not line.endswith(b"\n") and not _is_json(line):
                        break
                    self._add(number, self._ends[number], line)
                    self._ends[number] += len(line)
                    if time.monotonic() > stop_at:
                        return True
        return False

    def read_all(self) -> RunIndex:
        self.read()
        return self

    def line(self, row: Row) -> bytes:
        """Return the line of a row as it stands in its file."""
        return next(self.lines([row]))[1]

    def trajectory(self, row: Row) -> Trajectory:
        """Read a trajectory whole. One of verl has a message of the user and one of the policy, and no token ids.

        Raises:
            ConfigError: the line is no trajectory of this version, or the file is another one by now.
        """
        if not row.readable:
            raise ConfigError(f"{self.place(row)}: {row.error}")
        try:
            value = json.loads(self.line(row))
            return Trajectory.from_json(value) if "format_version" in value else _of_verl(value, row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.place(row)}: {error}") from error

    def group(self, row: Row) -> list[Row]:
        """Return the members of a row's group, itself among them, by their sample."""
        numbers = self.groups.get(row.group) if row.group else None
        return sorted((self.rows[number] for number in numbers or [row.number]), key=lambda member: member.sample)

    def advantages(self, row: Row) -> dict[int, float | None]:
        """Return the advantages of a row's group by the numbers of its members. Raises ConfigError as `trajectory`."""
        members = self.group(row)
        return dict(zip((m.number for m in members), group_advantages(map(self.trajectory, members)), strict=True))

    def place(self, row: Row) -> str:
        return f"{self.files[row.file]}, byte {row.start}"

    def lines(self, rows: Iterable[Row]) -> Iterator[tuple[Row, bytes]]:
        """Yield rows with their lines; a file is opened once for all of its rows that follow each other."""
        for number, of_file in itertools.groupby(rows, key=lambda row: row.file):
            with self.files[number].open("rb") as file:
                for row in of_file:
                    file.seek(row.start)
                    yield row, file.read(row.size)

    def _find_files(self) -> None:
        paths = [self.path] if self.path.is_file() else sorted(self.path.glob("*.jsonl"), key=_by_number)
        for path in paths:
            if path not in self.files and not is_recording(path):
                self.files.append(path)
                self._ends.append(0)

    def _add(self, file: int, start: int, line: bytes) -> None:
        if line.isspace():
            return
        number = len(self.rows)
        try:
            row = _row(line, number, file, start)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            row = Row(number, file, start, len(line), error=str(error)[:MAX_ERROR], failed=True)
        self.rows.append(row)
        if row.group:
            self.groups.setdefault(row.group, []).append(number)
        if row.id:
            self.by_id[row.id] = number


def _is_json(line: bytes) -> bool:
    try:
        return line.rstrip().endswith(b"}") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _row(text: bytes, number: int, file: int, start: int) -> Row:
    wrong: Exception = ValueError("it is neither a trajectory of toolgym nor a row of verl")
    try:
        line = decoded(_lines, text)
    except msgspec.ValidationError as error:
        line, wrong = _Line(0.0), error
    if not line.format_version:
        verl = decoded(_verl_lines, text)
        if verl.format_version or not verl.input:
            raise wrong
        return _row_of_verl(verl, number, file, start, len(text))
    if line.format_version != FORMAT_VERSION:
        raise ValueError(f"it is of format version {line.format_version}, and this library reads {FORMAT_VERSION}")
    if isinstance(line.score, str):
        raise ValueError(f"expected a finite number as `score`, got {line.score}")
    reason = StopReason(line.stop_reason)
    calls = [call for turn in line.turns for call in turn.tool_calls]
    failed = line.error is not None
    return Row(
        number,
        file,
        start,
        len(text),
        id=line.id,
        env=intern(line.env_id),
        task=intern(line.task_id or str(line.task_index)),
        group=intern(line.group_id),
        sample=line.sample_index,
        step=line.step,
        reward=line.score,
        success=not failed and has_full_marks(line.metrics, line.score),
        stop=intern(str(reason)),
        blame=intern(str(reason.blame)),
        failed=failed,
        counted=reason.in_group_statistics,
        turns=len(line.turns),
        calls=len(calls),
        problems=tuple(dict.fromkeys(intern(call.status) for call in calls if call.status != "ok")),
        tokens=sum(turn.generated_tokens for turn in line.turns),
        seconds=line.seconds,
        engine_seconds=sum(turn.engine_seconds for turn in line.turns),
        env_seconds=sum(turn.env_seconds for turn in line.turns),
        role=intern(line.role),
        parent=line.parent,
        branch_turn=line.branch_turn,
        validate=line.validate,
        started_at=line.started_at,
        error="" if line.error is None else line.error.message[:MAX_ERROR],
    )


def _row_of_verl(line: _VerlLine, number: int, file: int, start: int, size: int) -> Row:
    try:
        score = float(line.score)
    except (TypeError, ValueError):
        score = float("nan")
    step = int(line.step) if isinstance(line.step, int | float) else 0
    # verl gives the rollouts of one prompt no name, but the prompt: those of a step are a group.
    group = intern(f"{step}-{zlib.crc32(bytes(line.input)):08x}")
    return Row(
        number,
        file,
        start,
        size,
        id=str(line.request_id or ""),
        group=group,
        step=step,
        reward=score,
        success=has_full_marks({}, score),
        stop=StopReason.ANSWERED.value,
        blame=StopReason.ANSWERED.blame.value,
        counted=True,
    )


def _of_verl(value: dict[str, Any], row: Row) -> Trajectory:
    prompt, answer = str(value["input"]), str(value.get("output") or "")
    known = {"input", "output", "gts", "score", "step"}
    return Trajectory(
        id=row.id,
        env_id="",
        task_id="",
        source=str(value.get("data_source", "")),
        group_id=row.group,
        task_index=0,
        sample_index=row.sample,
        messages=({"role": "user", "content": prompt}, {"role": "assistant", "content": answer}),
        tools=(),
        sequences=(),
        reward=row.reward,
        stop_reason=StopReason.ANSWERED,
        ground_truth=value.get("gts"),
        metrics={name: item for name, item in value.items() if name not in known},
        prompt_text=prompt,
        response_text=answer,
        training_step=row.step,
    )


def _by_number(path: Path) -> tuple[int, str]:
    """By training step, as the files of a run and of verl are named; others come last."""
    return (int(path.stem), "") if re.fullmatch(r"\d+", path.stem) else (1 << 62, path.name)
