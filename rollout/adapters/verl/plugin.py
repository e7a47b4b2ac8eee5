"""verl's plugin: makes `agent_name: toolgym_agent` and `adv_estimator: toolgym_grpo` exist wherever verl is imported.

verl imports this module, an entry point of the group `verl.plugins`, while `import verl` runs, in every process, Ray's
workers included. It must cost nothing there, so it imports no module of verl: it waits until verl itself imports the
one that holds the registry, and writes its name into it then. What is registered is imported when it is first used.

verl hides what a plugin raises (`verl/__init__.py`, a debug message), so a failure is a warning here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

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


REGISTRATIONS: Mapping[str, Callable[[ModuleType], None]] = {
    "verl.experimental.agent_loop.agent_loop": _register_agent_loop,
    "verl.trainer.ppo.core_algos": _register_advantage,
}
"""From a module of verl to what is done once it has been imported."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `REGISTRATIONS` as the other finders do, and has each registered after it ran."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in REGISTRATIONS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    run = spec.loader.exec_module
                    spec.loader.exec_module = functools.partial(_run, run)  # type: ignore[method-assign]
                return spec
        return None


def _run(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    _register(module)


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


def install() -> None:
    """Register with the modules of verl that are imported already, and wait for the others. Once is enough."""
    if any(type(finder).__name__ == "_Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in REGISTRATIONS:
        if (module := sys.modules.get(name)) is not None:
            _register(module)


try:
    install()
except Exception as error:  # noqa: BLE001  as above
    _warn(f"{type(error).__name__}: {error}")
