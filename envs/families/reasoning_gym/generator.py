"""`Generator`: one of reasoning-gym's data sets, from its name and options; made once in a process."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.envs.families.reasoning_gym.ids import COMPOSITE, GENERATORS
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, require_whole_number
from toolgym.tools.lazy import missing_extra

KEPT_ENTRIES = 4096
"""Entries that a process keeps, since scoring needs the one that its task was made of."""


class Generator(NamedTuple):
    """A generator with its options. Equal ones make equal entries.

    Attributes:
        name: reasoning-gym's name of it.
        seed: what all its entries depend on.
        size: how many entries there are.
        level: of its curriculum: a level for all attributes, or for some by name; None: the generator's own defaults.
        config: its other options as JSON, sorted.
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
        """Check the arguments of a generator.

        Raises:
            UnknownNameError: there is no such generator; names the nearest one.
            ConfigError: an argument is of the wrong kind, or the options are no JSON.
        """
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
        """Read what `to_json` gave. Raises ConfigError: it is something else."""
        try:
            arguments = {name: value[name] for name in ("name", "seed", "size")}
            return cls.of(**arguments, level=value.get("level"), config=json.loads(value.get("config") or "{}"))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ConfigError(f"expected name, seed, size, level and config of a generator, got {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        """The generator as a JSON object. `config` stays a text, since a column of a table has one type."""
        level = dict(self.level) if isinstance(self.level, tuple) else self.level
        return {**self._asdict(), "level": level}

    @property
    def levels(self) -> int:
        """The levels of the curriculum, that is, of its longest attribute; 0 if the generator has none."""
        from reasoning_gym.factory import CURRICULA

        if self.name not in CURRICULA:
            return 0
        return max(len(attribute.levels) for attribute in CURRICULA[self.name]().attributes.values())

    def entry(self, index: int) -> dict[str, Any]:
        """The entry of a place: `question`, `answer` (None where none is known) and `metadata`; do not change it."""
        return _entry(self, index)

    def score(self, answer: str, entry: Mapping[str, Any]) -> float:
        """The score of an answer by the generator's own scorer. All that this raises passes through."""
        return float(dataset(self).score_answer(answer, entry))


@functools.lru_cache(maxsize=KEPT_ENTRIES)
def _entry(generator: Generator, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = dataset(generator)[index]
    return entry


@functools.lru_cache(maxsize=256)
def dataset(generator: Generator) -> Any:
    """The data set of reasoning-gym, which makes its entries when they are asked for.

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        UnknownNameError: it takes no such option, or its curriculum has no such attribute; names the nearest one.
        ConfigError: it refuses the options, or has no such level.
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


def _at_level(generator: Generator, options: dict[str, Any]) -> Any:
    """The options that the curriculum gives at a level; those in `given` are for what it leaves open."""
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
    """The generators that a composite one mixes."""
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
