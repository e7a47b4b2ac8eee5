"""Ends of episodes in which something fails: the one mapping from errors to reasons."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import StepResult
from toolgym.envs.types import EpisodeFailedError, PolicyFaultError, StopReason
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import (
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxFileError,
    SandboxUnsupportedError,
    error_text,
    require_number,
)
from toolgym.tools.message import Message
from toolgym.tools.stateful import ToolSession

if TYPE_CHECKING:
    from toolgym.tools.http.chat_endpoint import ChatEndpoint, ChatReply

BROKEN_BY_POLICY = "broken_by_policy"
"""The component, 1.0, of the score 0 of an episode that its own policy made impossible to score."""

CONTROL_TIMEOUT = 60.0
"""Wall seconds that a control of `policy_fault` may take."""

_log = logging.getLogger("toolgym.envs")


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


async def policy_fault(
    error: Exception, control: Callable[[], Awaitable[Any]], what: str, *, timeout: float = CONTROL_TIMEOUT
) -> PolicyFaultError | None:
    """Find out who caused a failure, by doing the same work again without what the policy contributed.

    Args:
        error: what the work raised.
        control: does the same work without the policy's contribution, for example in a new session, or asks the same
            model with the policy's text shortened. It raises if that fails.
        what: what the policy broke, for the message.
        timeout: wall seconds that the control may take.

    Returns:
        The error to raise in place of `error` if the control succeeds, so that the policy is to blame; None if the
        control fails too, so that the infrastructure is.
    """
    try:
        await with_deadline(_awaited(control), timeout)
    except Exception as failure:  # noqa: BLE001  whatever it raises, the work fails without the policy too
        _log.info("%s, and the control failed too: %s", what, error_text(failure))
        return None
    fault = PolicyFaultError(f"{what}: {error_text(error)}")
    fault.__cause__ = error
    return fault


async def fault_at_model(
    error: Exception,
    model: ChatEndpoint,
    asked: Sequence[Message],
    without: Sequence[Message],
    is_usable: Callable[[ChatReply], bool],
    what: str,
) -> PolicyFaultError | None:
    """Find out whether what the policy wrote made another model fail, such as a judge's or a simulated user's.

    The model is asked once more, without what the policy wrote. If that succeeds, a request that was refused or not
    answered is sent again, and must fail again. After a request that was not answered, each of the two may take a
    quarter of the time, so that a server which is slow for everybody is not the policy's fault. Neither is a server
    that could not be reached, or that was full.

    Args:
        error: what asking the model raised, or the `EpisodeFailedError` for replies that are not usable.
        model: the model.
        asked: the messages that the model failed at.
        without: the messages without what the policy wrote.
        is_usable: returns whether the episode can continue with a reply.
        what: what the policy caused, for the message.

    Returns:
        As `policy_fault`.
    """
    from toolgym.tools.http.client import CallError, ClientClosedError

    seconds = CONTROL_TIMEOUT
    if isinstance(error, ClientClosedError):
        return None
    if isinstance(error, CallError):
        if error.unreached or error.busy:
            return None
        seconds = min(seconds, model.timeout / 4)

    async def succeeds(messages: Sequence[Message]) -> bool:
        return is_usable(await with_deadline(model.ask(messages), seconds))

    async def control() -> None:
        if not await succeeds(without):
            raise ValueError("the model's reply is not usable either")
        if isinstance(error, EpisodeFailedError):  # the model replied, several times
            return
        try:
            works = await succeeds(asked)
        except Exception:  # noqa: BLE001  it fails again, in whichever way
            return
        if works:
            raise ValueError("the same request succeeded later")

    return await policy_fault(error, control, what, timeout=2 * seconds + 1.0)


async def _awaited(control: Callable[[], Awaitable[Any]]) -> None:
    await control()


async def is_policy_fault(error: BaseException, sessions: Iterable[Any]) -> bool:
    """Return whether the policy caused what a scorer raised, given the tools' sessions of its episode.

    `SandboxFileError` is about files that only the policy's programs had in hand: a missing file, a link or a folder in
    the place of a file, a full disk. After another `SandboxError` or a deadline, the sessions are compared to new ones,
    see `ToolSession.broken_by_programs`.
    """
    if isinstance(error, PolicyFaultError):
        return True
    tool_sessions = [session for session in sessions if isinstance(session, ToolSession)]
    if not tool_sessions or not isinstance(error, SandboxError | DeadlineError):
        return False
    if isinstance(error, SandboxUnsupportedError | SandboxClosedError) or getattr(error, "queued", False):
        return False
    if isinstance(error, SandboxFileError):
        return not any(session.lost_to_sandbox for session in tool_sessions)
    return any([await session.broken_by_programs() for session in tool_sessions])


def is_programs_time(program_seconds: float, seconds: float) -> bool:
    """Return whether the policy is to blame for a deadline of so many seconds that passed.

    It is if its programs ran for more than half of the time. See `BaseEnv.program_seconds`.
    """
    return program_seconds > seconds / 2


def reason_to_end(result: StepResult) -> StopReason | None:
    """Return why a step ends the episode; None if it goes on. Raise `EpisodeFailedError` if the reason is a failure."""
    reason = result.stop_reason
    if reason is not None and reason.failed:
        raise EpisodeFailedError(reason, f"the env ended the episode with {reason.value}")
    return reason


def finite_reward(value: Any) -> float:
    """Return an env's reward. Raises `EpisodeFailedError` (`ENV_FAILED`) if it is not a finite number."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise EpisodeFailedError(StopReason.ENV_FAILED, f"the env gave a reward that is not finite: {value!r}")
    try:
        require_number("the reward of a step of the env must be", value)
    except ConfigError as error:
        raise EpisodeFailedError(StopReason.ENV_FAILED, str(error)) from error
    return value  # type: ignore[no-any-return]  # as the env gave it, such as an int
