"""The episode that a tool is called for, so that tools of one episode find what they share.

An env gives each episode an id of its own while it calls the episode's tools. Without an env,
`with tool_scope("a name"):` around the calls does the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from toolgym.tools.concurrency.set_contextvar import set_contextvar

_scope: ContextVar[str | None] = ContextVar("toolgym_tool_scope", default=None)


def tool_scope(name: str | None) -> AbstractContextManager[None]:
    """Call tools for the episode of this name; None: for none."""
    return set_contextvar(_scope, name)


def enter_tool_scope(name: str) -> None:
    """Let the running task call tools for the episode of this name from here on."""
    _scope.set(name)


def current_scope() -> str | None:
    return _scope.get()
