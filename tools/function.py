"""`@tool`: a typed Python function with a Google-style docstring becomes a tool."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any, overload

import docstring_parser
import pydantic

from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import ToolSchema


class FunctionTool(BaseTool):
    """A stateless tool around a function. Made by `@tool`; still callable as the function it wraps.

    An `async def` function runs on the event loop; a plain one runs in a thread, so that it does not hold up other
    episodes. A plain function cannot be interrupted: at the env's deadline its answer is dropped, but the thread
    runs on to its end. It has no state per episode, so a fork is another instance.
    """

    def __init__(self, function: Callable[..., Any], schema: ToolSchema, model: type[pydantic.BaseModel]) -> None:
        super().__init__({}, schema)
        self.function = function
        self._model = model
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", schema.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        try:
            checked = self._model.model_validate(parameters)
        except pydantic.ValidationError as error:
            sentences = (f"Argument {'.'.join(map(str, e['loc']))!r}: {e['msg']}." for e in error.errors())
            return ToolResult(
                f"Wrong arguments for tool {self.name!r}: " + " ".join(sentences), 0.0, {"status": "error"}
            )
        arguments = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(**arguments)
        else:
            value = await asyncio.to_thread(self.function, **arguments)
        return _as_result(value)

    async def fork(self, instance_id: str) -> str:
        return await self.create()


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Turn a typed function into a tool.

    The name is the function's, the description its docstring's, the parameters come from the type hints (any type
    that pydantic understands, nested models included) and their descriptions from the docstring's `Args` section.
    The function may return text, a `ToolResult`, or anything that JSON can hold.

    Example:
        >>> @tool
        ... def add(a: int, b: int = 1) -> int:
        ...     '''Add two integers.
        ...
        ...     Args:
        ...         a: the first
        ...         b: the second
        ...     '''
        ...     return a + b
        >>> add.tool_schema.parameters["required"]
        ['a']

    Raises:
        ConfigError: a parameter has no type hint, or takes `*args` or `**kwargs`.
    """
    if function is None:
        return lambda wrapped: _make(wrapped, name, description)
    return _make(function, name, description)


def _make(function: Callable[..., Any], name: str | None, description: str | None) -> FunctionTool:
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
    parameters = model.model_json_schema()
    _drop_titles(parameters)
    text = description
    if text is None:
        text = "\n\n".join(part for part in (docstring.short_description, docstring.long_description) if part)
    return FunctionTool(function, ToolSchema(tool_name, text, parameters), model)


def _drop_titles(schema: dict[str, Any]) -> None:
    """Remove the titles that pydantic invents from field names: they cost tokens and say nothing new."""
    if isinstance(schema.get("title"), str):
        del schema["title"]
    for key in ("properties", "$defs"):
        for child in schema.get(key, {}).values():
            _drop_titles(child)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _drop_titles(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for child in schema.get(key, []):
            _drop_titles(child)


def _as_result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult | str):
        return ToolResult.of(value)
    if isinstance(value, pydantic.BaseModel):
        return ToolResult(value.model_dump_json())
    return ToolResult(json.dumps(value, ensure_ascii=False, default=str))
