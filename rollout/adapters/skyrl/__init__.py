"""SkyRL: `main` is for `trainer.override_entrypoint`, `ToolgymGenerator` for a `BasePPOExp` of one's own.

`to_generator_output` takes trajectories that were played elsewhere, and `register_envs` makes our ids skyrl-gym's.
"""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.skyrl.experiment import ToolgymExp as ToolgymExp
    from toolgym.rollout.adapters.skyrl.experiment import ToolgymTrainConfig as ToolgymTrainConfig
    from toolgym.rollout.adapters.skyrl.experiment import main as main
    from toolgym.rollout.adapters.skyrl.generator import ToolgymGenerator as ToolgymGenerator
    from toolgym.rollout.adapters.skyrl.output import to_generator_output as to_generator_output
    from toolgym.rollout.adapters.skyrl.text_env import register_envs as register_envs
    from toolgym.rollout.adapters.skyrl.trainer import CountedEpisodes as CountedEpisodes
else:
    __getattr__, __dir__ = lazy_names(__name__)
