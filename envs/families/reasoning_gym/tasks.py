"""`ReasoningGymTasks`: the entries of a data set of reasoning-gym as tasks; each data set is made once in a process."""

from __future__ import annotations

import functools
import json
import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.envs.families.reasoning_gym.ids import COMPOSITE, GENERATORS
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, require_whole_number
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import system, user

KEPT_ENTRIES = 4096
"""Entries that a process keeps, since scoring needs the one that its task was made of."""


class Generator(NamedTuple):
    """A generator with its options. Equal ones make equal entries.

    `level` is one level of its curriculum for all attributes, or for some by name; None: the generator's own defaults.
    `config` has its other options as JSON, sorted.
    """

    name: str
    seed: int
    size: int
    level: int | tuple[tuple[str, int], ...] | None
    config: str

    @classmethod
    def of(
        cls, name: str, seed: int, size: int, level: int | Mapping[str, int] | None, config: Mapping[str, Any] | None
    ) -> Generator:
        """Return a generator of checked arguments. Raises ConfigError: one is of the wrong kind, or is no JSON."""
        names = (*GENERATORS, COMPOSITE)
        if name not in names:
            raise UnknownNameError(f"reasoning-gym has no generator {name!r}{nearest(str(name), names)}")
        require_whole_number("seed", seed, at_least=0)
        require_whole_number("size", size, at_least=1)
        if isinstance(level, Mapping):
            for attribute, attribute_level in level.items():
                require_whole_number(f"level[{attribute!r}]", attribute_level, at_least=0)
        elif level is not None:
            require_whole_number("level", level, at_least=0)
        if not isinstance(config, Mapping | None):
            raise ConfigError(f"config must map options of the generator to values, got {config!r}")
        for reserved in {"seed", "size"} & set(config or {}):
            raise ConfigError(f"give {reserved}= itself, not in config")
        try:
            text = json.dumps(dict(config or {}), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"config must hold JSON values, got {config!r}: {error}") from error
        return cls(name, seed, size, tuple(sorted(level.items())) if isinstance(level, Mapping) else level, text)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Generator:
        """Read a result of `to_json`. Raises ConfigError: it is something else."""
        try:
            arguments = {name: value[name] for name in ("name", "seed", "size")}
            return cls.of(**arguments, level=value.get("level"), config=json.loads(value.get("config") or "{}"))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ConfigError(f"expected name, seed, size, level and config of a generator, got {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the generator as a JSON object. `config` stays a text, since a column of a table has one type."""
        level = dict(self.level) if isinstance(self.level, tuple) else self.level
        return {**self._asdict(), "level": level}

    @property
    def levels(self) -> int:
        from reasoning_gym.factory import CURRICULA

        if self.name not in CURRICULA:
            return 0
        return max(len(attribute.levels) for attribute in CURRICULA[self.name]().attributes.values())

    @functools.lru_cache(maxsize=KEPT_ENTRIES)  # noqa: B019  a generator is a small value
    def entry(self, index: int) -> dict[str, Any]:
        """Return the entry of a place: `question`, `answer` (None: not known) and `metadata`; do not change it."""
        entry: dict[str, Any] = dataset(self)[index]
        return entry


@functools.lru_cache(maxsize=256)
def dataset(generator: Generator) -> Any:
    """Return the data set of reasoning-gym, which makes its entries when they are asked for.

    Raises MissingExtraError, or ConfigError if it refuses an option or a level.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise missing_extra("reasoning-gym", f"The env ReasoningGym/{generator.name}-v0", error) from error
    if generator.name not in DATASETS:
        raise UnknownNameError(f"this version of reasoning-gym has no generator {generator.name!r}")
    dataset_class, config_class = DATASETS[generator.name]
    options = json.loads(generator.config)
    known = config_class.__dataclass_fields__
    for option in options:
        if option not in known:
            raise UnknownNameError(
                f"the generator {generator.name!r} has no option {option!r}{nearest(option, known) or '.'} "
                f"Options: {', '.join(name for name in known if name not in ('seed', 'size'))}"
            )
    if generator.name == COMPOSITE:
        options["datasets"] = _parts(options.get("datasets"))
    options |= {"seed": generator.seed, "size": generator.size}
    try:
        config = config_class(**options) if generator.level is None else _at_level(generator, options)
        if hasattr(config, "validate"):
            config.validate()
        return dataset_class(config)
    except (AssertionError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error) or type(error).__name__
        raise ConfigError(f"the generator {generator.name!r} refuses its options: {reason}") from error


@functools.lru_cache(maxsize=256)
def packed_config(generator: Generator) -> bytes:
    """Return the pickled configuration of a generator, from which another process makes the same data set."""
    return pickle.dumps(dataset(generator).config)


def _at_level(generator: Generator, options: dict[str, Any]) -> Any:
    from reasoning_gym.factory import CURRICULA

    if generator.name not in CURRICULA:
        raise ConfigError(f"the generator {generator.name!r} has no curriculum, so it takes no level=")
    curriculum = CURRICULA[generator.name]()
    attributes = curriculum.attributes
    most = generator.levels - 1
    if isinstance(generator.level, int):
        if generator.level > most:
            raise ConfigError(f"the levels of {generator.name!r} are 0 to {most}, got {generator.level}")
        curriculum.set_global_level(generator.level)
        return curriculum.generate_configuration(options)
    for name, level in generator.level or ():
        if name not in attributes:
            raise UnknownNameError(
                f"the curriculum of {generator.name!r} has no attribute {name!r}{nearest(name, attributes) or '.'} "
                f"Attributes: {', '.join(attributes)}"
            )
        if level >= len(attributes[name].levels):
            raise ConfigError(
                f"the levels of {name!r} of {generator.name!r} are 0 to {len(attributes[name].levels) - 1}, got {level}"
            )
        curriculum.set_attr_level(name, level)
    return curriculum.generate_configuration(options)


def _parts(datasets: object) -> list[Any]:
    from reasoning_gym.composite import DatasetSpec

    example = "config={'datasets': [{'name': 'gcd', 'weight': 1, 'config': {}}, ...]}"
    if not isinstance(datasets, Sequence) or not datasets:
        raise ConfigError(f"the generator 'composite' mixes others: give {example}, got {datasets!r}")
    parts = []
    for part in datasets:
        if not isinstance(part, Mapping) or not {"name"} <= set(part) <= {"name", "weight", "config"}:
            raise ConfigError(f"a part of 'composite' is {{'name', 'weight', 'config'}}, got {part!r}; give {example}")
        if part["name"] not in GENERATORS:
            raise UnknownNameError(f"there is no generator {part['name']!r}{nearest(str(part['name']), GENERATORS)}")
        parts.append(DatasetSpec(part["name"], float(part.get("weight", 1.0)), dict(part.get("config") or {})))
    return parts


SYSTEM_PROMPT = "Solve the problem. End with your final answer, and nothing else, between <answer> and </answer>."

KEY = "reasoning_gym"


class ReasoningGymTasks(TaskSource):
    """The entries of a generator as tasks, each made when it is drawn.

    The same arguments give the same tasks. Five generators also depend on Python's own hash of texts, which differs
    between processes unless `PYTHONHASHSEED` is set: isomorphic_strings, knight_swap, polynomial_multiplication,
    ransom_note and word_ladder.

    Args:
        name: the generator's name in reasoning-gym.
        seed: decides all tasks.
        size: how many tasks there are.
        level: of the generator's curriculum, from 0 to `levels - 1`; or a level for some of its attributes by name.
            None: the generator's own defaults.
        config: further options of the generator, by name.

    Raises UnknownNameError, with the nearest name, if there is no such generator, option or attribute; ConfigError if
    the generator refuses an argument; and MissingExtraError if reasoning-gym is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        size: int = 10_000,
        level: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.generator = Generator.of(name, seed, size, level, config)
        dataset(self.generator)  # what it refuses is an error here, and not in the first episode

    @property
    def size(self) -> int:
        return self.generator.size

    @property
    def levels(self) -> int:
        return self.generator.levels

    def sample(self, rng: random.Random) -> Task:
        return self.task(rng.randrange(self.size))

    def task(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        entry = self.generator.entry(index)
        place = {**self.generator.to_json(), "index": index}
        extra = {"index": f"{self.generator.name}-{self.generator.seed}-{index}", KEY: place}
        prompt = [dict(system(SYSTEM_PROMPT)), dict(user(entry["question"]))]
        return Task.from_row(verl_row(f"reasoning_gym/{self.generator.name}", prompt, entry["answer"], extra))


def entry_of(task: Task) -> tuple[Generator, dict[str, Any]]:
    """Return the generator and the entry of a task. Raises ConfigError: it has none, or another one in this process."""
    place = task.extra_info.get(KEY)
    if not isinstance(place, Mapping) or not isinstance(place.get("index"), int):
        raise ConfigError(
            f"task {task.id!r} is none of `ReasoningGymTasks`: its extra_info[{KEY!r}] must say which entry of which "
            f"generator it is, got {place!r}"
        )
    generator = Generator.from_json(place)
    if not 0 <= place["index"] < generator.size:
        raise ConfigError(f"the generator of task {task.id!r} has {generator.size} entries, got index {place['index']}")
    entry = generator.entry(place["index"])
    if task.messages[-1]["content"] != entry["question"]:
        raise ConfigError(
            f"the generator {generator.name!r} gives another question than task {task.id!r} has: the row was changed, "
            "comes from another version of reasoning-gym, or the generator depends on PYTHONHASHSEED, which must then "
            "be set to the same number in every process"
        )
    return generator, entry
