"""`Mixture`: tasks of several sources in one run, each source as often as its weight says."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from toolgym.envs.tasks.combined.named_sources import NamedSources, with_columns
from toolgym.envs.tasks.row_fields import ENV_COLUMN
from toolgym.envs.tasks.sources import CountedTasks, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, require_whole_number, shorten

MEMBER_COLUMN = "mixture"
"""Column of `extra_info` with the name of the source that a task was drawn from; in a mixture of mixtures, a list of
the names from the outermost."""

WINDOW = 64
"""Groups of each source whose rewards are kept, unless a `LearningSignal` says otherwise."""

_MOST_SEEDS = 64
_MOST_STEPS = 256
"""Steps of each seed that are remembered."""


def rewards_differ(rewards: Sequence[float]) -> float:
    """1 if a group's rewards are not all the same, so that its advantages are not all 0; else 0."""
    return float(len(set(rewards)) > 1)


@dataclass(frozen=True)
class LearningSignal:
    """Weights by how much is learned: a source's own weight times the share of its last groups with a signal.

    The share is (s + 1) / (n + 1), where s is the sum of the signals of the last n groups: a source that was not
    played yet counts fully.

    Attributes:
        window: how many of each source's last groups count.
        least: smallest share that counts, so that a source without a signal now is tried again.
        weights: each source's own weight; None: 1 for all.
        signal: a group's signal, a number from 0 to 1, from its rewards; by default whether they differ.
    """

    window: int = WINDOW
    least: float = 0.05
    weights: Mapping[str, float] | None = None
    signal: Callable[[Sequence[float]], float] = rewards_differ

    def __post_init__(self) -> None:
        require_whole_number("window", self.window, at_least=1)
        if not _is_number(self.least) or not 0 < self.least <= 1:
            raise ConfigError(f"least must be a share above 0, at most 1, got {self.least!r}")
        if not callable(self.signal):
            raise ConfigError(f"signal must be a function of a group's rewards, got {self.signal!r}")

    def share(self, groups: Sequence[Sequence[float]]) -> float:
        """The share of groups, each given as its rewards, with a signal."""
        return max(self.least, (sum(map(self.signal, groups)) + 1) / (len(groups) + 1))


Weights: TypeAlias = Mapping[str, float] | Callable[[int], Mapping[str, float]] | LearningSignal
"""A number of at least 0 for each source; or a function from the training step to these; or by learning signal."""


class _Step(NamedTuple):
    """The draw of a training step: the weights, and from each source the place of its first task and their number."""

    weights: dict[str, float]
    starts: dict[str, int]
    counts: dict[str, int]

    @property
    def ends(self) -> dict[str, int]:
        return {name: start + self.counts[name] for name, start in self.starts.items()}


class Mixture(NamedSources):
    """Draws the tasks of each training step from several sources by their weights.

    Of `count` tasks a source with the share p of the weights has `count * p`, rounded up or down by chance such that
    the shares hold in the mean over the steps (systematic sampling). The seed and the step decide the draw, and the
    same step of the same seed is drawn again with the weights that it had. A source with a number of tasks goes through
    all of them, epoch after epoch. A task says in `extra_info.mixture` which source it is from; one without a `source`
    has that name there too, so figures by source show it.

    Weights may change while it runs (`set_weights`, a function of the step, a learning signal): what is drawn later
    has them. Those by learning signal depend on the rewards that were observed, which `state_dict` has.

    For an example see docs/mixtures.md.

    Args:
        sources: each source by its name.
        weights: see `Weights`; None: the same for all.
        of_envs: whether the names are ids of envs: each task then names its own, in `extra_info.env_id`, for an env
            that is a mixture (`toolgym.rollout.runner.mixture`).

    Raises:
        UnknownNameError: there is a weight for something else than a source.
        ConfigError: a source has no weight or one that is no number of at least 0, or all weights are 0.
    """

    def __init__(
        self, sources: Mapping[str, TaskSource], *, weights: Weights | None = None, of_envs: bool = False
    ) -> None:
        super().__init__("sources", sources, each="name", names="texts", types=(str,))
        self._of_envs = of_envs
        self._groups: dict[str, int] = dict.fromkeys(self._sources, 0)
        self._recent: dict[str, deque[list[float]]] = {name: deque() for name in self._sources}
        self._steps: dict[int | None, dict[int, _Step]] = {}
        self.set_weights(dict.fromkeys(self._sources, 1.0) if weights is None else weights)

    def set_weights(self, weights: Weights) -> None:
        """Take other weights for the steps that are drawn from now on. Raises as the mixture itself does."""
        if isinstance(weights, LearningSignal):
            checked_weights(weights.weights or dict.fromkeys(self._sources, 1.0), self._sources)
        elif not callable(weights):
            weights = checked_weights(weights, self._sources)
        self._weights = weights
        window = weights.window if isinstance(weights, LearningSignal) else WINDOW
        self._recent = {name: deque(recent, maxlen=window) for name, recent in self._recent.items()}

    def weights(self, training_step: int = 0) -> dict[str, float]:
        """Return the weight of each source for a step that is drawn now."""
        weights = self._weights
        if isinstance(weights, LearningSignal):
            base = weights.weights or {}
            return {name: base.get(name, 1.0) * weights.share(recent) for name, recent in self._recent.items()}
        return checked_weights(weights(training_step), self._sources) if callable(weights) else dict(weights)

    # ------------------------------------------------------------------ what is drawn

    def marked(self, task: Task, name: str) -> Task:
        inside = task.extra_info.get(MEMBER_COLUMN) if isinstance(self._sources[name], NamedSources) else None
        path = name if inside is None else [name, *([inside] if isinstance(inside, str) else inside)]
        env = {ENV_COLUMN: name} if self._of_envs else {}
        return with_columns(task, {MEMBER_COLUMN: path, **env}, source=task.source or name)

    def sample(self, rng: random.Random) -> Task:
        [name] = rng.choices(list(self._sources), weights=list(self.weights(max(self.steps, default=0)).values()))
        return self.marked(self._sources[name].sample(rng), name)

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        require_whole_number("count", count, at_least=0)
        step = self._step(count, seed, training_step)
        drawn: dict[str, Iterator[Task]] = {}
        for name, source in self._sources.items():
            seed_here = None if seed is None else random.Random(f"{seed}, {name}").getrandbits(63)
            if isinstance(source, CountedTasks):  # whose own memory takes steps of one size for granted
                drawn[name] = map(source.task, source.places(step.starts[name], step.counts[name], seed=seed_here))
            else:
                drawn[name] = iter(source.take(step.counts[name], seed=seed_here, training_step=training_step))
        names = [name for name, share in step.counts.items() for _ in range(share)]
        random.Random(None if seed is None else f"{seed}, step {training_step}, order").shuffle(names)
        return [self.marked(next(drawn[name]), name) for name in names]

    def _step(self, count: int, seed: int | None, training_step: int) -> _Step:
        steps = self._steps.setdefault(seed, {})
        if len(self._steps) > _MOST_SEEDS:
            del self._steps[next(iter(self._steps))]
        known = steps.get(training_step)
        if known is None:
            before = max((step for step in steps if step < training_step), default=None)
            ends = dict.fromkeys(self._sources, 0) if before is None else steps[before].ends
            # Of steps that were not drawn here, such as those before a restart, each had as many tasks.
            for missed in range(0 if before is None else before + 1, training_step):
                counts = self._shares(self.weights(missed), count, seed, missed)
                ends = {name: end + counts[name] for name, end in ends.items()}
            known = _Step(self.weights(training_step), ends, {})
        drawn = known._replace(counts=self._shares(known.weights, count, seed, training_step))
        steps[training_step] = drawn
        if len(steps) > _MOST_STEPS:
            del steps[min(steps)]
        return drawn

    def _shares(self, weights: Mapping[str, float], count: int, seed: int | None, step: int) -> dict[str, int]:
        """The number of tasks of each source; by systematic sampling, a comb of `count` teeth laid on the weights."""
        total = math.fsum(weights.values())
        tooth = random.Random(None if seed is None else f"{seed}, step {step}").random()
        drawn = [name for name, weight in weights.items() if weight]
        edges = [*itertools.accumulate(weights[name] / total * count for name in drawn)]
        edges[-1] = count  # not left to rounding
        teeth = [math.floor(edge + tooth) for edge in edges]
        counts = {name: high - low for name, high, low in zip(drawn, teeth, [0, *teeth], strict=False)}
        return {name: counts.get(name, 0) for name in weights}

    # ------------------------------------------------------------------ what becomes of it

    def observe(self, task: Task, rewards: Sequence[float]) -> None:
        path = task.extra_info.get(MEMBER_COLUMN)
        name, *inside = [path] if isinstance(path, str) else path or [None]
        if name not in self._sources:
            return  # not drawn here
        self._groups[name] += 1
        self._recent[name].append(list(rewards))
        inner = with_columns(task, {MEMBER_COLUMN: inside[0] if len(inside) == 1 else inside}) if inside else task
        self._sources[name].observe(inner, rewards)

    def metrics(self) -> dict[str, float]:
        """Figures for a trainer's logger, of each source: its share of the weights and the tasks that were drawn up to
        the last step, groups that were observed, and of the last of them the mean reward and the share with a signal.
        """
        steps = self._steps_drawn()
        weights, ends = (steps[max(steps)].weights, steps[max(steps)].ends) if steps else (self.weights(), {})
        signal = self._weights.signal if isinstance(self._weights, LearningSignal) else rewards_differ
        figures: dict[str, float] = {}
        for name, recent in self._recent.items():
            place = f"mixture/{name}"
            figures[f"{place}/weight"] = weights[name] / math.fsum(weights.values())
            figures |= {f"{place}/tasks": float(ends.get(name, 0)), f"{place}/groups": float(self._groups[name])}
            if recent:
                figures[f"{place}/reward"] = sum(sum(rewards) / len(rewards) for rewards in recent) / len(recent)
                figures[f"{place}/signal"] = sum(map(signal, recent)) / len(recent)
        return figures

    @property
    def steps(self) -> dict[int, dict[str, float]]:
        """The weights that the last training steps were drawn with, by step."""
        return {number: dict(step.weights) for number, step in self._steps_drawn().items()}

    def _steps_drawn(self) -> dict[int, _Step]:
        """The steps of the seed that drew most: another one draws for validation."""
        return max(self._steps.values(), key=len, default={})

    def state_dict(self) -> dict[str, Any]:
        """Return as JSON values, for a checkpoint, what was drawn and observed, weights that are numbers, and the state
        of the sources that have one."""
        weights = None if callable(self._weights) or isinstance(self._weights, LearningSignal) else self._weights
        return {
            "weights": weights,
            "steps": [[seed, step, *drawn] for seed, steps in self._steps.items() for step, drawn in steps.items()],
            "groups": dict(self._groups),
            "recent": {name: list(recent) for name, recent in self._recent.items()},
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; one of other sources is a `ConfigError`. Its weights, if it has some, take
        the place of those that the mixture was made with."""
        parts = ("weights", "steps", "groups", "recent", "sources")
        if not isinstance(state, Mapping) or state.keys() != set(parts):
            raise ConfigError(f"expected a state with {', '.join(parts)}, got {shorten(repr(state))}")
        if state["sources"].keys() != self._sources.keys():
            there, here = ", ".join(state["sources"]), ", ".join(self._sources)
            raise ConfigError(f"the saved state is of a mixture of {there}, and this one is of {here}")
        if state["weights"] is not None:
            self.set_weights(state["weights"])
        self._steps = {}
        for seed, step, *drawn in state["steps"]:
            self._steps.setdefault(seed, {})[step] = _Step(*map(dict, drawn))
        self._groups = dict(state["groups"])
        for name, recent in self._recent.items():
            recent.clear()
            recent.extend(state["recent"][name])
        for name, source in self._sources.items():
            source.load_state_dict(state["sources"][name])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def checked_weights(weights: object, names: Collection[str]) -> dict[str, float]:
    """Return the weight of each name. Raises `UnknownNameError` for another name, `ConfigError` as `Mixture` does."""
    if not isinstance(weights, Mapping):
        raise ConfigError(
            "weights must map each source to a number, or be a function from the training step to such a mapping, or a "
            f"LearningSignal, got {shorten(repr(weights))}"
        )
    for name in weights:
        if name not in names:
            close = nearest(str(name), names) or "."
            raise UnknownNameError(f"there is a weight for {name!r}{close} Sources: {', '.join(names)}")
    for name in names:
        if not _is_number(weights.get(name)) or weights[name] < 0:
            raise ConfigError(f"the weight of {name!r} must be a number of at least 0, got {weights.get(name)!r}")
    if not sum(weights.values()):
        raise ConfigError(f"all weights are 0, so nothing could be drawn: {dict(weights)}")
    return {name: float(weights[name]) for name in names}
