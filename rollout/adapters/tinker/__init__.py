"""tinker-cookbook: `ToolgymEnv` and its builders play with Tinker's sampling, `to_groups` takes trajectories along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.tinker.dataset import ToolgymDataset as ToolgymDataset
    from toolgym.rollout.adapters.tinker.dataset import ToolgymDatasetBuilder as ToolgymDatasetBuilder
    from toolgym.rollout.adapters.tinker.dataset import ToolgymGroupBuilder as ToolgymGroupBuilder
    from toolgym.rollout.adapters.tinker.env import ToolgymEnv as ToolgymEnv
    from toolgym.rollout.adapters.tinker.groups import to_groups as to_groups
else:
    __getattr__, __dir__ = lazy_names(__name__)
