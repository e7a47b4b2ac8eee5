"""rLLM, which is in no package index: the types that agents and evaluators use, in shape."""

from __future__ import annotations

import sys
import types
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field


@dataclass
class Task:
    id: str
    instruction: Any
    metadata: dict = field(default_factory=dict)
    dataset_dir: Path = field(default_factory=Path)
    sub_dir: Path | None = None


@dataclass
class AgentConfig:
    base_url: str
    model: str
    session_uid: str
    metadata: dict = field(default_factory=dict)
    is_validation: bool = False
    sampling_params: dict = field(default_factory=dict)


class Step(BaseModel):
    id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    action: Any = None
    reward: float = 0.0
    done: bool = False


class Trajectory(BaseModel):
    name: str = "default_traj_name"
    task: Any = None
    steps: list[Step] = Field(default_factory=list)
    reward: float | None = None


class Episode(BaseModel):
    id: str = ""
    task: Any = None
    is_correct: bool = False
    trajectories: list[Trajectory] = Field(default_factory=list)


@dataclass
class Signal:
    name: str
    value: float
    metadata: dict = field(default_factory=dict)


@dataclass
class EvalOutput:
    reward: float
    is_correct: bool
    signals: list[Signal] = field(default_factory=list)
    metadata: dict = field(default_factory=dict)
    error: str | None = None


def install(monkeypatch):
    """Make `import rllm.types` and `import rllm.eval.types` give these."""
    modules = {name: types.ModuleType(name) for name in ("rllm", "rllm.types", "rllm.eval", "rllm.eval.types")}
    for made in (Task, AgentConfig, Step, Trajectory, Episode):
        setattr(modules["rllm.types"], made.__name__, made)
    for made in (Signal, EvalOutput):
        setattr(modules["rllm.eval.types"], made.__name__, made)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
