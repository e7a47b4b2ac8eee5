"""TRL: `Spec` gives `GRPOTrainer` its arguments, `to_rollout_samples` what `AsyncGRPOTrainer` trains on."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.trl.rows import check_output as check_output
    from toolgym.rollout.adapters.trl.rows import to_output as to_output
    from toolgym.rollout.adapters.trl.rows import to_rollout_samples as to_rollout_samples
    from toolgym.rollout.adapters.trl.spec import Spec as Spec
else:
    __getattr__, __dir__ = lazy_names(__name__)
