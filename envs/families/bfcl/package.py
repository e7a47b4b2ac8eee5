"""The parts of the package `bfcl-eval` that the env reads: entries, documentation of functions, and prompts.

What computes on the policy's text, BFCL's functions and its checker, runs in other processes: `work.py`.

`bfcl-eval` pins NumPy and some 25 clients of services. None of them is needed here, so it is installed without its
dependencies, or its wheel is read as it is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolgym.envs.rewards.base import Outcome
from toolgym.tools.errors import ConfigError, MissingExtraError, missing_file
from toolgym.tools.lazy import missing_package
from toolgym.tools.schema import ToolSchema

VERSION = "2026.3.23"

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def require_package(wheel: str | Path | None) -> None:
    """Make sure that `bfcl_eval` can be imported, from a wheel or a folder if one is given."""
    if wheel is not None:
        path = Path(wheel).resolve()
        if not path.exists():
            raise missing_file("wheel or folder with bfcl_eval", path)
        if "bfcl_eval" not in sys.modules and str(path) not in sys.path:
            sys.path.insert(0, str(path))
            importlib.invalidate_caches()
    try:
        module = importlib.import_module("bfcl_eval")
    except ImportError as error:
        raise MissingExtraError(
            f"The BFCL envs need the package 'bfcl-eval' ({error}). Install it without its dependencies, which toolgym "
            f"does not need: {sys.executable} -m pip install --no-deps bfcl-eval=={VERSION}. Or give wheel=PATH, "
            "its wheel or the folder that it was unpacked in",
            name="bfcl_eval",
        ) from error
    if wheel is not None and not str(module.__file__).startswith(f"{path}/"):
        raise ConfigError(f"wheel={str(wheel)!r} was given, but bfcl_eval was imported from {module.__file__} before")


@functools.cache
def entries(category: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of a category by id, each with its `ground_truth`; do not change them."""
    name = f"BFCL_v4_{category}.json"
    truths = {line["id"]: line["ground_truth"] for line in _lines("data", "possible_answer", name)}
    return {line["id"]: {**line, "ground_truth": truths[line["id"]]} for line in _lines("data", name)}


@functools.cache
def schemas(class_name: str) -> tuple[ToolSchema, ...]:
    files = _import("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    docs = _lines("data", "multi_turn_func_doc", files[class_name])
    return tuple(ToolSchema(doc["name"], doc["description"], _json_schema(doc["parameters"])) for doc in docs)


@functools.cache
def signature(class_name: str, function: str) -> inspect.Signature:
    """Return the signature of a function, without `self`."""
    paths = _import("bfcl_eval.constants.executable_backend_config").CLASS_FILE_PATH_MAPPING
    method = inspect.signature(getattr(getattr(_import(paths[class_name]), class_name), function))
    return method.replace(parameters=[*method.parameters.values()][1:])


def added_functions_prompt() -> str:
    return str(_import("bfcl_eval.constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_package(error.name or name, f"bfcl-eval's {name}", error) from error


def _lines(*path: str) -> list[dict[str, Any]]:
    text = importlib.resources.files("bfcl_eval").joinpath(*path).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _json_schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of the documentation as a JSON Schema. Its default "None" means an argument left out."""
    schema = dict(value)
    if "type" in schema:
        schema["type"] = _TYPES.get(schema["type"], schema["type"])
    if schema.get("default") == "None":
        del schema["default"]
    if "properties" in schema:
        schema["properties"] = {name: _json_schema(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _json_schema(schema["items"])
    return schema


def calls_by_turn(outcome: Outcome) -> list[list[str]]:
    """Return the calls that were carried out after each of the user's turns, as BFCL's checker reads them."""
    records = iter(outcome.tool_calls)  # in the order of their messages; ids are the policy's, and may repeat
    turns: list[list[str]] = [[]]
    for message in outcome.messages[len(outcome.task.messages) :]:
        if message["role"] == "user":
            turns.append([])
        elif message["role"] == "tool" and (record := next(records)).status in ("ok", "error"):
            turns[-1].append(format_call(record.name, record.arguments or {}))
    return turns


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call of a known function as Python whose arguments are one literal: nothing in them is a name or code.

    Parentheses are escaped, because the checker puts the name of an object before each word ahead of one.

    >>> print(format_call("cd", {"folder": "a(b)", "x=print": 1}))
    cd(**{'folder': 'a\\x28b)', 'x=print': 1})
    """
    if not name.isidentifier():
        raise ValueError(f"a function's name is an identifier, got {name!r}")
    literal = repr(dict(arguments)).replace("(", "\\x28")
    return f"{name}(**{literal})"
