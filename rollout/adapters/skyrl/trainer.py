"""`CountedEpisodes`: SkyRL's trainers, from whose statistics episodes without a reward stay out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from toolgym.rollout.adapters.skyrl.output import BROKEN_OFF
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
    from skyrl.train.generators.base import GeneratorOutput

_METADATA = "toolgym_broken_off"
_UNGROUPED = ("gae", "reinforce++")
"""The advantages that compare an episode with no other one."""


class CountedEpisodes:
    """A mixin before `RayPPOTrainer` or a subclass: an episode that something broke off is no sample of its group.

    SkyRL 0.4.0 computes means and deviations over all rows of a prompt, whatever their masks. Here a masked row with
    the `stop_reason` "abort" is a group of its own. If that leaves one episode of a group, its advantage is 0. Metrics
    of rewards, of evaluations too, are those of the episodes that count. The generator is a `ToolgymGenerator`.
    """

    def postprocess_generator_output(
        self,
        generator_output: GeneratorOutput,
        uids: list[str],
        metrics_generator_output: GeneratorOutput | None = None,
        metrics_uids: list[str] | None = None,
    ) -> Any:
        from skyrl.train.generators.utils import slice_generator_output

        shown = generator_output if metrics_generator_output is None else metrics_generator_output
        names = uids if metrics_uids is None else metrics_uids
        kept = [row for row, reason in enumerate(shown["stop_reasons"]) if reason != BROKEN_OFF]
        if kept and len(kept) < len(names):
            metrics_generator_output = slice_generator_output(shown, kept)
            metrics_uids = [names[row] for row in kept]
        return super().postprocess_generator_output(  # type: ignore[misc]
            generator_output, uids, metrics_generator_output, metrics_uids
        )

    def convert_to_training_input(self, generator_output: GeneratorOutput, uids: list[str]) -> TrainingInputBatch:
        batch = super().convert_to_training_input(generator_output, uids)  # type: ignore[misc]
        reasons = generator_output["stop_reasons"]
        batch.metadata[_METADATA] = [row for row, reason in enumerate(reasons) if reason == BROKEN_OFF]
        return batch

    def compute_advantages_and_returns(self, data: TrainingInputBatch) -> TrainingInputBatch:
        _require_groups(self.cfg)  # type: ignore[attr-defined]
        uids, broken = data.metadata["uids"], set(data.metadata.pop(_METADATA))
        data.metadata["uids"] = [f"{uid} {row}" if row in broken else uid for row, uid in enumerate(uids)]
        batch = super().compute_advantages_and_returns(data)  # type: ignore[misc]
        batch.metadata["uids"] = uids
        if broken:
            self._count_final_rewards(batch, broken)
        if self.cfg.trainer.algorithm.advantage_estimator not in _UNGROUPED:  # type: ignore[attr-defined]
            alone = _alone(uids, broken, data.metadata.get("is_last_step"))
            for name in ("advantages", "returns"):
                batch[name][alone] = 0.0
        return batch

    def _count_final_rewards(self, batch: TrainingInputBatch, broken: Set[int]) -> None:
        """Let `loss/avg_final_rewards`, which SkyRL takes over all rows, be that of the episodes that count."""
        last = batch.metadata.get("is_last_step")
        rows = range(len(batch["rewards"]) - batch.metadata.get("pad_size", 0))
        counted = [row for row in rows if row not in broken and (last is None or last[row])]
        if counted:
            mean = batch["rewards"][counted].sum(dim=-1).mean().item()
            batch.metadata["metrics"]["avg_final_rewards"] = mean
            self.all_metrics["loss/avg_final_rewards"] = mean  # type: ignore[attr-defined]

    async def eval(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        from skyrl.train.generators.utils import get_metrics_from_generator_output
        from skyrl.train.utils.trainer_utils import calculate_per_dataset_metrics

        with self.generator.scores() as scores:  # type: ignore[attr-defined]
            metrics: dict[str, float] = await super().eval(*args, **kwargs)  # type: ignore[misc]
        counted = [score for score in scores if score.usable]
        if len(counted) == len(scores):
            return metrics
        count = self.cfg.generator.eval_n_samples_per_prompt  # type: ignore[attr-defined]
        names = ("avg_score", "mean_positive_reward", f"pass_at_{count}")
        metrics = {name: value for name, value in metrics.items() if name.rsplit("/", 1)[-1] not in names}
        if counted:
            rewards = {"rewards": [score.rewards for score in counted]}
            uids = [score.uid for score in counted]
            metrics.update(calculate_per_dataset_metrics(rewards, uids, [score.source for score in counted], count))
            overall = get_metrics_from_generator_output(rewards, uids)
            metrics |= {
                "eval/all/avg_score": overall["avg_score"],
                "eval/all/mean_positive_reward": overall["mean_positive_reward"],
                f"eval/all/pass_at_{count}": overall["pass_at_n"],
            }
        return metrics


def _require_groups(cfg: Any) -> None:
    """Raise ConfigError if SkyRL would compare each episode with itself alone, so that all advantages are 0."""
    estimator = cfg.trainer.algorithm.advantage_estimator
    if estimator == "grpo" and getattr(cfg.generator, "n_samples_per_prompt", None) == 1:
        raise ConfigError(
            "trainer.algorithm.advantage_estimator=grpo compares the episodes of a prompt, and there is one of each "
            "(generator.n_samples_per_prompt=1), so nothing would be trained: sample more"
        )


def _alone(uids: Sequence[str], broken: Set[int], is_last_step: Sequence[bool] | None) -> list[int]:
    left: dict[str, int] = defaultdict(int)
    for row, uid in enumerate(uids):
        left[uid] += row not in broken and (is_last_step is None or bool(is_last_step[row]))
    lost = {uids[row] for row in broken}
    return [row for row, uid in enumerate(uids) if uid in lost and left[uid] == 1]
