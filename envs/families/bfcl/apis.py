"""`Apis`: the objects of one episode that carry its calls out, and `ApiFunction`, one of their functions as a tool."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from toolgym.envs.families.bfcl import package
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.concurrency.execution_pool import tool_pool
from toolgym.tools.schema import ToolSchema

STATELESS = "MathAPI"

REFUSED = "refused"
"""The status of a call that was not carried out, since it would hold up the process."""

MOST_DIGITS = 1000


class Apis:
    """The objects of one episode of an entry, and its functions by name, in the documentation's order."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._objects: dict[str, Any] = {}
        self.schemas: dict[str, ToolSchema] = {}
        long_context = "long_context" in entry["id"]
        for name in entry["involved_classes"]:
            api = package.api_class(name)()
            if name != STATELESS:
                scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
                api._load_scenario(scenario, long_context=long_context)
            for schema in package.schemas(name):
                self.schemas[schema.name] = schema
                self._objects[schema.name] = api

    def function(self, name: str) -> Any:
        return getattr(self._objects[name], name)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Carry out a call. The text is BFCL's own for its models (`execute_multi_turn_func_call`)."""
        if _is_endless(name, arguments):
            return ToolResult("Error during execution: the result would be too large", 0.0, {"status": REFUSED})
        copied = copy.deepcopy(dict(arguments))  # functions keep what they are given, and change it later
        try:
            with package.precision_lock if name == "logarithm" else nullcontext():
                value = _text(self.function(name)(**copied))
        except Exception as error:  # noqa: BLE001  the model reads it, as in BFCL
            return ToolResult(f"Error during execution: {error}", 0.0, {"status": "error"})
        return ToolResult(value)


class ApiFunction(BaseTool):
    stays_on_loop = True

    def __init__(self, apis: Apis, schema: ToolSchema) -> None:
        super().__init__(None, schema)
        self._apis = apis

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return await tool_pool().run(functools.partial(self._apis.call, self.name, parameters), name=self.name)

    async def fork(self, instance_id: str) -> str:
        return await self.create()  # `BFCLEnv.fork` copies the objects


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            pass
    return str(value)


def _is_endless(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call computes with so many digits that no other thread would get its turn for long."""
    if name in ("logarithm", "square_root", "round_number"):
        digits = arguments.get("decimal_places" if name == "round_number" else "precision")
        return isinstance(digits, int | float) and abs(digits) > MOST_DIGITS
    base, exponent = arguments.get("base"), arguments.get("exponent")
    if name != "power" or not isinstance(base, int) or not isinstance(exponent, int):
        return False
    return base.bit_length() * abs(exponent) > 4 * MOST_DIGITS
