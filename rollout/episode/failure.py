"""How an episode ends where something in it raises."""

from __future__ import annotations

from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import SandboxError, ToolgymError, error_text


class FailedError(ToolgymError):
    """Something broke the episode off. It never leaves the episode: the trajectory has the reason and the cause."""

    def __init__(self, reason: StopReason, cause: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


class failing:
    """Say how the episode ends if the block raises: with `failed`, unless the error knows the reason better."""

    __slots__ = ("_failed", "_timed_out")

    def __init__(self, failed: StopReason, timed_out: StopReason | None = None) -> None:
        self._failed, self._timed_out = failed, timed_out or failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, trace: object) -> None:
        if not isinstance(cause, Exception) or isinstance(cause, TooManyTokensError):
            return
        reason = self._failed
        if isinstance(cause, DeadlineError):
            reason = self._timed_out
        elif isinstance(cause, EpisodeFailedError):
            reason = cause.stop_reason
        elif isinstance(cause, SandboxError):
            reason = StopReason.SANDBOX_FAILED
        raise FailedError(reason, cause) from cause


def episode_failed(failed: StopReason, timed_out: StopReason, error: Exception) -> EpisodeFailedError:
    """Build what a caller that owns the loop raises `from` an error: with `failed`, unless that knows the reason."""
    text = error_text(error)
    if isinstance(error, EpisodeFailedError):
        failed, text = error.stop_reason, str(error)
    elif isinstance(error, DeadlineError):
        failed = timed_out
    elif isinstance(error, SandboxError):
        failed = StopReason.SANDBOX_FAILED
    return EpisodeFailedError(failed, text)


def not_trainable_error(trajectory: Trajectory) -> EpisodeFailedError:
    """Build the error that tells a trainer why it gets no tokens of a trajectory."""
    text = f"the episode ended with {trajectory.stop_reason}"
    if trajectory.error is not None:
        text = trajectory.error.message
    elif not trajectory.policy_tokens:
        text += ", and the policy sampled nothing"
    return EpisodeFailedError(trajectory.stop_reason, text)
