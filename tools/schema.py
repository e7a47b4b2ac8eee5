"""Arguments of a tool (`ToolSchema`), a request for it (`ToolCall`), and a mistake in one (`ToolCallError`)."""

from __future__ import annotations

import copy
import enum
import functools
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from toolgym.tools.errors import ConfigError, nearest, shorten
from toolgym.tools.json_schema import ANNOTATIONS, PLAIN_KINDS, ArgumentChecker, is_plain
from toolgym.tools.message import MessageToolCall


@dataclass(frozen=True)
class ToolSchema:
    """A tool's name, description and parameters, as the model sees them.

    Attributes:
        parameters: a JSON Schema (2020-12) of type `object`, kept whole: it reaches the model and the validator exactly
            as the tool's author wrote it.
        strict: passed through to `to_openai` if set.
        external: whether another program wrote the schema and checks the arguments again, such as an MCP server or an
            agent. Schemas that this library cannot check are then accepted, see `ArgumentChecker`.

    Raises ConfigError if the name is empty, or the parameters are not JSON or not a valid JSON Schema.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    external: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(f"a tool needs a non-empty name, got {self.name!r}")
        is_object = isinstance(self.parameters, Mapping) and self.parameters.get("type", "object") == "object"
        if not isinstance(self.parameters, Mapping) or not (is_object or self.external):
            raise ConfigError(
                f"parameters of tool {self.name!r} must be a JSON Schema with type 'object', got {self.parameters!r}"
            )
        try:
            ArgumentChecker(self.parameters, external=self.external)
        except ConfigError as error:
            raise ConfigError(f"parameters of tool {self.name!r} {error}") from error

    @classmethod
    def from_openai(cls, value: Mapping[str, Any], *, external: bool = False) -> ToolSchema:
        """Read `{"type": "function", "function": {"name", "description", "parameters"}}`, or the inner object."""
        function = value.get("function", value) if isinstance(value, Mapping) else None
        if not isinstance(function, Mapping) or "name" not in function:
            raise ConfigError(
                "a tool schema must look like {'type': 'function', 'function': {'name': ..., "
                f"'description': ..., 'parameters': {{...}}}}}}, got {value!r}"
            )
        return cls(
            name=function["name"],
            description=function.get("description") or "",
            parameters=_without_nulls(function.get("parameters") or {"type": "object", "properties": {}}),
            strict=function.get("strict"),
            external=external,
        )

    def to_openai(self) -> dict[str, Any]:
        """Return a copy of the schema in the OpenAI shape, as chat templates take it."""
        copied: dict[str, Any] = pickle.loads(self._pickled)
        return copied

    @functools.cached_property
    def openai(self) -> dict[str, Any]:
        """The schema in the OpenAI shape, always the same object; do not change it."""
        return self.to_openai()

    @functools.cached_property
    def canonical_json(self) -> str:
        """Equal for equal schemas, whatever the order of their keys."""
        return json.dumps(self.to_openai(), sort_keys=True)

    @functools.cached_property
    def _pickled(self) -> bytes:
        """Copied ten times as fast as by `copy.deepcopy`: each episode makes a copy."""
        function: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": copy.deepcopy(dict(self.parameters)),
        }
        if self.strict is not None:
            function["strict"] = self.strict
        return pickle.dumps({"type": "function", "function": function})

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return a sentence that a model can act on for each argument that is wrong."""
        if self._fits_plainly(arguments):
            return []
        return self._checker.problems(arguments)

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return _fill_defaults(self.parameters, arguments)

    def _fits_plainly(self, arguments: Mapping[str, Any]) -> bool:
        """Whether arguments are surely right: a tenth of the validator's time, for the schemas that most tools have."""
        kinds = self._plain_kinds
        return (  # an argument that the schema does not name is the validator's to judge
            kinds is not None
            and all(type(value) in kinds.get(name, ()) for name, value in arguments.items())
            and all(name in arguments for name in self.parameters.get("required", ()))
        )

    @functools.cached_property
    def _plain_kinds(self) -> Mapping[str, tuple[type, ...]] | None:
        properties = self.parameters.get("properties", {})
        if not isinstance(properties, Mapping) or not isinstance(self.parameters.get("required", []), list):
            return None
        plain = self.parameters.keys() <= {"type", "properties", "required", "additionalProperties", *ANNOTATIONS}
        if not plain or not all(is_plain(property) for property in properties.values()):
            return None
        return {name: PLAIN_KINDS[property["type"]] for name, property in properties.items()}

    @functools.cached_property
    def _checker(self) -> ArgumentChecker:
        return ArgumentChecker(self.parameters, external=self.external)

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed request of the model for one tool.

    Attributes:
        id: unique in the episode; the answer carries it as `tool_call_id`.
        index: position among all calls of its turn, malformed ones included, counted from 0.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    index: int = 0

    def to_message(self) -> MessageToolCall:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class CallProblem(enum.StrEnum):
    """Why a request for a tool could not be carried out. The model made the mistake, so the model reads it."""

    MALFORMED_JSON = "malformed_json"
    MALFORMED_CALL = "malformed_call"
    """The call is not written as its format wants it, where that format is not JSON."""
    NOT_A_CALL = "not_a_call"
    """It is JSON, but not an object with a `name` and an object of `arguments`."""
    UNCLOSED_TAG = "unclosed_tag"
    OPEN_THINKING = "open_thinking"
    CALL_IN_THINKING = "call_in_thinking"
    """The turn's only calls stand inside its thinking, and nothing follows."""
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_ARGUMENTS = "wrong_arguments"
    TOO_MANY_CALLS = "too_many_calls"


@dataclass(frozen=True)
class ToolCallError:
    """A request for a tool that could not be carried out.

    Attributes:
        message: what the model reads: what was expected, what came, what to do.
        raw: the text that the model wrote.
        index: position among all calls of the turn, counted from 0.
        name: the tool's name, if it could be read.
    """

    problem: CallProblem
    message: str
    raw: str
    id: str
    index: int = 0
    name: str = ""


def check_call(call: ToolCall, schemas: Mapping[str, ToolSchema]) -> ToolCall | ToolCallError:
    schema = schemas.get(call.name)
    if schema is not None and not (problems := schema.problems(call.arguments)):
        return ToolCall(call.id, call.name, schema.with_defaults(call.arguments), call.index)
    raw = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    if schema is None:
        known = ", ".join(sorted(schemas)) or "none"
        text = f"Unknown tool {shorten(call.name, 200)!r}{nearest(call.name, schemas) or '.'} Available tools: {known}."
        return ToolCallError(CallProblem.UNKNOWN_TOOL, text, raw, call.id, call.index, call.name)
    text = f"Wrong arguments for tool {call.name!r}: " + " ".join(problems)
    return ToolCallError(CallProblem.WRONG_ARGUMENTS, text, raw, call.id, call.index, call.name)


def _without_nulls(schema: Any) -> Any:
    """Copy a schema without keywords whose value is null, as verl's files write `enum: null` for "no enum". Null means
    something in `default` and `const` only (and inside `enum` and `examples`, which are kept)."""
    if not isinstance(schema, Mapping):
        return copy.deepcopy(schema)
    kept = {key: value for key, value in schema.items() if value is not None or key in ("default", "const")}
    return map_subschemas(kept, _without_nulls)


def map_subschemas(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Copy a schema with each schema that stands directly in it changed."""
    copied: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, Mapping):
            copied[key] = {name: change(child) for name, child in value.items()}
        elif key in ("items", "additionalProperties", "not"):
            copied[key] = change(value)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            copied[key] = [change(child) for child in value]
        else:
            copied[key] = copy.deepcopy(value)
    return copied


def _fill_defaults(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(value)
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(child, Mapping):
            continue
        if name not in filled and "default" in child:
            filled[name] = copy.deepcopy(child["default"])
        elif isinstance(filled.get(name), dict):
            filled[name] = _fill_defaults(child, filled[name])
        elif isinstance(filled.get(name), list) and isinstance(child.get("items"), Mapping):
            filled[name] = [
                _fill_defaults(child["items"], item) if isinstance(item, dict) else item for item in filled[name]
            ]
    return filled
