"""Tools from YAML files, in the shape that verl made known.

```yaml
tools:
  - class_name: toolgym.tools.CodeInterpreterTool
    config: {default_timeout: 10}
    tool_schema:            # optional where the class has a schema of its own
      type: function
      function: {name: code_interpreter, description: ..., parameters: {...}}
```
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic_core import ErrorDetails

from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError, ToolgymError, UnknownNameError, nearest
from toolgym.tools.yaml_file import read_yaml

FORMER_TOOLS: Mapping[str, str] = {
    "verl.tools.gsm8k_tool.Gsm8kTool": "toolgym.tools.library.gsm8k.Gsm8kRewardTool",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "toolgym.tools.CodeInterpreterTool",
    "verl.tools.search_tool.SearchTool": "toolgym.tools.SearchTool",
}
"""From the names of tools that verl had until 0.8, as its tool files have them, to ours with the same options."""


class _Entry(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    class_name: str
    config: dict[str, Any] = pydantic.Field(default_factory=dict)
    tool_schema: dict[str, Any] | None = None


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    tools: list[_Entry]


Options = TypeVar("Options", bound=pydantic.BaseModel)


def read_options(model: type[Options], config: Mapping[str, Any], what: str) -> Options:
    """Return a tool's options as a `model`, which forbids others; `what` is the tool's name in errors, which name an
    unknown option and the nearest one."""
    known = model.model_fields
    try:
        return model.model_validate(dict(config))
    except pydantic.ValidationError as error:
        first, place = _first_problem(error)
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{what}: unknown option {place!r}{nearest(place, known) or '.'} Known: {', '.join(known)}."
            ) from None
        raise ConfigError(f"{what}: option {place!r}: {first['msg']} (got {first['input']!r})") from error


def from_config(source: str | Path | Mapping[str, Any]) -> list[BaseTool]:
    """Make the tools that a YAML file (or an already loaded mapping) lists, in its order.

    Raises:
        UnknownNameError: the file, a module or a class does not exist; names the nearest one.
        ConfigError: the file is not of the shape above; names the place.
    """
    if isinstance(source, Mapping):
        where, data = "the mapping", source
    elif not isinstance(source, str | Path):
        raise ConfigError(f"expected a tool file or a mapping with the list 'tools', got {source!r}")
    else:
        where, data = str(source), read_yaml("tool file", Path(source))
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: at top: expected a mapping with the list 'tools', got {data!r}")
    try:
        parsed = _File.model_validate(data)
    except pydantic.ValidationError as error:
        first, place = _first_problem(error)
        raise ConfigError(f"{where}: at {place or 'top'}: {first['msg']} (got {first['input']!r})") from error
    tools = []
    for number, entry in enumerate(parsed.tools):
        try:
            tools.append(_import_class(entry.class_name)(entry.config, entry.tool_schema))
        except TypeError as error:  # an abstract class, or a constructor of another shape
            raise ConfigError(
                f"{where}: tools.{number}: {entry.class_name} cannot be made with (config, tool_schema): {error}"
            ) from error
        except ToolgymError as error:
            raise type(error)(f"{where}: tools.{number} ({entry.class_name}): {error}") from error
    names = [tool.name for tool in tools]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ConfigError(f"{where}: two tools have the same name {double[0]!r}; names must be unique")
    return tools


def _first_problem(error: pydantic.ValidationError) -> tuple[ErrorDetails, str]:
    """An unknown name comes first: it often is why a required one is absent."""
    errors = error.errors()
    first = next((problem for problem in errors if problem["type"] == "extra_forbidden"), errors[0])
    return first, ".".join(map(str, first["loc"]))


def _import_class(dotted: str) -> type[BaseTool]:
    module_name, _, class_name = FORMER_TOOLS.get(dotted, dotted).rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        raise ConfigError(f"class_name must be a dotted path such as 'package.module.Class', got {dotted!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"cannot import {module_name!r}: no module named {error.name!r}") from error
    tool_class = getattr(module, class_name, None)
    if tool_class is None:
        raise UnknownNameError(f"module {module_name!r} has no {class_name!r}{nearest(class_name, dir(module))}")
    if not (isinstance(tool_class, type) and issubclass(tool_class, BaseTool)):
        raise ConfigError(f"{dotted!r} is not a subclass of toolgym.tools.BaseTool")
    return tool_class
