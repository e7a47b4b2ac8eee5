"""BFCL's functions and its checker: the work of a `ProcessPool`, which imports nothing of toolgym.

Both compute on what the policy wrote. The state of an episode's objects travels as a pickle that the trainer's process
never opens. BFCL's checker writes each call as Python and calls `eval`; here calls are data: `eval` is replaced by a
function that accepts a call of a known method with literals, and nothing else.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import copy
import functools
import importlib
import inspect
import json
import pickle
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STATELESS = "MathAPI"

MAX_DIGITS = 1000
"""Digits that a call may compute with."""

MAX_STATE = 4 << 20
"""Bytes of the pickled objects of an episode; the entries have at most 0.3 MB."""

_EVAL = "bfcl_eval.eval_checker.multi_turn_eval"


def load() -> None:
    _utils()


def call(entry: Mapping[str, Any], state: str | None, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a call on an episode's objects.

    Args:
        entry: BFCL's entry.
        state: the objects after the last call; None before the first call.
        name: the function.
        arguments: its arguments.

    Returns:
        `text`, which is BFCL's own for its models (`execute_multi_turn_func_call`), `status`, and the new `state`.
    """
    if _is_endless(name, arguments):
        return _refused("the result would be too large", state)
    objects = _objects(entry) if state is None else pickle.loads(base64.b64decode(state))
    function = getattr(next(api for api in objects.values() if hasattr(api, name)), name)
    status = "ok"
    try:
        text = _text(function(**arguments))
    except Exception as error:  # noqa: BLE001  the model reads it, as in BFCL
        status, text = "error", f"Error during execution: {error}"
    try:
        after = pickle.dumps(objects)
    except RecursionError:
        return _refused("the state would be too deep", state)
    if len(after) > MAX_STATE:
        return _refused("the state would be too large", state)
    return {"status": status, "text": text, "state": base64.b64encode(after).decode()}


def check(entry: Mapping[str, Any], turns: Sequence[Sequence[str]]) -> str:
    """Return what BFCL's checker finds wrong with the calls of each turn; empty if they are right."""
    for class_name in entry["involved_classes"]:
        api_class(class_name)  # the checker calls the same classes
    name = f"toolgym_{uuid.uuid4().hex}"
    steps = [[list(calls)] if calls else [] for calls in turns]
    checker = importlib.import_module(f"{_EVAL}.multi_turn_checker").multi_turn_checker
    variables = vars(_utils())
    try:
        verdict = checker(steps, entry["ground_truth"], copy.deepcopy(dict(entry)), "", name)
    except RecursionError:  # folders that the policy copied into themselves
        return "endless_state"
    finally:  # the checker keeps its objects in variables of its module
        for key in [variable for variable in variables if variable.startswith(name)]:
            del variables[key]
    return "" if verdict["valid"] else str(verdict["error_type"]).rpartition(":")[2]


@functools.cache
def api_class(class_name: str) -> type:
    """Return the class that carries the functions out.

    A default that is a list would be shared by all episodes of the process (`post_tweet` has two), so each call gets a
    new list.
    """
    paths = importlib.import_module("bfcl_eval.constants.executable_backend_config").CLASS_FILE_PATH_MAPPING
    api: type = getattr(importlib.import_module(paths[class_name]), class_name)
    for name, function in list(vars(api).items()):
        if inspect.isfunction(function) and any(
            isinstance(default, list | dict) for default in function.__defaults__ or ()
        ):
            setattr(api, name, _with_new_defaults(function))
    return api


def _with_new_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, parameter in signature.parameters.items():
            if isinstance(parameter.default, list | dict):
                bound.arguments.setdefault(name, copy.copy(parameter.default))
        return function(*bound.args, **bound.kwargs)

    return call


@functools.cache
def _utils() -> Any:
    """BFCL's module that carries out calls, with an `eval` that evaluates no code."""
    utils = importlib.import_module(f"{_EVAL}.multi_turn_utils")
    variables = vars(utils)
    variables["eval"] = functools.partial(_carry_out, variables)  # found before the built-in one
    return utils


def _carry_out(variables: Mapping[str, Any], text: str) -> Any:
    """Carry out `object.method(literals)`, where `object` is a variable of BFCL's module. Anything else raises."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
        raise ValueError("it is not a call of a known function")
    holder = tree.func.value
    if not isinstance(holder, ast.Name) or tree.func.attr.startswith("_"):
        raise ValueError("it is not a call of a known function")
    args = [ast.literal_eval(argument) for argument in tree.args]
    kwargs: dict[str, Any] = {}
    for keyword in tree.keywords:
        value = ast.literal_eval(keyword.value)
        kwargs |= value if keyword.arg is None else {keyword.arg: value}
    return getattr(variables[holder.id], tree.func.attr)(*args, **kwargs)


def _objects(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The objects of an entry before the first call, by the name of the class, in the documentation's order."""
    objects = {}
    for name in reversed(entry["involved_classes"]):  # of two functions of one name, the later class has it
        objects[name] = api_class(name)()
        if name != STATELESS:
            scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
            objects[name]._load_scenario(scenario, long_context="long_context" in entry["id"])
    return objects


def _text(value: Any) -> str:
    if isinstance(value, dict):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(value)
    return str(value)


def _refused(why: str, state: str | None) -> dict[str, Any]:
    return {"status": "refused", "text": f"Error during execution: {why}", "state": state}


def _is_endless(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call computes with too many digits, which is quicker to refuse than to end."""
    if name in ("logarithm", "square_root", "round_number"):
        digits = arguments.get("decimal_places" if name == "round_number" else "precision")
        return isinstance(digits, int | float) and abs(digits) > MAX_DIGITS
    base, exponent = arguments.get("base"), arguments.get("exponent")
    if name != "power" or not isinstance(base, int) or not isinstance(exponent, int):
        return False
    return base.bit_length() * abs(exponent) > 4 * MAX_DIGITS
