"""Data of a page: a row's figures, and what a trajectory's group, tokenizer and env add to its line."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from toolgym.envs.registry import registered
from toolgym.rollout.advantages.advantages import group_advantages
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, ToolgymError, error_text
from toolgym.viewer.run_index import Row, RunIndex

COLUMNS = [item.name for item in msgspec.structs.fields(Row) if item.name not in ("file", "start", "size")]
"""Names of a row's figures, in the order in which `figures` gives them."""


@dataclass(frozen=True)
class Detail:
    """Facts of a trajectory that its line does not say.

    Attributes:
        advantage: over its group, as `group_advantages` says by default; None if it has none.
        usable: whether a trainer may use it, see `Trajectory.usable`.
        places: places of the turns' messages, see `Trajectory.turn_places`.
        members: members of its group in the run, itself included.
        drawing: HTML by the env's `render_html`.
        problem: why the line cannot be read whole, or the group has no advantages, or the env could not draw.
        ids: token ids that occur, each once.
    """

    advantage: float | None = None
    usable: bool = False
    places: list[int] = field(default_factory=list)
    members: int = 1
    drawing: str | None = None
    problem: str = ""
    ids: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "ids"}


def figures(row: Row) -> list[Any]:
    """Return a row's figures as JSON can hold them, see `plain_number`."""
    return [plain_number(getattr(row, name)) for name in COLUMNS]


def plain_number(value: Any) -> Any:
    """Return a value as it is, but None for NaN, and the words that JavaScript has for infinite numbers."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def details(index: RunIndex, group: Sequence[Row], shown: Container[int]) -> dict[int, Detail]:
    """Return the details of a group's members by their number; with tokens and drawing for those in `shown`."""
    by_number: dict[int, Detail] = {}
    read: dict[int, Trajectory] = {}
    for row in group:
        try:
            read[row.number] = index.trajectory(row)
        except ConfigError as error:
            by_number[row.number] = Detail(members=len(group), problem=str(error))
    problem = ""
    try:
        advantages = group_advantages(read.values())
    except ConfigError as error:
        problem, advantages = f"no advantages: {error}", [None] * len(read)
    for (number, trajectory), advantage in zip(read.items(), advantages, strict=True):
        drawing, ids, wrong = None, [], problem
        if number in shown:
            ids = _ids(trajectory)
            try:
                drawing = _drawn(trajectory)
            except Exception as error:  # noqa: BLE001  the env's own code, for one of many rows
                wrong = f"the env's render_html failed: {error_text(error)}"
        places = trajectory.turn_places
        by_number[number] = Detail(advantage, trajectory.usable, places, len(group), drawing, wrong, ids)
    return by_number


def report(index: RunIndex) -> dict[str, str]:
    """Return the report's `html`, or in `problem` why there is none."""
    try:
        # By name: the report stands on this package, and rooms import one way.
        return {"html": importlib.import_module("toolgym.report.page").report_fragment(index)}
    except ToolgymError as error:  # without matplotlib it says what to install
        return {"problem": f"no report: {error}"}


def _ids(trajectory: Trajectory) -> list[int]:
    arrays = [array for each in trajectory.sequences for array in (each.prompt_ids, each.response_ids)]
    return list(np.unique(np.concatenate(arrays)).tolist()) if arrays else []


def _drawn(trajectory: Trajectory) -> str | None:
    draw = _drawing(trajectory.env_id)
    drawing = None if draw is None else draw(trajectory)
    if not isinstance(drawing, str | None):
        raise ConfigError(f"expected HTML as a str, got {type(drawing).__name__}")
    return drawing


@functools.cache
def _drawing(env_id: str) -> Callable[[Trajectory], Any] | None:
    """Return the `render_html` of a registered env. Nothing that a run names is imported: only what was registered."""
    spec = registered().get(env_id)
    return None if spec is None else getattr(spec.load(), "render_html", None)
