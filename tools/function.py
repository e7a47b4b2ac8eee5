"""`@tool`: a typed Python function with a Google-style docstring becomes a tool, and stays a function."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

import docstring_parser
import pydantic

from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.concurrency.blocking import NoThreadError
from toolgym.tools.concurrency.execution_pool import PoolMode, tool_pool
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import is_parts
from toolgym.tools.schema import ToolSchema, map_subschemas

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

RunsIn = Literal["thread", "process"]

_MODES = {"thread": PoolMode.ThreadMode, "process": PoolMode.ProcessMode}


class FunctionTool(BaseTool):
    """A stateless tool around a function. `@tool` makes it.

    An `async def` function runs on the event loop; a plain one runs in `tool_pool`, in a thread, or in a process if it
    computes or may crash. At most 256 run at once in threads (`TOOLGYM_BLOCKING_THREADS`), and one per processor in
    processes (`TOOLGYM_BLOCKING_PROCESSES`); further calls wait, and their deadlines stand still. At the env's deadline
    a process is killed; a thread runs on to its end, unheard, while another takes its place. The log names the tool,
    and `tool_pool().left_behind` counts such threads.
    """

    task_kwargs: Mapping[str, Collection[str]] = {"execute_kwargs": ()}

    def __init__(
        self, function: Callable[..., Any], schema: ToolSchema, model: type[pydantic.BaseModel], runs_in: RunsIn
    ) -> None:
        super().__init__({}, schema)
        if runs_in not in _MODES:
            raise ConfigError(f"tool {self.name!r}: runs_in must be 'thread' or 'process', got {runs_in!r}")
        self._mode = _MODES[runs_in]
        if not inspect.iscoroutinefunction(function):
            tool_pool(self._mode)  # a wrong number of workers is an error here, and not a model's observation
        elif runs_in == "process":
            raise ConfigError(f"tool {self.name!r}: only a plain function runs in a process, not an `async def`")
        self.function = function
        self._model = model

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return await self.call(self.function, parameters)

    async def call(self, function: Callable[..., Any], parameters: dict[str, Any]) -> ToolResult:
        """Call a function with arguments that are checked against the tool's own, where and as the tool's runs."""
        try:
            checked = self._model.model_validate(parameters)
        except pydantic.ValidationError as error:
            sentences = (f"Argument {'.'.join(map(str, e['loc']))!r}: {e['msg']}." for e in error.errors())
            return ToolResult(
                f"Wrong arguments for tool {self.name!r}: " + " ".join(sentences), 0.0, {"status": "error"}
            )
        arguments = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(function):
            value = await function(**arguments)
        else:
            try:
                value = await tool_pool(self._mode).run(functools.partial(function, **arguments), name=self.name)
            except NoThreadError as error:
                text = f"[The tool {self.name!r} is not available now; your call is not to blame]"
                return ToolResult(text, 0.0, {"status": "error", "infra_failure": True, "error": str(error)})
        return _as_result(value)

    async def fork(self, instance_id: str) -> str:
        return await self.create()


class ToolFunction(Protocol[P, R]):
    """A function with a tool as an attribute; `@tool` makes it.

    It is a plain function with the same name, signature and docstring, so `transformers.utils.get_json_schema`,
    `trl.GRPOTrainer(tools=[...])` and `ToolEnv([convert], ...)` take it.
    """

    __name__: str
    tool: FunctionTool
    tool_schema: ToolSchema

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def as_tool(value: object) -> BaseTool:
    candidate = getattr(value, "tool", None) if inspect.isfunction(value) else value
    if not isinstance(candidate, BaseTool):
        raise ConfigError(f"a tool must be a BaseTool (`@toolgym.tool` makes one of a function), got {value!r}")
    return candidate


@overload
def tool(function: Callable[P, R], /) -> ToolFunction[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, runs_in: RunsIn = "thread"
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    runs_in: RunsIn = "thread",
) -> ToolFunction[..., Any] | Callable[[Callable[..., Any]], ToolFunction[..., Any]]:
    """Turn a typed function into a tool, which is a function still; see `ToolFunction`.

    The name is the function's, the description its docstring's, unless they are given; the parameters come from the
    type hints (any type that pydantic understands, nested models included) and their descriptions from the docstring's
    `Args` section. The function may return text, a `ToolResult`, or anything that JSON can hold.

    A plain function runs in a thread, or with `runs_in="process"` in a process, for one that computes or may crash.
    That one gets its arguments and gives its result by cloudpickle; at a deadline it is killed. A parameter without a
    type hint, `*args` and `**kwargs` are a `ConfigError`.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two integers.
    ...
    ...     Args:
    ...         a: the first
    ...         b: the second
    ...     '''
    ...     return a + b
    >>> add(2, 3)
    5
    >>> add.tool_schema.parameters["required"]
    ['a']
    """
    if function is None:
        return lambda wrapped: _tool_function(wrapped, name, description, runs_in)
    return _tool_function(function, name, description, runs_in)


def _tool_function(
    function: Callable[..., Any], name: str | None, description: str | None, runs_in: RunsIn
) -> ToolFunction[..., Any]:
    """Return a function of its own, so that one function can become several tools."""
    call: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)
    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    call.tool = _make(function, name, description, runs_in)
    call.tool_schema = call.tool.tool_schema
    wrapper: ToolFunction[..., Any] = call
    return wrapper


def _make(function: Callable[..., Any], name: str | None, description: str | None, runs_in: RunsIn) -> FunctionTool:
    tool_name = name or function.__name__
    docstring = docstring_parser.parse(inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE)
    described = {param.arg_name: param.description or "" for param in docstring.params}
    fields: dict[str, Any] = {}
    for param in inspect.signature(function, eval_str=True).parameters.values():
        if param.kind not in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY):
            raise ConfigError(f"tool {tool_name!r}: parameter {param} must be passable by name; the model names them")
        if param.annotation is param.empty:
            raise ConfigError(
                f"tool {tool_name!r}: parameter {param.name!r} needs a type hint, the schema is made of it"
            )
        default = ... if param.default is param.empty else param.default
        fields[param.name] = (
            param.annotation,
            pydantic.Field(default=default, description=described.get(param.name) or None),
        )
    model = pydantic.create_model(tool_name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    parameters = without_titles(model.model_json_schema())
    text = description
    if text is None:
        text = "\n\n".join(part for part in (docstring.short_description, docstring.long_description) if part)
    return FunctionTool(function, ToolSchema(tool_name, text, parameters), model, runs_in)


def tool_of_method(method: Callable[..., Any]) -> FunctionTool:
    """Return a tool with the schema of a method, without its `self`. Call it by `FunctionTool.call`."""
    signature = inspect.signature(method, eval_str=True)

    @functools.wraps(method)
    def unbound(**arguments: Any) -> Any:
        raise TypeError(f"{method.__qualname__} needs its object")

    del unbound.__wrapped__  # `inspect.signature` would follow it
    unbound.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return _make(unbound, None, None, "thread")


def without_titles(schema: Any) -> Any:
    """Copy a schema without the titles that pydantic makes of field names: they cost tokens and say nothing new."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return map_subschemas(kept, without_titles)


def _as_result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult | str) or is_parts(value):
        return ToolResult.of(value)
    if isinstance(value, pydantic.BaseModel):
        return ToolResult(value.model_dump_json())
    return ToolResult(json.dumps(value, ensure_ascii=False, default=str))
