"""`ByLevel`: a curriculum whose next tasks are easier or harder by how the last ones went."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

from toolgym.envs.tasks.combined.named_sources import NamedSources, split_by_column, with_columns
from toolgym.envs.tasks.sources import CountedTasks, TaskSource
from toolgym.envs.tasks.task import LEVEL_COLUMN, Task
from toolgym.tools.errors import ConfigError, require_whole_number, shorten

Level = int | str


class ByLevel(NamedSources):
    """Draws tasks of one level, and goes up or down with the mean reward of the last groups of that level.

    The level of a task is in its `extra_info`, as `curriculum_level`. Rewards of tasks of another level than the
    present one, such as those that were under way when it changed, say nothing.

    For an example see docs/data.md.

    Args:
        levels: from each level to its tasks, the easiest first.
        window: groups that the mean is of; as many must have been seen since the level changed.
        raise_at: the mean reward from which on the next level follows.
        lower_at: the mean reward down to which the level before follows; None: never.
    """

    def __init__(
        self,
        levels: Mapping[Any, TaskSource],
        *,
        window: int = 32,
        raise_at: float = 0.8,
        lower_at: float | None = 0.2,
    ) -> None:
        super().__init__("levels", levels, each="level", names="whole numbers or texts", types=(int, str))
        require_whole_number("window", window, at_least=1)
        if lower_at is not None and not lower_at < raise_at:
            raise ConfigError(f"lower_at must be less than raise_at, got {lower_at!r} and {raise_at!r}")
        self._names: list[Level] = list(levels)
        self._raise_at, self._lower_at = raise_at, lower_at
        self._recent: deque[float] = deque(maxlen=window)
        self.level: Level = self._names[0]

    @classmethod
    def of_column(cls, source: CountedTasks, column: str = "level", **options: Any) -> Self:
        """Return a curriculum over tasks with their level in a column of `extra_info`. Each is read once, to find it.

        The levels, whole numbers or texts, are sorted from the easiest to the hardest; a task without one is a
        `ConfigError`. `options` are the other arguments.
        """
        levels = split_by_column(source, column, (int, str), "a level, a whole number or a text")
        if len({type(level) for level in levels}) > 1:
            raise ConfigError(f"extra_info.{column} has numbers and texts, which have no order: {list(levels)}")
        return cls(dict(sorted(levels.items())), **options)

    def marked(self, task: Task, name: Level) -> Task:
        return with_columns(task, {LEVEL_COLUMN: name})

    def sample(self, rng: random.Random) -> Task:
        return self.marked(self._sources[self.level].sample(rng), self.level)

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        taken = self._sources[self.level].take(count, seed=seed, training_step=training_step)
        return [self.marked(task, self.level) for task in taken]

    def observe(self, task: Task, rewards: Sequence[float]) -> None:
        if task.extra_info.get(LEVEL_COLUMN) != self.level:
            return
        self._sources[self.level].observe(task, rewards)
        self._recent.append(sum(rewards) / len(rewards))
        if len(self._recent) < (self._recent.maxlen or 0):
            return
        mean = sum(self._recent) / len(self._recent)
        if mean >= self._raise_at:
            self._move(1)
        elif self._lower_at is not None and mean <= self._lower_at:
            self._move(-1)

    def state_dict(self) -> dict[str, Any]:
        """Return the level, the last rewards and the state of the sources that have one, as JSON values, for a
        checkpoint."""
        sources = [[name, state] for name, source in self._sources.items() if (state := source.state_dict())]
        return {"level": self.level, "recent": list(self._recent), **({"sources": sources} if sources else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        if not isinstance(state, Mapping) or state.keys() - {"sources"} != {"level", "recent"}:
            raise ConfigError(f"expected a state with level, recent, got {shorten(repr(state))}")
        if state["level"] not in self._sources:
            raise ConfigError(
                f"there is no level {state['level']!r}; the levels are {', '.join(map(repr, self._names))}"
            )
        for name, inner in state.get("sources", ()):
            if name not in self._sources:
                raise ConfigError(f"the saved state has a source of the level {name!r}, and this curriculum does not")
            self._sources[name].load_state_dict(inner)
        self.level = state["level"]
        self._recent.clear()
        self._recent.extend(map(float, state["recent"]))

    def _move(self, by: int) -> None:
        at = self._names.index(self.level) + by
        if 0 <= at < len(self._names):
            self.level = self._names[at]
            self._recent.clear()
