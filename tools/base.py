"""The contract of a tool. The four-call lifecycle is verl's; `fork` is toolgym's own."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast

from toolgym.tools.errors import ConfigError, ForkNotSupportedError, UnknownArgumentError, nearest, shorten
from toolgym.tools.message import ImagePart, image_part, images_of, is_parts, require_content, text_of
from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.html import drawn_by, facts, page

_METHODS = {
    "create_kwargs": "create",
    "execute_kwargs": "execute",
    "calc_reward_kwargs": "calc_reward",
    "release_kwargs": "release",
}
"""From what a task may have for a tool to the method that gets it."""


class _ToolResult(NamedTuple):
    text: str
    reward: float
    metrics: dict[str, Any]


class ToolResult(_ToolResult):
    """The result of one call. Unpacks as the familiar `(str, float, dict)`.

    Attributes:
        text: what the model reads.
        reward: step reward of this call, added to the reward of the env's step.
        images: what the model sees beside the text, in order; `toolgym.tools.image` makes such a part of bytes.
        metrics: numbers and strings about the call, kept in the trajectory. `toolgym.envs.ToolEnv` understands `status`
            (a string, `"ok"` when all went well), `infra_failure` (true when the tool's infrastructure failed and the
            model is not to blame) and, beside the latter, `error` (what failed, for the log; the text is for the model
            and names no host and no path of ours).
    """

    images: tuple[ImagePart, ...]

    def __new__(
        cls,
        text: str,
        reward: float = 0.0,
        metrics: Mapping[str, Any] | None = None,
        *,
        images: Iterable[ImagePart] = (),
    ) -> ToolResult:
        if not isinstance(text, str):
            raise ConfigError(f"the text of a tool's result must be a str, got {shorten(repr(text))}")
        if not isinstance(metrics, Mapping | None):
            raise ConfigError(f"the metrics of a tool's result must map names to values, got {shorten(repr(metrics))}")
        try:
            number = float(reward)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the reward of a tool's result must be a number, got {shorten(repr(reward))}") from error
        result = super().__new__(cls, text, number, dict(metrics or {}))
        result.images = tuple(cast(list[ImagePart], require_content([*images])))
        return result

    def _repr_html_(self) -> str:
        return page("tool result", facts([("text", self.text), ("reward", self.reward), *self.metrics.items()]))

    @classmethod
    def of(cls, value: Any) -> ToolResult:
        """Read what a tool returned: a `ToolResult`, a `(text, reward, metrics)` tuple, or just text, or texts and
        images as a message's content has them."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if is_parts(value):
            content = require_content(value)
            return cls(text_of(content), images=map(image_part, images_of(content)))
        if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str):
            text, reward, metrics = value
            return cls(text, 0.0 if reward is None else reward, metrics)
        raise ConfigError(
            f"a tool must return ToolResult(text, reward, metrics), a (str, float, dict) tuple or a str, got {value!r}"
        )


class BaseTool(ABC):
    """A callable with a JSON schema and a life per episode: `create` once, `execute` per call, `calc_reward` once at
    the end, `release` exactly once, also after an error.

    One tool object serves many episodes at once; what belongs to one episode lives under its `instance_id`. A tool
    without state is a function with `@tool`; for one with state, `toolgym.tools.StatefulTool` keeps the instances.

    Args:
        config: the tool's own options; see the subclass.
        tool_schema: what the model sees, as a `ToolSchema` or a dict in the OpenAI shape. May be left out if the class
            has a `default_schema`.

    Attributes:
        stays_on_loop: all calls must come from one event loop. Otherwise a tool that was caught blocking the event loop
            runs on one of its own in later episodes.
        calls_server: another program's server answers the calls. A call that it does not answer in time is counted as a
            failure of the infrastructure.
        runs_programs: the calls run programs of the policy, which decide how long a call takes.
        task_kwargs: the names that a task's `tools_kwargs` may have for this tool, by the call that they go to:
            `{"create_kwargs": ["db_id"], "execute_kwargs": ["timeout"]}`. For a call that is left out, the names are
            those in the signature of the method; see `check_task_kwargs`.

    Raises:
        ConfigError: there is no schema, it is not valid, or lacks an argument that the class's own schema requires.
    """

    default_schema: ToolSchema | None = None
    stays_on_loop: bool = False
    calls_server: bool = False
    runs_programs: bool = False
    task_kwargs: Mapping[str, Collection[str]] = {}

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(config, Mapping | None):
            raise ConfigError(f"the config of a {type(self).__name__} must map options to values, got {config!r}")
        self.config: dict[str, Any] = dict(config or {})
        schema = tool_schema if tool_schema is not None else self.default_schema
        if schema is None:
            raise ConfigError(f"{type(self).__name__} needs a tool_schema: it has no default_schema of its own")
        self.tool_schema = schema if isinstance(schema, ToolSchema) else ToolSchema.from_openai(schema)
        if self.default_schema is not None:
            for name in self.default_schema.parameters.get("required", ()):
                if name not in self.tool_schema.parameters.get("properties", {}):
                    raise ConfigError(f"the schema of {type(self).__name__} must have the argument {name!r}")

    def __repr__(self) -> str:
        schema = getattr(self, "tool_schema", None)  # a subclass may be half made
        call = f" {schema.name}({', '.join(schema.parameters.get('properties', {}))})" if schema is not None else ""
        return f"<{type(self).__name__}{call}>"

    _repr_html_ = drawn_by("toolgym.tools.views.tool:tool_html")

    @property
    def name(self) -> str:
        return self.tool_schema.name

    def get_openai_tool_schema(self) -> dict[str, Any]:
        return self.tool_schema.to_openai()

    def check_task_kwargs(self, tools_kwargs: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Refuse arguments of a task that no method of this tool takes; nothing of a task is dropped.

        Called by the env before the tool is opened, with the task's `tools_kwargs[name]`. A method that takes
        `**kwargs` takes any name, unless `task_kwargs` names those of its call. A method that is not overridden takes
        no names.

        Raises:
            UnknownArgumentError: a name is not known; the message has it, the nearest and all known names.
        """
        for call, kwargs in tools_kwargs.items():
            if call not in _METHODS:
                raise UnknownArgumentError(
                    f"tools_kwargs of the tool {self.name!r} have {call!r}{nearest(call, _METHODS) or ';'} "
                    f"they may have: {', '.join(_METHODS)}"
                )
            names = self._names_of(call) if kwargs else None
            unknown = [name for name in kwargs or () if names is not None and name not in names]
            if names is not None and unknown:
                takes = f"it takes: {', '.join(names)}" if names else "it takes none"
                raise UnknownArgumentError(
                    f"the tool {self.name!r} has no {call} {unknown[0]!r}{nearest(unknown[0], names) or ';'} {takes}"
                )

    def _names_of(self, call: str) -> Collection[str] | None:
        """Return the names that a call takes from a task; None if it takes any."""
        if call in self.task_kwargs:
            return self.task_kwargs[call]
        method = getattr(self, _METHODS[call])
        if getattr(method, "__func__", None) is getattr(BaseTool, _METHODS[call]):
            return ()
        return keywords_of(method, without=("instance_id", "parameters"))

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        """Open this tool for one episode, with the task's `tools_kwargs[name]["create_kwargs"]`, and return the id that
        the other calls take; without an `instance_id`, a fresh one."""
        if create_kwargs and type(self).create is BaseTool.create:
            self.check_task_kwargs({"create_kwargs": create_kwargs})
        return instance_id if instance_id is not None else os.urandom(16).hex()

    @abstractmethod
    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        """Carry out one call, with the task's `tools_kwargs[name]["execute_kwargs"]`. The arguments were checked
        against the schema, and its defaults are filled in.

        What the model did wrong belongs in the result's text. The env catches an exception and shows it to the model as
        a failure of the tool; one of the infrastructure (`OSError`, `SandboxError`, or raised from one) is in the
        call's metrics and in the log, and the model reads only that the tool is not available.
        """

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        """Return the tool's contribution to the episode's reward, asked once when the episode ends. Default 0."""
        return 0.0

    def session_of(self, instance_id: str) -> Any:
        """Return what the tool keeps for an episode, for the episode's scorer; None if it keeps nothing."""
        return None

    async def fork(self, instance_id: str) -> str:
        """Copy an instance, with all its state, for another episode that goes on from here; return the id of the copy,
        which is released like any other. By default it raises `ForkNotSupportedError`."""
        raise ForkNotSupportedError(
            f"the tool {self.name!r} cannot be forked: {type(self).__name__} does not implement fork"
        )

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Free what `create` and `execute` took. Called exactly once per `create`, also after an error."""

    async def close(self) -> None:
        """Free what the tool itself holds (pools, connections). Called by its owner, after the last `release`."""


def keywords_of(function: Callable[..., Any], *, without: Collection[str] = ()) -> Collection[str] | None:
    """Return the names of the keyword arguments of a function; None if it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds and parameter.name not in without]
