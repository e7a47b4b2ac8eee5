"""The ids of envs: `register` gives an env an id, `make` makes the env of an id.

Importing this module imports no env and not Gymnasium. Gymnasium learns the ids once the user imports it: then
`gymnasium.make` gives a synchronous env of an id, and `gymnasium.make_vec` a vector env.
"""

from __future__ import annotations

import collections
import importlib
import importlib.metadata
import re
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from toolgym.envs.entry_points import import_module, is_entry_point, load, wrapped, wrapper_factories
from toolgym.envs.ids import OWN_ENVS
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.keywords import check_keywords
from toolgym.tools.lazy import after_import

if TYPE_CHECKING:
    from toolgym.envs.base import BaseEnv

SYNC_ENTRY_POINT = "toolgym.envs.gym.gymnasium_env:make_gymnasium_env"

VECTOR_ENTRY_POINT = "toolgym.envs.gym.vector_env:make_vector_env"

ENTRY_POINT_GROUP = "toolgym.envs"
"""The entry points of installed packages that name modules which register envs."""

MANY = 8
"""Ids of one namespace that an error names one by one."""


@dataclass(frozen=True)
class EnvSpec:
    """An env's id and how to make the env; see `register`."""

    id: str
    entry_point: str | Callable[..., BaseEnv]
    description: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., BaseEnv]:
        """Return the class or function that makes the env."""
        if not isinstance(self.entry_point, str):
            return self.entry_point
        return load(self.entry_point, f"the env {self.id!r}")

    def build(self, kwargs: Mapping[str, Any]) -> BaseEnv:
        """Make the env with these arguments and no others; `wrappers` go around it, see `make`."""
        from toolgym.envs.base import BaseEnv

        kwargs = dict(kwargs)
        around = wrapper_factories(kwargs.pop("wrappers", ()))
        entry_point = self.load()
        check_keywords(entry_point, kwargs)
        env = entry_point(**kwargs)
        if not isinstance(env, BaseEnv):
            raise ConfigError(f"the entry point of env {self.id!r} must give a toolgym BaseEnv, it gave {env!r}")
        try:
            return wrapped(env, around)
        except BaseException:  # the env that no wrapper took is closed
            from toolgym.tools.concurrency.event_loop_thread import EventLoopThread

            EventLoopThread(name="toolgym-unwrapped", on_close=env.close).close()
            raise


_specs: dict[str, EnvSpec] = {
    id: EnvSpec(id, row.entry_point, row.description, row.kwargs) for id, row in OWN_ENVS.items()
}

_ID = re.compile(r"(?:[\w-]+/)?[\w.-]+")
"""Gymnasium's form of an id (`gymnasium/envs/registration.py`, `ENV_ID_RE`), without colons: `make` reads them."""

_VERSION = re.compile(r"(?<=[\w.-])-v\d+$")


def register(
    id: str,
    entry_point: str | Callable[..., BaseEnv],
    *,
    description: str = "",
    kwargs: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> EnvSpec:
    """Give an env an id, here and with Gymnasium. Registering the same thing again does nothing.

    Args:
        id: the id, for example `MyEnv-v0`, with or without a namespace: `lab/MyEnv-v0`.
        entry_point: a class or function that makes a `BaseEnv`, or where it is, as `"package.module:name"`. If it has a
            class method `vector_defaults(num_envs, kwargs) -> kwargs`, that gives the arguments for a vector env.
        description: one line for a list of envs.
        kwargs: arguments that every env of this id gets, unless `make` is given others; `wrappers` too.
        replace: replace what the id stood for, for example when a notebook's cell is run again.

    Raises:
        ConfigError: the id is malformed, or stands for something else already.

    Example:
        >>> import toolgym
        >>> entry_point = "toolgym.envs.library.code_interpreter:CodeInterpreterEnv"
        >>> spec = toolgym.register("ShortCodeInterpreter-v0", entry_point, kwargs={"max_turns": 2})
    """
    if not isinstance(kwargs, Mapping | None):
        raise ConfigError(f"env {id!r}: kwargs must map names to arguments, got {kwargs!r}")
    if not callable(entry_point) and not is_entry_point(entry_point):
        raise ConfigError(
            f"env {id!r}: expected an entry point like 'package.module:name', or a callable, got {entry_point!r}"
        )
    spec = EnvSpec(id, entry_point, description, dict(kwargs or {}))
    known = _specs.get(id)
    if known is not None and not replace:
        if (known.entry_point, known.kwargs) == (spec.entry_point, spec.kwargs):
            return known
        raise ConfigError(
            f"the env id {id!r} stands for {known.entry_point!r} with {dict(known.kwargs)!r} already, so it cannot "
            f"also stand for {spec.entry_point!r} with {dict(spec.kwargs)!r}; choose another id (a new version, for "
            "example), or pass replace=True"
        )
    _check_id(id)
    if sys.modules.get("gymnasium") is not None:
        _tell_gymnasium(id)
    _specs[id] = spec
    return spec


def make(id: str, **kwargs: Any) -> BaseEnv:
    """Make the async env of an id.

    Args:
        id: a registered id. `"package.module:MyEnv-v0"` imports the module first, which registers its ids. An installed
            package's ids are known if it names that module in the entry-point group `toolgym.envs`.
        kwargs: arguments of the env. `wrappers` is a list of what goes around it, the first innermost: each a function
            or class that is called with the env, its entry point (`"package.module:name"`), or a mapping with that as
            `name` and with its `kwargs`. One function by itself will do, for example a `toolgym.wrappers.Compose`.

    Raises:
        UnknownNameError: no env has that id, or the module does not exist; names the nearest id.
        ConfigError: a wrapper is none, or gave something that is not a `BaseEnv`.

    Example:
        >>> import toolgym
        >>> toolgym.make("CodeInterpreter-v0", max_turns=3).max_turns
        3
    """
    env_spec = spec(id)
    return env_spec.build({**env_spec.kwargs, **kwargs})


def spec(id: str) -> EnvSpec:
    """Return what an id stands for; see `make` for the form of `id` and for errors."""
    if not isinstance(id, str):
        raise ConfigError(f"an env id is a text like 'CodeInterpreter-v0', got {id!r}")
    module_name, colon, name = id.rpartition(":")
    if colon:
        import_module(module_name, f"the env id {id!r} asks for it")
    if name not in _specs:
        _import_installed()
    if name not in _specs:
        known = ", ".join(_short(_specs)) or "none"
        hint = "" if colon else "; 'module:Id' imports the module that registers an id first"
        raise UnknownNameError(f"no env has the id {name!r}{nearest(name, _specs) or '.'} Known ids: {known}{hint}")
    return _specs[name]


def _short(ids: Collection[str]) -> list[str]:
    """Ids in their order, a namespace with many of them as one: `ReasoningGym/... (106)`."""
    families = collections.Counter(id.partition("/")[0] for id in ids if "/" in id)
    large = {name for name, count in families.items() if count > MANY}
    named = {f"{name}/... ({families[name]})" for name in large}
    return sorted(named | {id for id in ids if id.partition("/")[0] not in large})


def registered() -> Mapping[str, EnvSpec]:
    """Every id and what it stands for, those of installed packages too, as a read-only view."""
    _import_installed()
    return MappingProxyType(_specs)


_importing = threading.RLock()
_installed_asked = False


def _import_installed() -> None:
    """Import, once, the modules that installed packages name as entry points: each registers its ids."""
    global _installed_asked
    with _importing:  # another thread waits until all ids are there; a module that asks for ids itself does not
        if _installed_asked:
            return
        _installed_asked = True
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                entry_point.load()
            except Exception as error:  # noqa: BLE001  # a broken package must not stop those that use another one
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                warnings.warn(
                    f"the envs of the package {package!r} are left out, since its module {entry_point.value!r} cannot "
                    f"be imported: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )


def _check_id(id: object) -> None:
    """Raise `ConfigError` unless Gymnasium would take the id: only one of `Name` and `Name-v0` may exist."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise ConfigError(f"an env id is a text like 'MyEnv-v0' or 'lab/MyEnv-v0', without a colon, got {id!r}")
    name, versioned = _name(id)
    other = next((known for known in _specs if known != id and _name(known) == (name, not versioned)), None)
    if other is not None:
        raise ConfigError(f"the env ids {other!r} and {id!r} cannot both exist: give each a version, or none")


def _name(id: str) -> tuple[str, bool]:
    name = _VERSION.sub("", id)
    return name, name != id


def _tell_gymnasium(id: str) -> None:
    import gymnasium

    known = gymnasium.registry.get(id)
    if known is not None and known.entry_point == SYNC_ENTRY_POINT:
        return  # ours, from before this module was reloaded, or about to be replaced: it looks the id up here
    try:
        gymnasium.register(
            id=id,
            entry_point=SYNC_ENTRY_POINT,
            vector_entry_point=VECTOR_ENTRY_POINT,
            kwargs={"env_id": id},
        )
    except gymnasium.error.Error as error:
        raise ConfigError(f"Gymnasium does not take the env id {id!r}: {error}") from error


def _tell_gymnasium_all(_: ModuleType) -> None:
    for id in list(_specs):
        try:
            _tell_gymnasium(id)
        except ConfigError as error:  # Gymnasium's own import must go on
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)


after_import("gymnasium", _tell_gymnasium_all)
