"""`Suite`, the base of all suites: their marker, and skipping what an implementation says that it cannot do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

from toolgym.tools.lazy import missing_extra

try:
    import pytest
    import pytest_asyncio  # noqa: F401  the suites' tests are coroutines
except ImportError as error:
    raise missing_extra("testing", "A conformance suite", error) from error

P = ParamSpec("P")
S = TypeVar("S", bound="Suite")
T = TypeVar("T")
Test: TypeAlias = Callable[Concatenate[S, P], Coroutine[Any, Any, None]]


class Suite:
    """A class of tests for one kind of implementation. Subclass it in a test file, under a name that pytest collects.

    Attributes:
        loop_scope: which tests share an event loop (`"function"`, `"class"`, `"module"`, `"session"`), as the
            fixtures of the subclass need it; None: as pytest-asyncio is configured.
    """

    loop_scope: ClassVar[Literal["function", "class", "module", "package", "session"] | None] = None

    def __init_subclass__(cls, abilities: tuple[str, ...] = (), **kwargs: Any) -> None:
        """Skip all tests that the class defines unless these attributes of it are true."""
        super().__init_subclass__(**kwargs)
        for name, test in [*vars(cls).items()] if abilities else ():
            if name.startswith("test_"):
                setattr(cls, name, needs(*abilities)(test))
        if cls.__module__.startswith(f"{__package__}."):
            return  # pytest takes the marker of a base class for the closer one
        scope = {"loop_scope": cls.loop_scope} if cls.loop_scope is not None else {}
        marked = vars(cls).get("pytestmark", [])
        marks = [mark for mark in (marked if isinstance(marked, list) else [marked]) if mark.name != "asyncio"]
        cls.pytestmark = [*marks, pytest.mark.asyncio(**scope)]  # type: ignore[attr-defined]


def need(able: T | None, reason: str) -> T:
    """Skip the test if the implementation says that it cannot do this; else return what it gave to say that it can."""
    if not able:
        pytest.skip(reason)
    return able


def needs(*abilities: str) -> Callable[[Test[S, P]], Test[S, P]]:
    """Skip a test of a suite where one of these attributes of the suite is false or None; the reason names it."""

    def decorate(test: Test[S, P]) -> Test[S, P]:
        @functools.wraps(test)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            for name in abilities:
                value = getattr(self, name)
                need(value, f"{type(self).__name__}.{name} is {value!r}")
            await test(self, *args, **kwargs)

        return run

    return decorate
