"""NeMo-RL (7ea279a): `ToolgymEnvironment` plays an env, `TaskProcessor` makes its data, `to_batch` its batches."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.nemo_rl.data import TaskProcessor as TaskProcessor
    from toolgym.rollout.adapters.nemo_rl.data import to_batch as to_batch
    from toolgym.rollout.adapters.nemo_rl.data import to_message_log as to_message_log
    from toolgym.rollout.adapters.nemo_rl.environment import ToolgymEnvironment as ToolgymEnvironment
    from toolgym.rollout.adapters.nemo_rl.environment import register as register
else:
    __getattr__, __dir__ = lazy_names(__name__)
