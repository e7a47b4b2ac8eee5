"""NeMo-Gym (0.7.0): `ToolgymServer` is a resources server for any env, `to_rows` makes its data."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.nemo_gym.rows import to_rows as to_rows
    from toolgym.rollout.adapters.nemo_gym.server import ToolgymServer as ToolgymServer
    from toolgym.rollout.adapters.nemo_gym.server import ToolgymServerConfig as ToolgymServerConfig
else:
    __getattr__, __dir__ = lazy_names(__name__)
