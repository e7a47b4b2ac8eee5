"""`ProgressBar`: how far a run is, in a terminal or a notebook."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Self

from toolgym.rollout.trajectory import Trajectory
from toolgym.tools.errors import missing_extra

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without ipywidgets gets the bar of terminals
        from tqdm.auto import tqdm
except ImportError as error:
    raise missing_extra("rollout", "A progress bar", error) from error


class ProgressBar:
    """A sink that shows on standard error how many episodes have finished, their mean reward, and failed ones.

    Args:
        total: episodes of the run.
    """

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, desc="episodes", unit="episode")
        self._rewards, self._counted, self._failed = 0.0, 0, 0

    def write(self, trajectory: Trajectory) -> None:
        if trajectory.counts:
            self._rewards += trajectory.reward
            self._counted += 1
        self._failed += trajectory.failed
        shown = {"reward": f"{self._rewards / self._counted:.2f}"} if self._counted else {}
        if self._failed:
            shown["failed"] = str(self._failed)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
