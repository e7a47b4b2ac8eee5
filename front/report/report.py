"""`Report`: the figures of a run on disk, each of which docs/report.md defines. A run of 1 GB takes some seconds.

Names of figures that `summarize` and `RunMetrics` have too (docs/metrics.md) are theirs, and so are the values.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from sys import intern
from typing import Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.report.estimators import Estimate, estimate_mean, means_by_task, paired_difference, pass_at_k, pass_hat_k
from toolgym.rollout.runner.metrics.counts import MOST_NAMES, OTHER, ToolCounts
from toolgym.rollout.runner.metrics.figures import PERCENTILES, tool_figures
from toolgym.rollout.trajectory.distribution import SamplingDistribution
from toolgym.tools.schema import CallProblem
from toolgym.viewer.run_index import Row, RunIndex, decoded

By = Literal["step", "env", "source", "level"]
Columns: TypeAlias = NDArray[Any]  # structured, one element an episode
# Pairs of a task's number and a value, by what is estimated: `reward`, `success`, `pass@K`, `pass^K`.
Values: TypeAlias = dict[str, list[tuple[int, float | None]]]

MOST_BINS = 24
_ROW = "step:i8 turns:i8 calls:i8 tokens:i8 reward:f8 seconds:f8 engine_seconds:f8 env_seconds:f8 success:? failed:? \
env:O stop:O"
_MORE = "source:O level:O task:i8 group:i8 counted:? branch:? recorded:? context:i8 steps:i8 cut:i8 queue_seconds:f8"
# Beside what the row has: `recorded` is with tokens, times and a stop reason; `context` has the tokens of the longest
# one, `steps` are the env's, and `cut` are turns without an end.
_of_row = attrgetter(*(name.partition(":")[0] for name in _ROW.split()))
_AMOUNTS = {"tool_calls": "calls", "response_length": "tokens", "context_length": "context", "turns": "turns"}
_SECONDS = ("seconds", "engine_seconds", "env_seconds", "queue_seconds")
_NOT_RUN = frozenset(problem.value for problem in CallProblem)


@dataclass(frozen=True)
class StopShare:
    """Episodes that ended for one reason, their part of all, and their policy tokens; `usable` to a trainer or not."""

    reason: str
    blame: str
    usable: bool
    episodes: int
    rate: float
    policy_tokens: int


@dataclass(frozen=True)
class RunPart:
    """Figures of all episodes of a run, or of one step, env, source or level; those without a value are left out."""

    name: str
    figures: dict[str, float]
    estimates: dict[str, Estimate]
    stops: tuple[StopShare, ...]


@dataclass(frozen=True)
class Report:
    """Figures of a run.

    `parts` differ in `by`, which is None if there are no two. `tools` has figures of calls that were run, as
    docs/metrics.md names them; `bad_calls` are malformed ones, by status. `histograms` are edges and counts.
    `task_means` has the mean of each task, for `compare`. `weight_versions` has the number of episodes in which each
    version of the policy's weights sampled a token, and `distributions` the number of episodes that were sampled at
    each `temperature 0.6, top_p 0.9` or the like."""

    name: str
    path: str
    by: By | None
    whole: RunPart
    parts: tuple[RunPart, ...]
    tools: dict[str, dict[str, float]]
    bad_calls: dict[str, int]
    histograms: dict[str, tuple[list[float], list[int]]]
    notes: tuple[str, ...]
    task_means: Mapping[str, Mapping[Hashable, float]] = field(repr=False)
    weight_versions: Mapping[str, int] = field(default_factory=dict)
    distributions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, index: RunIndex, rows: Iterable[Row] | None = None, by: By | None = None, ks: Sequence[int] | None = None
    ) -> Report:
        """Go through the lines of `rows` of a run, all of them if None; beside others, those of a validation are left
        out. Parts are made `by` steps, or else envs, if None and there are several. `ks` are the k of pass@k; None
        takes the powers of two up to the episodes of a task."""
        return cls.divided(index, (by,), rows, ks)[0]

    @classmethod
    def divided(
        cls,
        index: RunIndex,
        each_by: Sequence[By | None],
        rows: Iterable[Row] | None = None,
        ks: Sequence[int] | None = None,
    ) -> list[Report]:
        """Return a report as `of` does for each of these ways to make parts. The lines are read once."""
        reading = _Reading(index, index.rows if rows is None else rows)
        return [cls._of(index, reading, by, ks) for by in each_by]

    @classmethod
    def _of(cls, index: RunIndex, reading: _Reading, by: By | None, ks: Sequence[int] | None) -> Report:
        columns, names = reading.columns, reading.task_names
        by = by or ("env" if len(set(columns["step"])) < 2 else "step")
        keys = sorted(set(columns[by].tolist()), key=_natural)
        parts = [(str(key) or "none", columns[columns[by] == key]) for key in keys] if len(keys) > 1 else []
        if ks is None:
            ks = powers_of_two(max(_outcomes(columns).values(), default=(0, 0))[0])
        tools = {
            name: dict(tool_figures(tool)) | {"seconds/max": tool.seconds.most, "seconds/sum": tool.seconds.total}
            for name, tool in reading.tools.items()
        }
        values, lengths = _values(columns, ks), columns[columns["recorded"]]
        numbers = {"reward": columns["reward"][columns["counted"]]}
        numbers |= {"turns": lengths["turns"], "response_length": lengths["tokens"]}
        means = {
            name: means_by_task((names[task], value) for task, value in pairs if names[task] is not None)
            for name, pairs in values.items()
        }
        return cls(
            index.name,
            str(index.path),
            by if parts else None,
            _part("all", columns, values),
            tuple(_part(key, part, _values(part, ks)) for key, part in parts),
            dict(sorted(tools.items(), key=lambda tool: -tool[1]["calls"])),
            dict(reading.bad_calls),
            {name: _histogram(column) for name, column in numbers.items() if len(column)},
            reading.notes,
            means,
            dict(reading.versions),
            dict(reading.distributions),
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON, without the means of single tasks."""
        value = asdict(replace(self, task_means={}))
        return {name: item for name, item in value.items() if name != "task_means"}


def powers_of_two(most: int) -> list[int]:
    """Return the k that pass@k is estimated for by itself, from at most so many episodes of a task: 1, 2, 4, ..."""
    return [1 << power for power in range(most.bit_length())]


def compare(first: Report, second: Report) -> dict[str, Estimate]:
    """Return what the second run is better by, over the tasks that both have, by what is estimated."""
    means = second.task_means
    return {name: paired_difference(first.task_means[name], means[name]) for name in first.task_means if name in means}


class _Call(msgspec.Struct):  # what `ToolCounts` counts of a `ToolCallRecord`
    name: str = ""
    status: str = "ok"
    text: str = ""
    seconds: float = 0.0
    infra_failure: bool = False
    retries: int = 0


class _Turn(msgspec.Struct):
    prompt_tokens: int = 0
    generated_tokens: int = 0
    observation_tokens: int = 0
    reward: float | None = None
    queue_seconds: float = 0.0
    truncated: bool = False
    tool_calls: list[_Call] = []
    sampling: dict[str, Any] = {}


class _VersionRun(msgspec.Struct):
    version: str = ""


class _Segment(msgspec.Struct):
    version_runs: list[_VersionRun] = []


class _Sequence(msgspec.Struct):
    segments: list[_Segment] = []


class _Line(msgspec.Struct):  # what its row lacks
    format_version: int = 0
    source: str = ""
    data_source: Any = ""
    level: Any = ""
    task_id: str = ""
    turns: list[_Turn] = []
    sequences: list[_Sequence] = []
    sampling: dict[str, Any] = {}


class _Reading:
    """Columns of the episodes of some rows, counts of their tool calls, and notes on what was left out. `task_names`
    has source, id and role of a task by its number; None without an id."""

    def __init__(self, index: RunIndex, rows: Iterable[Row]) -> None:
        self.tools: dict[str, ToolCounts] = defaultdict(ToolCounts)
        self.versions: Counter[str] = Counter()
        self.distributions: Counter[str] = Counter()
        self._changed = 0
        self.bad_calls: Counter[str] = Counter()
        self.task_names: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._too_large, episodes = 0, []
        rows, decoder = list(rows), msgspec.json.Decoder(_Line)
        readable = [row for row in rows if row.readable]
        kept = [row for row in readable if not row.validate] or readable
        for row, line in index.lines(kept):
            try:
                episodes.append(self._episode(row, decoded(decoder, line)))
            except msgspec.DecodeError:
                if not row.env:  # verl's, whose columns may have names of ours and hold anything
                    episodes.append(self._episode(row, _Line()))
        self.columns: Columns = np.array(episodes, [tuple(name.split(":")) for name in f"{_ROW} {_MORE}".split()])
        why = next((f"the first says: {row.error}" for row in rows if not row.readable), "they are no trajectories")
        malformed = ", ".join(f"{count:,} {status}" for status, count in self.bad_calls.items())
        counts = {
            f"lines cannot be read and are left out ({why})": len(rows) - len(readable) + len(kept) - len(episodes),
            "episodes of a validation are left out (--filter validate shows them)": len(readable) - len(kept),
            "episodes count in no reward: they failed, or the engine or the run cut them": (
                len(episodes) - self.columns["counted"].sum() - self._too_large
            ),
            "rewards are no numbers, or beyond 1e100, and left out": self._too_large,
            "episodes are branches: not in pass@k and pass^k, and tool calls that they share count once": (
                self.columns["branch"].sum()
            ),
            f"episodes have malformed tool calls, which were not run: {malformed}": (
                sum(not _NOT_RUN.isdisjoint(row.problems) for row in kept)
            ),
            "episodes are verl's, without tokens, turns, times and stop reasons": (~self.columns["recorded"]).sum(),
        }
        self.notes = (
            *(f"{count:,} of {len(rows):,} {what}" for what, count in counts.items() if count),
            *self._notes_on_policies(),
        )

    def _notes_on_policies(self) -> Iterator[str]:
        """Yield a note if the figures are not of one policy, or of one way to sample it."""
        if len(self.versions) > 1:
            during = f"; the weights changed during {self._changed:,} of the episodes" if self._changed else ""
            yield (
                f"the episodes are of {len(self.versions):,} versions of the weights ({_listed(self.versions)}), so "
                f"their figures are not those of one policy{during}"
            )
        if len(self.distributions) > 1:
            yield f"the episodes were sampled in {len(self.distributions):,} ways ({_listed(self.distributions)})"

    def _count_policy(self, line: _Line) -> None:
        runs = (run for sequence in line.sequences for segment in sequence.segments for run in segment.version_runs)
        versions = {intern(run.version) for run in runs}
        self.versions.update(versions)
        self._changed += len(versions) > 1
        if versions and line.sampling:
            ways = [turn.sampling for turn in line.turns if turn.generated_tokens] or [{}]
            self.distributions.update({str(SamplingDistribution.of({**line.sampling, **changed})) for changed in ways})

    def _episode(self, row: Row, line: _Line) -> tuple[Any, ...]:
        context, steps, cut, queue = 0, 0, 0, 0.0
        for number, turn in enumerate(line.turns):
            context = max(context, turn.prompt_tokens + turn.generated_tokens + turn.observation_tokens)
            steps += turn.reward is not None
            cut += turn.truncated
            queue += turn.queue_seconds
            if number >= (row.branch_turn or 0):  # a branch's earlier turns are its parent's
                for call in turn.tool_calls:
                    self._count(call)
        self._count_policy(line)
        recorded, source = line.format_version > 0, intern(line.source or str(line.data_source) or row.env)
        # Without an id, tasks of several steps may have the same number. verl's rows have only their prompt.
        name = row.task if line.task_id else f"{row.step}#{row.task}" if recorded else row.group.partition("-")[2]
        key = source, name, row.role
        task = self._numbers.setdefault(key, len(self.task_names))
        if task == len(self.task_names):
            self.task_names.append(key if line.task_id or not recorded else None)
        group = self._numbers.setdefault((row.group, row.role), len(self._numbers))
        counted = row.counted and abs(row.reward) < 1e100  # beyond it, squares are infinite
        self._too_large += row.counted and not counted
        flags = counted, row.parent is not None, recorded
        return (*_of_row(row), source, intern(str(line.level)), task, group, *flags, context, steps, cut, queue)

    def _count(self, call: _Call) -> None:
        if call.status in _NOT_RUN:
            self.bad_calls[call.status] += 1
        else:
            name = call.name if call.name in self.tools or len(self.tools) < MOST_NAMES else OTHER
            self.tools[name].add(cast(ToolCallRecord, call))


def _listed(counts: Counter[str], most: int = 6) -> str:
    """Return names with their numbers of episodes, in natural order, without the middle if there are many."""
    texts = [f"{name}: {counts[name]:,}" for name in sorted(counts, key=_natural)]
    if len(texts) > most:
        texts = [*texts[: most // 2], "...", *texts[-most // 2 :]]
    return ", ".join(texts)


def _outcomes(columns: Columns) -> dict[tuple[int, int, str], tuple[int, int]]:
    """Episodes and successes of a task in a step and an env, without branches, which are no samples of their own."""
    drawn = columns[columns["counted"] & ~columns["branch"]]
    episodes, right = (Counter(part[["task", "step", "env"]].tolist()) for part in (drawn, drawn[drawn["success"]]))
    return {key: (count, right[key]) for key, count in episodes.items()}


def _values(columns: Columns, ks: Sequence[int]) -> Values:
    counted, outcomes = columns[columns["counted"]], _outcomes(columns).items()
    values: Values = {name: counted[["task", name]].tolist() for name in ("reward", "success")}
    for name, rate in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
        values |= {f"{name}{k}": [(task, rate(*outcome, k)) for (task, *_), outcome in outcomes] for k in ks}
    return values


def _part(name: str, columns: Columns, values: Values) -> RunPart:
    counted, recorded = columns[columns["counted"]], columns[columns["recorded"]]
    figures: dict[str, float] = {"episodes": len(columns), "episodes/counted": len(counted)}
    figures |= {"groups": len(np.unique(columns["group"])), "tasks": len(np.unique(columns["task"]))}
    for figure in ("reward", "success") if len(counted) else ():
        numbers = counted[figure].astype(float)
        figures |= {f"{figure}/mean": numbers.mean(), f"{figure}/min": numbers.min(), f"{figure}/max": numbers.max()}
        figures[f"{figure}/std"] = numbers.std(ddof=1) if len(numbers) > 1 else 0.0
    groups: dict[int, list[float]] = {}
    for group, reward in counted[["group", "reward"]].tolist():
        groups.setdefault(group, []).append(reward)
    if equal := [min(rewards) == max(rewards) for rewards in groups.values() if len(rewards) > 1]:
        figures |= {"groups/count": len(equal), "groups/equal_rewards": sum(equal) / len(equal)}
    stops = tuple(_stop_share(recorded, *item) for item in Counter(recorded["stop"].tolist()).most_common())
    if stops:
        figures |= {f"stop_reason/{stop.reason}": stop.rate for stop in stops} | _amounts(recorded)
        failed = [stop for stop in stops if StopReason(stop.reason).failed]
        for stop in failed:
            figures[f"failed/{stop.blame}"] = figures.get(f"failed/{stop.blame}", 0.0) + stop.rate
        cut = [stop for stop in stops if StopReason(stop.reason).truncated]
        figures["episodes/at_limit"] = sum(stop.episodes for stop in cut if stop.usable)
        figures["episodes/broken_off"] = sum(stop.episodes for stop in stops if not stop.usable)
        figures["failed/rate"] = sum(stop.rate for stop in failed)
        figures["truncated/rate"] = sum(stop.rate for stop in cut if stop not in failed)
        figures["tokens/policy"] = sum(stop.policy_tokens for stop in stops)
        figures["tokens/truncated"] = sum(stop.policy_tokens for stop in cut if stop not in failed)
        figures["tokens/lost"] = sum(stop.policy_tokens for stop in stops if not stop.usable)
    estimates = {name: estimate_mean(pairs, proportion=name != "reward") for name, pairs in values.items()}
    return RunPart(name, {name: float(value) for name, value in figures.items()}, estimates, stops)


def _stop_share(columns: Columns, name: str, episodes: int) -> StopShare:
    reason, tokens = StopReason(name), int(columns["tokens"][columns["stop"] == name].sum())
    usable = reason.trainable and reason.in_group_statistics
    return StopShare(name, reason.blame, usable, episodes, episodes / len(columns), tokens)


def _amounts(columns: Columns) -> dict[str, float]:
    """Figures of lengths and times."""
    figures = {"turns/truncated": columns["cut"].sum() / max(columns["turns"].sum(), 1)}
    for name, column in (_AMOUNTS | {name: name for name in _SECONDS}).items():
        values = columns[column]
        figures |= {f"{name}/mean": values.mean(), f"{name}/max": values.max()}
        percentiles = np.percentile(values, PERCENTILES, method="inverted_cdf")
        figures |= {f"{name}/p{percent}": value for percent, value in zip(PERCENTILES, percentiles, strict=True)}
    if steps := columns["steps"].sum():
        outside = np.maximum(columns["seconds"] - columns["engine_seconds"] - columns["queue_seconds"], 0.0)
        figures["process/worker_hours_per_million_actions"] = outside.sum() / steps * 1e6 / 3600
    return figures


def _natural(key: Any) -> list[tuple[int, str]]:
    """A key to sort by that puts 9 before 10, in texts too."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(key))]


def _histogram(values: NDArray[Any]) -> tuple[list[float], list[int]]:
    """Edges and counts of at most `MOST_BINS` bins, which are whole for whole numbers."""
    low, high = values.min(), values.max()
    if values.dtype.kind == "i":
        edges = np.arange(low, high + 2 * (width := (high - low) // MOST_BINS + 1), width)
    else:
        edges = np.linspace(low, high, MOST_BINS + 1) if low < high else np.array([low - 0.5, low + 0.5])
    return edges.tolist(), np.histogram(values, edges)[0].tolist()
