"""Misspelt keyword arguments as errors that name the nearest one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from toolgym.tools.errors import UnknownArgumentError, nearest

P = ParamSpec("P")
T = TypeVar("T")


def named_keywords(call: Callable[P, T]) -> Callable[P, T]:
    """Let a misspelt keyword argument of a function, or of `__init__`, be an `UnknownArgumentError` that names the
    nearest one. The names that a subclass's `__init__` takes are known as well."""
    names = set(_keywords(call))

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in names:
                raise _unknown_keyword(name, type(args[0]) if call.__name__ == "__init__" else call)
        return call(*args, **kwargs)

    return checked


def named_fields(dataclass: type[T]) -> type[T]:
    dataclass.__init__ = named_keywords(dataclass.__init__)  # type: ignore[method-assign]
    return dataclass


def check_keywords(call: Callable[..., object], keywords: Iterable[str]) -> None:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # it does not say what it takes
        return
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = _keywords(call)
        for name in keywords:
            if name not in names:
                raise _unknown_keyword(name, call)


def _unknown_keyword(name: str, call: Callable[..., object]) -> UnknownArgumentError:
    calls = [call]
    if isinstance(call, type):  # what it does not take itself it may pass on
        calls = [vars(base)["__init__"] for base in call.__mro__ if "__init__" in vars(base)]
    known = dict.fromkeys(keyword for each in calls for keyword in _keywords(each))
    what = getattr(call, "__name__", repr(call))
    return UnknownArgumentError(f"{what} takes no argument {name!r}{nearest(name, known) or '.'}")


def _keywords(call: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(call).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
