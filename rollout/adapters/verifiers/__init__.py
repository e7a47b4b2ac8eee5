"""verifiers and prime-rl: toolgym's envs as a taskset with its harness, and trajectories as traces.

verifiers finds the taskset by its id `toolgym-v1`, which is the name of a module: see `toolgym_v1/`.
"""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.verifiers.v1 import ToolgymEnv as ToolgymEnv
    from toolgym.rollout.adapters.verifiers.v1 import ToolgymHarness as ToolgymHarness
    from toolgym.rollout.adapters.verifiers.v1 import ToolgymTaskset as ToolgymTaskset
    from toolgym.rollout.adapters.verifiers.v1 import to_trace as to_trace
else:
    __getattr__, __dir__ = lazy_names(__name__)
