"""Reasons for an episode's end, infos of `reset` and `step`, and records of tool calls."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypedDict

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ToolgymError
from toolgym.tools.message import Message


class Blame(enum.StrEnum):
    """The part that an episode ended on."""

    POLICY = "policy"
    """The policy's own doing, a good end included."""
    TOOL = "tool"
    SANDBOX = "sandbox"
    ENGINE = "engine"
    ENV = "env"
    """The env, its scorer included."""
    BUDGET = "budget"
    """A limit on turns, tokens or time."""
    USER = "user"
    """The task, the chat template, a context policy, or a person who stopped the run."""


class _End(enum.Enum):
    """The kinds of ends; see the properties of `StopReason`."""

    OWN = enum.auto()
    CUT = enum.auto()
    FAILED = enum.auto()


class StopReason(enum.StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered", Blame.POLICY, _End.OWN
    """The policy gave a turn without tool calls, and the env took it as the answer."""
    TOO_MANY_BAD_CALLS = "too_many_bad_calls", Blame.POLICY, _End.OWN
    """The policy made as many malformed tool calls as the env's `BadCallPolicy` stops after."""
    MAX_TURNS = "max_turns", Blame.BUDGET, _End.CUT
    """The policy used up its turns."""
    LENGTH = "length", Blame.BUDGET, _End.CUT
    """A turn reached `max_new_tokens` before its end-of-turn token."""
    BUDGET = "budget", Blame.BUDGET, _End.CUT
    """No tokens were left for another turn."""
    PROGRAM_TIME = "program_time", Blame.POLICY, _End.CUT
    """A deadline of the episode or of a turn passed, and the policy's programs ran for most of the time."""
    ABORTED = "aborted", Blame.ENGINE, _End.CUT
    """The engine aborted a turn, and the turn was not resumed."""
    STRAGGLER = "straggler", Blame.BUDGET, _End.CUT
    """The run had enough without the episode, and did not wait for its end."""
    ROLE_CUT = "role_cut", Blame.BUDGET, _End.CUT
    """Another role's limit ended the game, and the env did not say who won; or it was over before the first turn."""

    ENV_CREATE_FAILED = "env_create_failed", Blame.ENV, _End.FAILED
    """The env could not be made."""
    RESET_FAILED = "reset_failed", Blame.ENV, _End.FAILED
    """The env's `reset` raised: a tool could not be opened, or the task does not fit the env."""
    PROMPT_REFUSED = "prompt_refused", Blame.USER, _End.FAILED
    """The chat template refused the conversation, or the prompt is longer than allowed."""
    ENGINE_FAILED = "engine_failed", Blame.ENGINE, _End.FAILED
    """The engine raised, or returned something else than a generation."""
    ENGINE_TIMEOUT = "engine_timeout", Blame.ENGINE, _End.FAILED
    """The engine did not answer within its deadline."""
    ENV_FAILED = "env_failed", Blame.ENV, _End.FAILED
    """The env's `step` raised, or returned something else than a result."""
    ENV_TIMEOUT = "env_timeout", Blame.ENV, _End.FAILED
    """The env's `reset` or `step` did not finish within its deadline."""
    SANDBOX_FAILED = "sandbox_failed", Blame.SANDBOX, _End.FAILED
    """The sandbox that the env itself depends on failed. (A tool's failing sandbox is an observation.)"""
    TOOL_FAILED = "tool_failed", Blame.TOOL, _End.FAILED
    """A tool could not say what its episode is worth (`calc_reward`)."""
    SCORE_FAILED = "score_failed", Blame.ENV, _End.FAILED
    """The scorer raised, or returned something else than a score."""
    SCORE_TIMEOUT = "score_timeout", Blame.ENV, _End.FAILED
    """The scorer did not finish within its deadline."""
    CONTEXT_FAILED = "context_failed", Blame.USER, _End.FAILED
    """A context policy raised, or returned something else than a conversation."""
    CONTEXT_TIMEOUT = "context_timeout", Blame.USER, _End.FAILED
    """A context policy did not finish within its deadline."""
    TURN_TIMEOUT = "turn_timeout", Blame.BUDGET, _End.FAILED
    """The deadline of a turn, with the step that followed, passed."""
    EPISODE_TIMEOUT = "episode_timeout", Blame.BUDGET, _End.FAILED
    """The deadline of the whole episode passed."""
    WORKER_DIED = "worker_died", Blame.ENV, _End.FAILED
    """The process that played the episode died, each time that it was played, and at last without other episodes."""

    _blame: Blame
    _end: _End

    def __new__(cls, value: str, *kind: Any) -> StopReason:  # with more names, type checkers refuse StopReason("...")
        member = str.__new__(cls, value)
        member._value_ = value
        member._blame, member._end = kind
        return member

    @property
    def blame(self) -> Blame:
        return self._blame

    @property
    def failed(self) -> bool:
        """Whether something broke, so that the reward says nothing about the policy."""
        return self._end is _End.FAILED

    @property
    def truncated(self) -> bool:
        """Whether a limit, an abort or a failure cut the episode."""
        return self._end is not _End.OWN

    @property
    def trainable(self) -> bool:
        """Whether a trainer may learn from the episode's tokens."""
        return not self.failed

    @property
    def in_group_statistics(self) -> bool:
        """Whether the episode's reward enters its group's statistics: the policy earned it within its limits."""
        return not self.failed and self not in (StopReason.ABORTED, StopReason.STRAGGLER, StopReason.ROLE_CUT)


class EpisodeFailedError(ToolgymError, RuntimeError):
    """An env's `reset` or `step` ended the episode with `stop_reason`; `cause` is the error behind it. A reason that is
    no failure means that the episode could not go on, and that nothing broke."""

    def __init__(self, stop_reason: StopReason, message: str, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.stop_reason = stop_reason
        self.cause = cause


class PolicyFaultError(ToolgymError, RuntimeError):
    """The policy itself made it impossible to score or continue its episode.

    A scorer, a tool's `reward` or a simulated user raises it, for example when a judge's model refuses a turn that is
    too long. The episode ends with a score of 0 and the component `broken_by_policy`, and stays in its group. A failure
    that the policy did not cause is an `EpisodeFailedError`. `toolgym.envs.failure.policy_fault` tells them apart.
    """


@dataclass(frozen=True)
class ToolCallRecord:
    """Record of one tool call.

    Attributes:
        id: the call's id.
        name: the tool's name as the model wrote it; empty if it could not be read.
        arguments: the arguments with defaults filled in; None if they could not be read.
        status: `ok`; the `status` in the tool's metrics; `timeout` or `error` if the tool overran its deadline or
            raised; or the `CallProblem` of a call that was not run.
        text: what the model read.
        reward: the tool's step reward.
        seconds: wall seconds that the call took.
        infra_failure: the tool's infrastructure failed; the model is not to blame.
        metrics: the tool's own numbers; if its infrastructure failed, also `error`, which the model did not read.
        retries: requests to servers that the call sent again.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    status: str
    text: str
    reward: float = 0.0
    seconds: float = 0.0
    infra_failure: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    retries: int = 0


class ResetInfo(TypedDict, total=False):
    """Info of `reset`, besides the messages. An env may add keys of its own."""

    task: Task
    """The task of the episode."""
    tools: list[dict[str, Any]]
    """The schemas of the tools in the OpenAI shape; episodes share them, so do not change them."""


ResetOptions: TypeAlias = Mapping[str, Any] | None

ResetResult: TypeAlias = tuple[list[Message], ResetInfo]


class StepInfo(TypedDict, total=False):
    """Info of a step, besides observation and reward. An env may add keys of its own."""

    stop_reason: StopReason | None
    """Why the episode is over; None while it goes on. An env that leaves it out of its last step means `ANSWERED`."""
    message: Message
    """The action as an assistant message."""
    context: list[Message]
    """The policy's whole conversation from here on, if an env with `replaces_context` begins it anew."""
    tool_calls: Sequence[ToolCallRecord]
    """What became of each tool call of the turn, in order."""
    metrics: dict[str, Any]
    """Numbers about the episode so far, by name."""
    wait_seconds: float
    """Wall seconds of the step that were spent waiting for the turns of other roles: they are not the env's."""


class End(NamedTuple):
    """Returned by `ToolEnv.respond` to end the episode; `reward` is added to that of the step, besides the score."""

    stop_reason: StopReason = StopReason.ANSWERED
    reward: float = 0.0


class Continue(NamedTuple):
    """Returned by `ToolEnv.respond` to go on with at least one message; `reward` is that of the turn."""

    messages: list[Message]
    reward: float = 0.0
