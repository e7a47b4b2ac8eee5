"""AReaL where it is not installed: the names that a workflow uses, in shape."""

from __future__ import annotations

import abc
import dataclasses
import sys
import types
from typing import Any


@dataclasses.dataclass
class GenerationHyperparameters:
    """AReaL's sampling."""

    n_samples: int = 1
    max_new_tokens: int = 16384
    max_tokens: int = 32768
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 10**8
    temperature: float = 1.0
    stop_token_ids: list = dataclasses.field(default_factory=list)
    ignore_eos: bool = False
    stop: Any = None
    use_beam_search: bool = False

    def new(self, **changes):
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass
class ModelRequest:
    """What AReaL's engine takes."""

    rid: str
    input_ids: list
    gconfig: Any
    tokenizer: Any = None


@dataclasses.dataclass
class ModelResponse:
    """What it answers."""

    input_tokens: list
    output_tokens: list
    output_logprobs: list
    output_versions: list
    stop_reason: str = "stop"


class RolloutWorkflow(abc.ABC):
    """AReaL's base class."""

    @abc.abstractmethod
    async def arun_episode(self, engine, data):
        """Play one episode."""


@dataclasses.dataclass(frozen=True)
class WorkflowContext:
    is_eval: bool = False
    task_id: int | None = None


class Tracker:
    """Keeps what it is told."""

    def __init__(self):
        self.told = {}

    def scalar(self, **values):
        for name, value in values.items():
            self.told.setdefault(name, []).append(float(value))

    def export_all(self):
        told, self.told = self.told, {}
        return {f"rollout/{name}": sum(values) / len(values) for name, values in told.items()}


def install(monkeypatch):
    """Make `import areal` find the stand-in."""
    tracker = Tracker()
    current = [WorkflowContext()]
    context = types.SimpleNamespace(
        stat_scope=lambda: "rollout",
        get=lambda: current[-1],
        set=current.append,
        WorkflowContext=WorkflowContext,
    )
    stats = types.SimpleNamespace(get=lambda scope: tracker, export_all=tracker.export_all)
    made = {
        "areal": {"workflow_context": context},
        "areal.api": {},
        "areal.api.cli_args": {"GenerationHyperparameters": GenerationHyperparameters},
        "areal.api.io_struct": {"ModelRequest": ModelRequest, "ModelResponse": ModelResponse},
        "areal.api.workflow_api": {"RolloutWorkflow": RolloutWorkflow},
        "areal.utils": {"stats_tracker": stats},
        "areal.utils.stats_tracker": {"export_all": stats.export_all},
    }
    for name, content in made.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
