"""slime: `generate` plays one episode for `--custom-generate-function-path`, `to_samples` makes `Sample`s of others.

The hooks `post_process_rewards` and `log_eval_rollout` keep failed episodes out of slime's statistics.
"""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.adapters.slime.generation import generate as generate
    from toolgym.rollout.adapters.slime.hooks import log_eval_rollout as log_eval_rollout
    from toolgym.rollout.adapters.slime.hooks import post_process_rewards as post_process_rewards
    from toolgym.rollout.adapters.slime.samples import check_samples as check_samples
    from toolgym.rollout.adapters.slime.samples import to_samples as to_samples
else:
    __getattr__, __dir__ = lazy_names(__name__)
