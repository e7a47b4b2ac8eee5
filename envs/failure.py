"""Ends of episodes in which something fails: the one mapping from errors to reasons."""

from __future__ import annotations

import math

from toolgym.envs.base import StepResult
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import SandboxError, error_text


class failing:
    """Raise what a block raises as an `EpisodeFailedError`, with `what` failed; such an error itself passes through.

    A `SandboxError` means `SANDBOX_FAILED`, a deadline that passed `timed_out`, all else `failed`. Errors of `unless`
    pass. It may be around several blocks, also at the same time.
    """

    __slots__ = ("_failed", "_timed_out", "_unless", "_what")

    def __init__(
        self,
        failed: StopReason,
        timed_out: StopReason | None = None,
        *,
        unless: type[Exception] | tuple[type[Exception], ...] = (),
        what: str = "",
    ) -> None:
        self._what = what
        self._failed, self._timed_out, self._unless = failed, timed_out or failed, unless

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, trace: object) -> None:
        if not isinstance(cause, Exception) or isinstance(cause, (EpisodeFailedError, self._unless)):
            return
        reason = self._failed
        if isinstance(cause, DeadlineError):
            reason = self._timed_out
        elif isinstance(cause, SandboxError):
            reason = StopReason.SANDBOX_FAILED
        if self._what:
            raise EpisodeFailedError(reason, f"{self._what} {error_text(cause)}") from cause
        raise EpisodeFailedError(reason, error_text(cause), cause) from cause


def reason_to_end(result: StepResult) -> StopReason | None:
    """Return why a step ends the episode; None if it goes on. Raise `EpisodeFailedError` if the reason is a failure."""
    reason = result.stop_reason
    if reason is not None and reason.failed:
        raise EpisodeFailedError(reason, f"the env ended the episode with {reason.value}")
    return reason


def finite_reward(value: float) -> float:
    """Return an env's reward. Raises `EpisodeFailedError` (`ENV_FAILED`) if it is not finite."""
    if not math.isfinite(value):
        raise EpisodeFailedError(StopReason.ENV_FAILED, f"the env gave a reward that is not finite: {value!r}")
    return value
