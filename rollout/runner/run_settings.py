"""`run_settings`: what a run is, by name, so that a run that is resumed can be held against the one that began. A
function counts by its name and by the plain values that it closes over, an object by its class and its arguments; what
a function's body says is not seen."""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.roles.base import RolesEnv
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.role_plan import RolePlan, roles_label, trained_roles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAY_CHANGE = frozenset(
    (
        *("max_concurrent", "max_generations", "max_tool_calls", "refills", "max_resumes", "score_grace"),
        *("engine_timeout", "env_timeout", "context_timeout", "turn_timeout", "episode_timeout"),
        *("tool_timeout", "queue_timeout", "score_timeout", "test_timeout", "user_timeout", "connect_timeout"),
        *("tool_config", "headers", "base_url", "api_key", "owns_tools"),
    )
)
"""Arguments that say how fast a run is played, how long the machines get and where the services are."""

_APART = frozenset(
    (
        *("sampling", "validation_sampling", "limits", "group_size", "branching", "seed", "training_step", "validate"),
        *("env", "tools", "tasks"),
    )
)
"""Compared by themselves: from the fields of the trajectory, or part by part."""

ENV_SEEDS = "seeds of envs"
"""The setting that says how the seeds of envs are derived. A run of a version that did not write this setting gave each
member of a group another seed."""

_DEPTH = 6


class _SeedsOfEnvs(enum.Enum):
    GROUP = "the same in a group"


def run_settings(
    config: RunConfig,
    env: BaseEnv,
    env_kwargs: Mapping[str, Any] | None,
    tokenizer: PreTrainedTokenizerBase,
    plans: Mapping[str, RolePlan] | None = None,
) -> dict[str, str]:
    facts = _fields(config) | {f"limits.{name}": value for name, value in _fields(config.limits).items()}
    facts[ENV_SEEDS] = _SeedsOfEnvs.GROUP
    facts["history"] = HistoryMode(config.history)
    facts["on_truncated_turn"] = TruncationPolicy(config.on_truncated_turn)
    facts["context"] = config.context_policies
    facts["chat_template"] = tokenizer.chat_template
    facts["tools"] = [schema.to_openai() for schema in env.tool_schemas]
    facts |= {f"env_kwargs.{name}": value for name, value in _kept(env_kwargs or {}).items()}
    layer: Any = env
    classes = []
    while isinstance(layer, BaseEnv):
        kind = type(layer)
        classes.append(f"{kind.__module__}.{kind.__qualname__}")
        facts |= {f"{kind.__name__}.{name}": value for name, value in _kept(_arguments(layer)).items()}
        layer = vars(layer).get("env")
    facts["the env's classes"] = classes
    labels = {name: _label(value) for name, value in facts.items()}
    if isinstance(env, RolesEnv):  # as they are: they tell which lines of a file belong together
        labels |= roles_label(trained_roles(env, plans or {}))
    return labels


def _fields(value: Any) -> dict[str, Any]:
    return _kept({item.name: getattr(value, item.name) for item in dataclasses.fields(value)})


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in MAY_CHANGE | _APART}


def _arguments(value: Any) -> dict[str, Any]:
    """The arguments that an object was made with, as far as it has them as attributes."""
    held = getattr(value, "__dict__", {})
    try:
        names = inspect.signature(type(value)).parameters
    except (TypeError, ValueError):
        return {}
    return {name: held[place] for name in names if (place := name if name in held else f"_{name}") in held}


def _label(value: Any) -> str:
    """A number, None or a name of a choice as it is; of all else its kind or name, and a hash."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    text = json.dumps(_described(value, 0))
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{name} {hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def _described(value: Any, depth: int) -> Any:
    """A value as JSON, without anything that another process would have otherwise."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    inside = functools.partial(_described, depth=depth + 1)
    if isinstance(value, enum.Enum):
        return inside(value.value)
    if depth > _DEPTH:
        return type(value).__qualname__
    if isinstance(value, Mapping):
        return [[str(key), inside(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [inside(item) for item in value]
    if isinstance(value, functools.partial):
        return [inside(item) for item in (value.func, value.args, value.keywords)]
    if inspect.ismethod(value):
        return [value.__func__.__qualname__, inside(value.__self__)]
    if isinstance(value, type) or inspect.isroutine(value):
        closed = _closed_over(value) if isinstance(value, FunctionType) else ()
        return [value.__module__, value.__qualname__, *map(inside, closed)]
    return [type(value).__qualname__, inside(_kept(_arguments(value)))]


def _closed_over(function: FunctionType) -> Iterator[Any]:
    """The plain values and functions that a function closes over and does not itself set."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    assigned = {
        instruction.argval for instruction in dis.get_instructions(function) if instruction.opname == "STORE_DEREF"
    }
    for name, cell in cells:
        try:
            held = cell.cell_contents
        except ValueError:  # it is set later
            continue
        if name not in assigned and (held is None or isinstance(held, str | bool | int | float | FunctionType)):
            yield held
