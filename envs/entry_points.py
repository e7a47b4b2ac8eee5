"""Entry points (`"package.module:name"`) and the functions that a configuration names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.keywords import check_keywords

if TYPE_CHECKING:
    from toolgym.envs.base import BaseEnv

Wrap = Callable[["BaseEnv"], "BaseEnv"]


def wrapper_factories(wrappers: object) -> list[Wrap]:
    """Return the functions that a value of `wrappers` stands for, see `make`."""
    if wrappers is None:
        return []
    if callable(wrappers):
        wrappers = [wrappers]
    if isinstance(wrappers, str) or not isinstance(wrappers, Sequence):
        raise ConfigError(f"wrappers must be a list of functions from an env to an env, got {wrappers!r}")
    return [_wrapper_factory(wrapper) for wrapper in wrappers]


def _wrapper_factory(setting: object) -> Wrap:
    factory: Any = named_factory(setting, "a wrapper", "a function from an env to an env")
    try:
        inspect.signature(factory).bind(None)
    except ValueError:  # it does not say what it takes
        pass
    except TypeError as error:
        raise ConfigError(
            f"a wrapper is called with the env alone, but for {setting!r} {error}: give what else it takes with "
            "functools.partial(wrapper, ...), or as {'name': 'package.module:name', 'kwargs': {...}}"
        ) from error
    return factory  # type: ignore[no-any-return]  # `wrapped` checks what it gives


def named_factory(setting: object, what: str, kind: str) -> Callable[..., Any]:
    """Return the function that a value in a configuration stands for, with its keyword arguments bound to it.

    The value is a function, its entry point, or a mapping with that as `name` and with its `kwargs`. For error
    messages, `what` is what it is (`"a wrapper"`), and `kind` which functions are expected.
    """
    known = isinstance(setting, Mapping) and {"name"} <= set(setting) <= {"name", "kwargs"}
    name, kwargs = (
        (setting["name"], setting.get("kwargs") or {}) if isinstance(setting, Mapping) and known else (setting, {})
    )
    factory: Any = load(name, what) if isinstance(name, str) and is_entry_point(name) else name
    if not callable(factory) or not isinstance(kwargs, Mapping):
        raise ConfigError(
            f"{what} is {kind}, where to find one ('package.module:name'), or a mapping with that 'name' and its "
            f"'kwargs'; got {setting!r}"
        )
    check_keywords(factory, kwargs)
    return partial(factory, **kwargs) if kwargs else factory


def wrapped(env: BaseEnv, wrappers: Iterable[Wrap]) -> BaseEnv:
    """Put wrappers around an env, the first innermost; one that gives no `BaseEnv` is a `ConfigError`."""
    from toolgym.envs.base import BaseEnv

    for wrap in wrappers:
        around: object = wrap(env)
        if not isinstance(around, BaseEnv):
            raise ConfigError(f"the wrapper {wrap!r} must give a toolgym BaseEnv, it gave {around!r}")
        env = around
    return env


def load(entry_point: str, what: str) -> Callable[..., Any]:
    """Import what an entry point names; `what` says in errors what that is."""
    module_name, _, path = entry_point.partition(":")
    target: Any = import_module(module_name, f"{what} should be in {entry_point!r}")
    for name in path.split("."):
        if not hasattr(target, name):
            raise UnknownNameError(
                f"{what} should be in {entry_point!r}, but there is no {name!r}{nearest(name, dir(target))}"
            )
        target = getattr(target, name)
    if not callable(target):
        raise ConfigError(f"{what} should be in {entry_point!r}, which is not callable: {target!r}")
    return target  # type: ignore[no-any-return]  # callers check what it gives


def is_entry_point(value: object) -> bool:
    if not isinstance(value, str):
        return False
    module_name, _, path = value.partition(":")
    return all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")])


def import_module(module_name: str, why: str) -> Any:
    """Import a module; `why` says in errors what asks for it."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{module_name!r} is not the name of a module; {why}")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A dependency that the module lacks is another matter, with its own message.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        import pkgutil

        modules = (
            [] if "." in error.name else {module.name for module in pkgutil.iter_modules()} - sys.stdlib_module_names
        )
        raise UnknownNameError(f"there is no module {error.name!r}{nearest(error.name, modules)}; {why}") from error
