"""The scorers of reasoning-gym: the work of a `ProcessPool`.

They parse, compute and in nine cases evaluate what the policy wrote.
"""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

from toolgym.envs.families.reasoning_gym.answer_check import may_be_scored


def load() -> None:
    import reasoning_gym.factory  # noqa: F401


def score(name: str, config: bytes, answer: str, entry: dict[str, Any]) -> float | str:
    """Score an answer by its generator.

    Args:
        name: the generator.
        config: its pickled configuration.
        answer: the answer.
        entry: the generator's entry, which may be changed.

    Returns:
        The score; `refused` for an answer that must not be evaluated, `unreadable` if the scorer raised.
    """
    dataset = _dataset(name, config)
    part = str(entry["metadata"].get("source_dataset", name))  # of a composite generator
    if not may_be_scored(part, answer):
        return "refused"
    try:
        value = float(dataset.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  several scorers raise for answers of another form than they expect
        return "unreadable"
    return value if math.isfinite(value) else "unreadable"


@functools.lru_cache(maxsize=256)
def _dataset(name: str, config: bytes) -> Any:
    from reasoning_gym.factory import DATASETS

    return DATASETS[name][0](pickle.loads(config))
