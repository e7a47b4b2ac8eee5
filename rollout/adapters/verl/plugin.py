"""verl's plugin: makes `agent_name: toolgym_agent` and `adv_estimator: toolgym_grpo` exist wherever verl is imported.

`import verl` imports this entry point in every process, so it must cost nothing: it waits until verl itself imports the
module with a registry, and writes a name into it then. Three functions without a registry are wrapped likewise; without
rows or names of ours they do what they did. verl hides what a plugin raises, so a failure is a warning here.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any

from toolgym.rollout.adapters.versions import require_version
from toolgym.tools.lazy import after_import

AGENT_NAME = "toolgym_agent"
"""Name of the agent loop: for a row's `agent_name`, or for `rollout.agent.default_agent_loop`."""

ADVANTAGE_NAME = "toolgym_grpo"
"""Name of the advantage estimator, for `algorithm.adv_estimator`."""

_PACKAGE = "toolgym.rollout.adapters.verl"


def _register_agent_loop(module: ModuleType) -> None:
    module._agent_loop_registry.setdefault(AGENT_NAME, {"_target_": f"{_PACKAGE}.agent_loop.ToolgymAgentLoop"})


def _register_advantage(module: ModuleType) -> None:
    def estimate(*args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(f"{_PACKAGE}.advantage").grpo_advantage(*args, **kwargs)

    module.ADV_ESTIMATOR_REGISTRY.setdefault(ADVANTAGE_NAME, estimate)


def _wrap(module: ModuleType, name: str, wrapper: str) -> None:
    home, _, function = wrapper.partition(":")
    setattr(module, name, getattr(importlib.import_module(f"{_PACKAGE}.{home}"), function)(getattr(module, name)))


def _name_successors(module: ModuleType) -> None:
    theirs, former = module.get_tool_class, importlib.import_module("toolgym.tools.config").FORMER_TOOLS

    @wraps(theirs)
    def get_tool_class(cls_name: str) -> Any:
        home, _, name = cls_name.rpartition(".")
        gone = cls_name in former and importlib.util.find_spec(home) is None
        return theirs(f"{_PACKAGE}.tools.Verl{name}" if gone else cls_name)

    module.get_tool_class = get_tool_class  # type: ignore[attr-defined]


REGISTRATIONS: Mapping[str, Callable[[ModuleType], None]] = {
    "verl.experimental.agent_loop.agent_loop": _register_agent_loop,
    "verl.trainer.ppo.core_algos": _register_advantage,
    "verl.tools.tool_registry": _name_successors,
    "verl.trainer.ppo.v1.utils": partial(
        _wrap, name="compute_advantage_for_multi_trajectories", wrapper="advantage:with_keys"
    ),
    "verl.trainer.ppo.metric_utils": partial(_wrap, name="process_validation_metrics", wrapper="rows:without_failures"),
}


def _register(module: ModuleType) -> None:
    try:
        REGISTRATIONS[module.__name__](module)
    except Exception as error:  # noqa: BLE001  verl must go on: another loop may be wanted
        _warn(f"{module.__name__}: {type(error).__name__}: {error}")


def _warn(problem: str) -> None:
    warnings.warn(
        f"toolgym could not register itself with verl, so {AGENT_NAME!r} and {ADVANTAGE_NAME!r} may be unknown there "
        f"({problem}). This toolgym was tested with verl 0.9.1; an agent loop can be named in "
        "actor_rollout_ref.rollout.agent.agent_loop_config_path, too",
        RuntimeWarning,
        stacklevel=3,
    )


try:
    require_version("verl", "The adapter for verl")
    for _name in REGISTRATIONS:
        after_import(_name, _register)
except Exception as error:  # noqa: BLE001  as above
    _warn(f"{type(error).__name__}: {error}")
