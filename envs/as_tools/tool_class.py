"""`tool_class`: an env as a class with one typed method for each tool, as TRL and others take environments."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copyreg
import inspect
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from toolgym.envs.as_tools.episode import ToolEpisode
from toolgym.envs.as_tools.signature import Signature, signature_of
from toolgym.envs.base import BaseEnv, require_growing_context
from toolgym.envs.registry import make
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, EpisodeError
from toolgym.tools.schema import ToolSchema

OWN_NAMES = ("reset", "get_reward", "close", "finish")

CLOSE_TIMEOUT = 30.0

_log = logging.getLogger("toolgym.envs")


class ToolClass(type):
    """The type of the classes that `tool_class` makes. They can be pickled: unpickling makes the class again."""


class _Hidden:
    """A public method that trainers do not see, which take each function of a class for a tool."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)


class ToolEnvironment:
    """Base of the classes of `tool_class`. Their instances may be reset any number of times, and called from any
    thread.

    All instances of a class share one event loop in a thread of its own. In async code, call the methods in a thread
    (`asyncio.to_thread`), as they wait.
    """

    _home: _Home
    _episode: ToolEpisode

    def __init__(self) -> None:
        self._episode = self._home.begin()
        self._finalizer = weakref.finalize(self, self._home.end, self._episode)
        self._finalizer.atexit = False  # the loop's own end closes what is left

    def reset(self, **row: Any) -> str | None:
        """Begin an episode with a row of a data set, ending the one before and releasing its tools.

        `toolgym_task` holds a task's row as JSON; without it the row itself is one, in verl's shape. If neither has a
        prompt, the env draws a task, from `seed` if that is a column, and its messages are returned as text. A row that
        is no task is a `ConfigError`.
        """
        return self._home.run(self._episode.reset(row))

    def get_reward(self, answer: str | None = None) -> float | None:
        """End the episode with the policy's last turn, for envs that score it, and return its reward.

        None if the infrastructure failed, which says nothing of a policy. Without an answer, an empty one is scored.
        """
        if answer is None and not self._episode.over:
            self._home.warn_once(
                "get_reward was called without the policy's answer, so that an env that scores the answer scores an "
                "empty one: call get_reward(answer), or make the class with answer_tool='submit_answer'"
            )
        return self._finish(answer or "")

    @_Hidden
    def finish(self, answer: str) -> float | None:
        """As `get_reward(answer)`, under a name that is there in every class."""
        return self._finish(answer)

    @_Hidden
    def close(self) -> None:
        """End the episode and free everything. An instance that is forgotten is closed too."""
        if self._finalizer.detach() is not None:
            self._home.close(self._episode)

    @property
    def failure(self) -> str | None:
        """The failure that broke the episode off, in words; None if nothing did."""
        return self._episode.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _finish(self, answer: str) -> float | None:
        if not self._episode.over:
            self._home.run(self._episode.answer(answer))
        return self._episode.reward


def finish_all(
    environments: Sequence[ToolEnvironment], answers: Sequence[str | None], whole: Sequence[bool]
) -> list[float | None]:
    """The rewards of many episodes, scored side by side; an answer that is not `whole` was cut."""
    scored = [
        env._home.submit(env._episode.answer(answer) if ended and answer is not None else env._episode.cut(answer))
        for env, answer, ended in zip(environments, answers, whole, strict=True)
        if not env._episode.over
    ]
    for score in scored:
        score.result()
    return [env._episode.reward for env in environments]


def tool_class(
    env: str | Callable[[], BaseEnv],
    *,
    answer_tool: str | None = None,
    own_reward: bool = True,
    **kwargs: Any,
) -> type[ToolEnvironment]:
    """Return an env as a class: `reset(**row)`, one public method for each tool, and `get_reward()`.

    The methods have the signatures, type hints and Google-style docstrings of the tools' schemas, from which TRL and
    `transformers.utils.get_json_schema` read the same schemas. A call is one turn of the env. A model's mistakes and a
    tool's failures are text that it reads.

    Example:
        >>> Interpreter = tool_class("CodeInterpreter-v0", max_turns=4)
        >>> with Interpreter() as env:
        ...     _ = env.reset(prompt=[{"role": "user", "content": "6*7?"}], reward_model={"ground_truth": "42"})
        ...     print(env.code_interpreter(code="print(6*7)"), env.get_reward("#### 42"))
        42 1.0

    Args:
        env: an env id, or a function that makes an env.
        answer_tool: name of a further method, `(answer: str) -> str`, by which the model hands in its answer and ends
            the episode: for trainers that call `get_reward()` without the answer.
        own_reward: whether the class has `get_reward`. TRL adds that to the reward functions, so leave it out if one of
            these calls `finish(answer)`.
        kwargs: arguments of the env, when `env` is an id. Its `max_turns` bounds the calls: each is a turn.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: a tool's name is one of the class's own methods, no method's name, or that of another tool.
    """
    if not isinstance(env, str) and (not callable(env) or isinstance(env, BaseEnv)):
        raise ConfigError(f"expected an env id or a function that makes an env, got {env!r}")
    if kwargs and not isinstance(env, str):
        raise ConfigError("keyword arguments go with an env id; a function that makes envs knows its own")
    make_env = partial(make, env, **kwargs) if isinstance(env, str) else env
    first = make_env()
    title = env if isinstance(env, str) else type(first).__name__
    members: dict[str, Any] = {
        "__doc__": f"The env {title} as a class of tools; see `tool_class` in `toolgym.envs`.",
        "__module__": __name__,
        "_recipe": partial(tool_class, env, answer_tool=answer_tool, own_reward=own_reward, **kwargs),
        "_home": _Home(make_env, first),
    }
    require_growing_context(first, "the caller of a class of tools")
    if not own_reward:
        members["get_reward"] = None
    for schema in first.tool_schemas:
        _add(members, schema.name, _calling(schema.name, signature_of(schema)))
    if answer_tool is not None:
        _add(members, answer_tool, _answering(answer_tool))
    name = "".join(part[:1].upper() + part[1:] for part in "".join(c if c.isalnum() else " " for c in title).split())
    return ToolClass(name if name.isidentifier() else "ToolgymEnv", (ToolEnvironment,), members)  # type: ignore[return-value]


copyreg.pickle(ToolClass, lambda kind: (kind._recipe, ()))  # type: ignore[attr-defined]


def _add(members: dict[str, Any], name: str, method: Callable[..., str]) -> None:
    if name in OWN_NAMES or name in ("failure",):
        raise ConfigError(
            f"a tool is called {name!r}, which every class of tools has as a method of its own "
            f"({', '.join(OWN_NAMES)}): give the tool another name"
        )
    if not name.isidentifier() or name.startswith("_"):
        raise ConfigError(f"a tool is called {name!r}, which cannot be the name of a public method: rename the tool")
    if name in members:
        raise ConfigError(f"two tools are called {name!r}; give one of them another name")
    members[name] = method


def _calling(name: str, method: Signature) -> Callable[..., Any]:
    names = list(method.signature.parameters)[1:]

    def call(self: ToolEnvironment, *args: Any, **arguments: Any) -> str | list[dict[str, Any]]:
        if len(args) > len(names):
            raise TypeError(f"{name}() takes {len(names)} arguments, got {len(args)}")
        named = {**dict(zip(names, args, strict=False)), **arguments}
        return self._home.run(self._episode.call(name, named))

    return _dressed(call, name, method)


def _answering(name: str) -> Callable[..., str]:
    schema = ToolSchema(
        name,
        "Hand in your final answer. This ends the task.",
        {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "your last message, with the answer in it"}},
            "required": ["answer"],
        },
    )

    def call(self: ToolEnvironment, answer: Any) -> str:
        if not isinstance(answer, str):
            return f"Wrong arguments for tool {name!r}: answer must be a string."
        return self._home.run(self._episode.answer(answer)) or "[Your answer was taken]"

    return _dressed(call, name, signature_of(schema))


def _dressed(call: Any, name: str, method: Signature) -> Callable[..., str]:
    """A function with the name, signature and docstring that it is to be known by.

    The return type stands in the signature only: transformers would write it into the schema that the model reads.
    """
    call.__name__ = call.__qualname__ = name
    call.__doc__, call.__signature__ = method.doc, method.signature
    hints = {parameter.name: parameter.annotation for parameter in method.signature.parameters.values()}
    call.__annotations__ = {key: hint for key, hint in hints.items() if hint is not inspect.Parameter.empty}
    dressed: Callable[..., str] = call
    return dressed


class _Home:
    """Shared parts of the instances of one class: the event loop, and the episodes that are to be closed."""

    def __init__(self, make_env: Callable[[], BaseEnv], first: BaseEnv) -> None:
        self._make_env = make_env
        self._spare: ToolEpisode | None = ToolEpisode(first)  # whose tools the class was made of
        self._open = {self._spare}
        self._warned = False
        self._bridge = EventLoopThread(
            name="toolgym-tools", on_close=partial(_close_all, self._open), close_timeout=CLOSE_TIMEOUT
        )
        _homes.add(self)
        self.run, self.submit = self._bridge.run, self._bridge.submit

    def begin(self) -> ToolEpisode:
        episode, self._spare = self._spare or ToolEpisode(self._make_env()), None
        self._open.add(episode)
        return episode

    def end(self, episode: ToolEpisode) -> None:
        """Have an episode closed whose instance was collected."""
        self._open.discard(episode)
        coroutine = episode.close()
        try:
            self.submit(coroutine)
        except EpisodeError:  # the loop has ended, and closed it
            coroutine.close()

    def close(self, episode: ToolEpisode) -> None:
        self._open.discard(episode)
        self.run(episode.close())

    def end_all(self) -> None:
        self._bridge.close()

    def warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s", text)


async def _close_all(episodes: set[ToolEpisode]) -> None:
    for result in await asyncio.gather(*(episode.close() for episode in episodes), return_exceptions=True):
        if isinstance(result, Exception):
            _log.warning("closing an env failed: %s: %s", type(result).__name__, result)


_homes: weakref.WeakSet[_Home] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Close what is left before the sandboxes' loops end, which this needs: what was registered last runs first."""
    for home in list(_homes):
        with contextlib.suppress(Exception):  # the interpreter ends anyway
            home.end_all()
