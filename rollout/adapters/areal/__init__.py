"""AReaL: `ToolgymWorkflow` plays episodes with its engine, `to_tensors` makes rows of trajectories played elsewhere."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.areal.tensors import to_tensors as to_tensors
    from toolgym.rollout.adapters.areal.workflow import ToolgymWorkflow as ToolgymWorkflow
else:
    __getattr__, __dir__ = lazy_names(__name__)
