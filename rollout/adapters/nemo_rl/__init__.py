"""NeMo-RL (7ea279a): `ToolgymEnvironment` plays an env, `TaskProcessor` makes its data, `to_batch` its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.nemo_rl.environment import ToolgymEnvironment as ToolgymEnvironment
    from toolgym.rollout.adapters.nemo_rl.environment import register as register
    from toolgym.rollout.adapters.nemo_rl.message_log import to_batch as to_batch
    from toolgym.rollout.adapters.nemo_rl.message_log import to_message_log as to_message_log
    from toolgym.rollout.adapters.nemo_rl.processor import TaskProcessor as TaskProcessor
else:
    __getattr__, __dir__ = lazy_names(__name__)
