"""verl: an agent loop that plays toolgym's envs, and trajectories as verl's batches. See `docs/verl.md`."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.verl.agent_loop import ToolgymAgentLoop as ToolgymAgentLoop
    from toolgym.rollout.adapters.verl.data_proto import to_data_proto as to_data_proto
    from toolgym.rollout.adapters.verl.manager import ToolgymManager as ToolgymManager
    from toolgym.rollout.adapters.verl.trainer_queue import queue_rows as queue_rows
else:
    __getattr__, __dir__ = lazy_names(__name__)
