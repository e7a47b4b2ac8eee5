"""The counts of `RunMetrics`, as plain data that a dict of figures and a page for Prometheus are made from."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout.runner.envs.role_plan import labelled_roles
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.tools.schema import CallProblem

MOST_NAMES = 100
"""Most tools, and statuses of a tool, that are counted by name; the rest is `other`: a tool may make up statuses."""

MOST_GROUPS = 65_536
"""Most groups whose members are remembered one by one; the oldest beyond it are taken to be whole."""

OTHER = "other"

_NOT_RUN = {problem.value for problem in CallProblem}
_TIMEOUTS = frozenset({StopReason.ENV_TIMEOUT, StopReason.SCORE_TIMEOUT})


ACCURACY = 0.02
"""Most that a percentile is off, as a part of itself."""

_LEAST = 1e-6
_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GROWTH)
_LOWEST = math.ceil(math.log(_LEAST) * _PER_LOG)


class Sketch:
    """Counts numbers of at least 0 in buckets whose bounds grow by the same factor, so that each percentile is exact to
    `ACCURACY` of itself: DDSketch (Masson, Rim, Lee, 2019, arXiv 1908.10693). What is below 1e-6 counts as 0. It is
    written here, since it takes forty lines and a package would be a further dependency."""

    __slots__ = ("_buckets", "count", "most", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.most = 0.0

    def add(self, value: float) -> None:
        bucket = math.ceil(math.log(value) * _PER_LOG) if value > _LEAST else _LOWEST
        buckets = self._buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        if value > self.most:
            self.most = value

    def percentile(self, part: float) -> float:
        """The number that this part (0 to 1) of the numbers does not exceed; 0 if there are none."""
        wanted = max(1, math.ceil(part * self.count))
        for bound, count in self.cumulated():
            if count >= wanted:
                return 0.0 if bound <= _LEAST else min(self.most, bound * 2 / (1 + _GROWTH))
        return 0.0

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Upper bounds, and how many numbers do not exceed each, upwards."""
        count = 0
        for bucket, more in sorted(self._buckets.items()):  # a copy, as another thread may read
            count += more
            yield _LEAST if bucket == _LOWEST else _GROWTH**bucket, count


class Spread:
    """Mean and standard deviation of numbers that come one by one (Welford, 1962)."""

    __slots__ = ("_squares", "count", "least", "mean", "most")

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self._squares += off * (value - self.mean)
        self.least, self.most = min(self.least, value), max(self.most, value)

    @property
    def std(self) -> float:
        """The standard deviation of a sample; 0 of fewer than two."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0


class ToolCounts:
    """The calls of one tool. Calls that were not run, because they were malformed, are not among them."""

    def __init__(self) -> None:
        self.seconds, self.characters = Sketch(), Sketch()
        self.statuses: dict[str, int] = {}
        self.retries = self.infra_failures = 0

    def add(self, record: ToolCallRecord) -> None:
        self.seconds.add(record.seconds)
        self.characters.add(len(record.text))
        statuses, status = self.statuses, record.status
        if status not in statuses and len(statuses) >= MOST_NAMES:
            status = OTHER
        statuses[status] = statuses.get(status, 0) + 1
        self.retries += record.retries
        self.infra_failures += record.infra_failure

    @property
    def errors(self) -> int:
        return self.seconds.count - self.statuses.get("ok", 0)


class EnvCounts:
    """The episodes of one env; `seconds` are those of its steps."""

    def __init__(self) -> None:
        self.episodes = self.retries = self.timeouts = 0
        self.seconds, self.observation_tokens = Sketch(), Sketch()
        self.rewards = Spread()
        self.failures: Counter[StopReason] = Counter()

    def add(self, trajectory: Trajectory) -> None:
        self.episodes += 1
        if trajectory.in_group_statistics:
            self.rewards.add(trajectory.reward)
        reason = trajectory.stop_reason
        if reason.failed:
            self.failures[reason] += 1
            self.timeouts += reason in _TIMEOUTS
        for turn in trajectory.turns[trajectory.branch_turn or 0 :]:
            if turn.reward is None:
                continue
            self.seconds.add(turn.env_seconds)
            if turn.observation_tokens:
                self.observation_tokens.add(turn.observation_tokens)
            for record in turn.tool_calls:
                self.retries += record.retries
                self.timeouts += record.status == "timeout"


class GroupCounts:
    """Rewards within groups. A member counts if its reward does (see `Trajectory.in_group_statistics`)."""

    def __init__(self) -> None:
        self._groups: dict[str, Spread] = {}
        self._forgotten = [0, 0, 0.0]

    def add(self, trajectory: Trajectory) -> None:
        group = self._groups.get(trajectory.group_id)
        if group is None:
            group = self._groups[trajectory.group_id] = Spread()
            if len(self._groups) > MOST_GROUPS:
                oldest = self._groups.pop(next(iter(self._groups)))
                self._forgotten = [a + b for a, b in zip(self._forgotten, _group(oldest), strict=True)]
        group.add(trajectory.reward)

    def figures(self) -> tuple[int, int, float]:
        """Groups with at least two members, those of them whose rewards are all the same, and the mean of the groups'
        standard deviations."""
        each = [_group(rewards) for rewards in list(self._groups.values())]
        groups, equal, deviations = (sum(column) for column in zip(self._forgotten, *each, strict=True))
        return int(groups), int(equal), deviations / groups if groups else 0.0


def _group(rewards: Spread) -> tuple[int, int, float]:
    return (1, rewards.least == rewards.most, rewards.std) if rewards.count > 1 else (0, 0, 0.0)


class EventCounts:
    """Everything that is counted between two resets; `docs/metrics.md` tells what the figures of these names mean."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolCounts] = {}
        self.envs: dict[str, EnvCounts] = {}
        self.sources: dict[str, Spread] = {}
        self.bad_calls: dict[str, int] = {}
        self.groups = GroupCounts()
        self.rewards = Spread()
        self.stop_reasons: Counter[StopReason] = Counter()
        self.episode_seconds, self.engine_seconds, self.queue_seconds = Sketch(), Sketch(), Sketch()
        self.turns = self.truncated_turns = self.resumes = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.observation_tokens = 0
        self.requests = self.drifted = self.rewritten = 0
        self.steps = self.finished_steps = 0
        self.outside_seconds = self.jobs = 0.0

    def add_turn(self, turn: Turn) -> None:
        self.turns += 1
        self.truncated_turns += turn.truncated
        self.resumes += turn.resumes
        self.prompt_tokens += turn.prompt_tokens
        self.cached_tokens += turn.cached_tokens
        self.generated_tokens += turn.generated_tokens
        self.observation_tokens += turn.observation_tokens
        self.engine_seconds.add(turn.engine_seconds)
        self.queue_seconds.add(turn.queue_seconds)
        if turn.reward is not None:
            self.steps += 1
        for record in turn.tool_calls:
            if record.status in _NOT_RUN:
                self.bad_calls[record.status] = self.bad_calls.get(record.status, 0) + 1
            else:
                self._tool(record.name).add(record)

    def _tool(self, name: str) -> ToolCounts:
        if name not in self.tools and len(self.tools) >= MOST_NAMES:
            name = OTHER
        return self.tools.setdefault(name, ToolCounts()) if name not in self.tools else self.tools[name]

    def add_episode(self, trajectory: Trajectory) -> None:
        """Count an episode that is over; its turns are counted apart."""
        self.jobs += 1 / max(1, len(labelled_roles(trajectory.settings)))  # which has an episode for each of its roles
        self.stop_reasons[trajectory.stop_reason] += 1
        self.episode_seconds.add(trajectory.seconds)
        queued = sum(turn.queue_seconds for turn in trajectory.turns)
        self.outside_seconds += max(0.0, trajectory.seconds - trajectory.engine_seconds - queued)
        self.finished_steps += sum(turn.reward is not None for turn in trajectory.turns)
        if trajectory.in_group_statistics:
            self.rewards.add(trajectory.reward)
            self.groups.add(trajectory)
            source = trajectory.source if trajectory.source in self.sources else ""
            if not source and len(self.sources) < MOST_NAMES:
                source = trajectory.source
            self.sources.setdefault(source or OTHER, Spread()).add(trajectory.reward)
        if trajectory.env_id not in self.envs:
            self.envs[trajectory.env_id] = EnvCounts()
        self.envs[trajectory.env_id].add(trajectory)

    @property
    def episodes(self) -> int:
        return self.episode_seconds.count

    @property
    def failed(self) -> int:
        return sum(count for reason, count in list(self.stop_reasons.items()) if reason.failed)


class RunClock:
    def __init__(self, *, running: bool) -> None:
        self._wall = self._cpu = 0.0
        self._began: tuple[float, float] | None = None
        if running:
            self.start()

    def start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self._wall, self._cpu = self.read()
        self._began = None

    def read(self) -> tuple[float, float]:
        """Wall seconds and CPU seconds so far."""
        began = self._began
        if began is None:
            return self._wall, self._cpu
        return self._wall + time.perf_counter() - began[0], self._cpu + time.process_time() - began[1]
