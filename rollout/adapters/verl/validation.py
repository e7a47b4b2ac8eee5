"""verl's validation metrics, in which an episode that failed is no wrong answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_OF_REWARD = ("acc", "reward", "score")
"""What verl and our rows say of an episode's reward."""


def without_failures(process: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's `process_validation_metrics`, which leaves None out, to see our failed episodes' rewards as None.

    A row's `rm_scores` are 0 there, DAPO's filter wants a number as `acc`, and the V1 trainer puts a 0 in for each
    episode
    without one (`expected_acc_counts`). Rows of other loops, which lack `acc_counted`, stay as they are.
    """

    @functools.wraps(process)
    def processed(
        data_sources: Sequence[Any], sample_uids: Sequence[Any], infos_dict: Mapping[str, Sequence[Any]], **options: Any
    ) -> Any:
        # Both are in every row of ours, and verl says None for a row that lacks them.
        counted, ours = infos_dict.get("acc_counted"), infos_dict.get("policy_turns")
        if counted is None or ours is None:
            return process(data_sources, sample_uids, infos_dict, **options)
        failed = [turns is not None and acc is None for turns, acc in zip(ours, counted, strict=True)]
        infos = {
            name: [None if out else value for out, value in zip(failed, values, strict=True)]
            if name in _OF_REWARD
            else values
            for name, values in infos_dict.items()
        }
        if options.get("expected_acc_counts"):
            played = {str(source) for source, turns in zip(data_sources, ours, strict=True) if turns is not None}
            expected = options["expected_acc_counts"].items()
            options["expected_acc_counts"] = {key: number for key, number in expected if key[0] not in played}
        return process(data_sources, sample_uids, infos, **options)

    return processed
