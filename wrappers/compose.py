"""`Compose`: several wrappers as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.entry_points import wrapped, wrapper_factories


class Compose:
    """Puts several wrappers around an env: `Compose(a, b)(env)` is `b(a(env))`.

    Args:
        wrappers: the first is innermost; each as in `wrappers` of `toolgym.make`, which has the errors too.

    Example:
        >>> import toolgym
        >>> from functools import partial
        >>> from toolgym.wrappers import TruncateResults, TurnLimit
        >>> short = Compose(partial(TruncateResults, max_chars=1000), partial(TurnLimit, max_turns=4))
        >>> toolgym.make("CodeInterpreter-v0", wrappers=short)
        <TurnLimit<TruncateResults<CodeInterpreterEnv with code_interpreter; not reset>>>
    """

    def __init__(self, *wrappers: str | Mapping[str, Any] | Callable[[BaseEnv], BaseEnv]) -> None:
        self.wrappers = tuple(wrapper_factories(wrappers))

    def __call__(self, env: BaseEnv) -> BaseEnv:
        return wrapped(env, self.wrappers)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.wrappers))})"
