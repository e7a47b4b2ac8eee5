"""`Trajectory`: the record of one episode, with the exact tokens that the policy saw and wrote.

Tokens are stored once, as sequences of segments in the order in which the context grew; every mask and layout is
derived from them. Most episodes are one sequence. Where the context had to be written anew (see
`toolgym.rollout.transcript`), a further sequence begins; none is ever changed. As JSON (one line of a file, see
`toolgym.rollout.trajectory_file`) a trajectory is a superset of the rows that verl's `rollout_data_dir` holds
(`input`, `output`, `gts`, `score`, `step`).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolgym.envs.base import StopReason
from toolgym.envs.tool_env import ToolCallRecord
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message

FORMAT_VERSION = 2
"""Version of the JSON that `Trajectory.to_json` writes. Version 1, where an episode was one sequence, is read too."""

MAX_DEPTH = 150
"""Deepest nesting that is written: more than any call's arguments have, less than JSON's reader and writer can do."""


@dataclass(frozen=True)
class Segment:
    """A run of tokens behind the prompt, all from one hand.

    Attributes:
        token_ids: the ids, in order.
        is_policy: whether the policy sampled them; otherwise the env put them there.
        logprobs: the engine's log-probability of each id; empty for the env's.
        weight_versions: the version of the weights that sampled each id; empty for the env's.
    """

    token_ids: tuple[int, ...]
    is_policy: bool
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expected = len(self.token_ids) if self.is_policy else 0
        if not len(self.logprobs) == len(self.weight_versions) == expected:
            raise ConfigError(
                f"a segment of {len(self.token_ids)} {'policy' if self.is_policy else 'env'} tokens needs {expected} "
                f"logprobs and weight versions, got {len(self.logprobs)} and {len(self.weight_versions)}"
            )


@dataclass(frozen=True)
class TokenSequence:
    """One context from its prompt to its end: what an engine was sent and produced, and one row of a batch.

    A later sequence holds the turns of earlier ones in its prompt, if at all, so no sampled token is in the segments
    of two sequences.

    Attributes:
        prompt_ids: token ids up to the first turn that was sampled in this sequence.
        segments: what came after, in order.
        cause: why it began: `start` (the episode's first), `template` (the chat template renders the conversation
            otherwise than what was there), or the name of the context policy that changed the messages.
    """

    prompt_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    cause: str = "start"

    @property
    def response_ids(self) -> list[int]:
        """All ids behind the prompt, the policy's and the env's."""
        return list(itertools.chain.from_iterable(segment.token_ids for segment in self.segments))

    @property
    def response_mask(self) -> list[int]:
        """1 for each id that the policy sampled, 0 for each of the env's. Same length as `response_ids`."""
        return [int(segment.is_policy) for segment in self.segments for _ in segment.token_ids]

    @property
    def logprobs(self) -> list[float]:
        """The engine's log-probability of each id; 0.0 for the env's. Same length as `response_ids`."""
        return [
            value
            for segment in self.segments
            for value in (segment.logprobs if segment.is_policy else (0.0,) * len(segment.token_ids))
        ]

    @property
    def weight_versions(self) -> list[str | None]:
        """Version of the weights behind each id; None for the env's. Same length as `response_ids`."""
        return [
            value
            for segment in self.segments
            for value in (segment.weight_versions if segment.is_policy else (None,) * len(segment.token_ids))
        ]

    @property
    def policy_tokens(self) -> int:
        """Number of ids that the policy sampled."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.is_policy)


@dataclass(frozen=True)
class Turn:
    """One turn of the policy and the observation it led to.

    Attributes:
        text: what the policy wrote, without its end-of-turn token.
        finish_reason: the engine's: `stop`, `length` or `abort`.
        prompt_tokens: tokens of the context that was sent.
        generated_tokens: tokens that came back, of all parts together.
        cached_tokens: tokens of the context that the engine had in its prefix cache.
        observation_tokens: tokens that the env appended afterwards; 0 where a new sequence began instead.
        tool_calls: what became of each call, in order.
        reward: reward of the env's step.
        engine_seconds: wall seconds until the engine had answered, resumes included.
        env_seconds: wall seconds of the env's step, tools included.
        sequence: number of the sequence that it was sampled in, counted from 0.
        resumes: how often it was aborted and went on from what it had.
        truncated: it ended without an end, by its length or by an abort that was not resumed.
        closing_tokens: tokens that were appended, as the env's, to end a turn that had not sampled its end-of-turn
            token.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    observation_tokens: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    reward: float = 0.0
    engine_seconds: float = 0.0
    env_seconds: float = 0.0
    sequence: int = 0
    resumes: int = 0
    truncated: bool = False
    closing_tokens: int = 0


@dataclass(frozen=True)
class Failure:
    """Why an episode failed.

    Attributes:
        kind: `env_create`, `reset`, `prompt`, `engine`, `engine_timeout`, `env`, `env_timeout`, `context`,
            `context_timeout` or `episode_timeout`.
        message: the error's type and text.
        turn: number of the turn, counted from 0.
    """

    kind: str
    message: str
    turn: int


@dataclass(frozen=True)
class Trajectory:
    """One finished, truncated or failed episode.

    Attributes:
        id: unique in the run.
        env_id: the env's id, or the name of its class.
        task_id: the task's id.
        source: the task's source.
        group_id: number of the task in the run; trajectories of one group were sampled from one task.
        sample: number of the trajectory in its group.
        messages: the whole conversation, whatever a context policy took away from the policy's view later. With one
            sequence, the chat template renders it to that sequence's ids.
        tools: the tools' schemas in the OpenAI shape, as the template got them.
        sequences: the exact tokens, in order; empty where the episode failed before it had a prompt.
        reward: sum of the rewards of all steps.
        stop_reason: why it ended.
        turns: turn by turn.
        ground_truth: the task's.
        error: the failure, when it failed; everything up to it is kept.
        sampling: parameters of the sampling, by name.
        metrics: the env's metrics of the last step.
        prompt_text: the last sequence's prompt decoded, special tokens included.
        response_text: the last sequence's ids behind the prompt decoded, special tokens included.
        started_at: seconds since the epoch.
        seconds: wall seconds of the whole episode.
        step: the training step it belongs to, where the caller says so.
    """

    id: str
    env_id: str
    task_id: str
    source: str
    group_id: int
    sample: int
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    sequences: tuple[TokenSequence, ...]
    reward: float
    stop_reason: StopReason
    turns: tuple[Turn, ...] = ()
    ground_truth: str | None = None
    error: Failure | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    prompt_text: str = ""
    response_text: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    step: int = 0

    # ------------------------------------------------------------------ tokens

    @property
    def sequence(self) -> TokenSequence:
        """The only sequence; an empty one where there is none.

        Raises:
            ConfigError: there are several. `prompt_ids`, `segments` and all that derives from them raise it too.
        """
        if len(self.sequences) > 1:
            raise ConfigError(
                f"trajectory {self.id} has {len(self.sequences)} token sequences, so it has no one prompt and "
                "response; go through `trajectory.sequences`"
            )
        return self.sequences[0] if self.sequences else TokenSequence((), ())

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """`prompt_ids` of the only sequence."""
        return self.sequence.prompt_ids

    @property
    def segments(self) -> tuple[Segment, ...]:
        """`segments` of the only sequence."""
        return self.sequence.segments

    @property
    def response_ids(self) -> list[int]:
        """`response_ids` of the only sequence."""
        return self.sequence.response_ids

    @property
    def response_mask(self) -> list[int]:
        """`response_mask` of the only sequence."""
        return self.sequence.response_mask

    @property
    def logprobs(self) -> list[float]:
        """`logprobs` of the only sequence."""
        return self.sequence.logprobs

    @property
    def weight_versions(self) -> list[str | None]:
        """`weight_versions` of the only sequence."""
        return self.sequence.weight_versions

    @property
    def policy_tokens(self) -> int:
        """Number of ids that the policy sampled, in all sequences."""
        return sum(sequence.policy_tokens for sequence in self.sequences)

    # ------------------------------------------------------------------ what happened

    @property
    def failed(self) -> bool:
        """Whether the engine, the env or a deadline broke the episode off."""
        return self.error is not None

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """All tool calls of the episode, in order."""
        return [record for turn in self.turns for record in turn.tool_calls]

    @property
    def engine_seconds(self) -> float:
        """Wall seconds that the episode waited for the engine."""
        return sum(turn.engine_seconds for turn in self.turns)

    @property
    def env_seconds(self) -> float:
        """Wall seconds that the episode waited for the env's steps, tools included."""
        return sum(turn.env_seconds for turn in self.turns)

    @property
    def problems(self) -> list[str]:
        """One line for each tool call that did not go well, and for the failure."""
        lines = [
            f"turn {number}: {record.name or 'call'}: {record.status}"
            + (" (infrastructure)" if record.infra_failure else "")
            for number, turn in enumerate(self.turns)
            for record in turn.tool_calls
            if record.status != "ok"
        ]
        if self.error is not None:
            lines.append(f"turn {self.error.turn}: {self.error.kind}: {self.error.message}")
        return lines

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        """The trajectory as JSON can hold it; `from_json` reads it back equal.

        verl's keys `input` and `output` hold `prompt_text` and `response_text`, `gts` the ground truth, and `score`
        the reward.
        """
        own = plain(self)
        del own["prompt_text"], own["response_text"], own["ground_truth"], own["reward"]
        verl = {
            "input": self.prompt_text,
            "output": self.response_text,
            "gts": self.ground_truth,
            "score": self.reward,
        }
        return {"format_version": FORMAT_VERSION, **verl, **own}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trajectory:
        """Read what `to_json` made.

        Raises:
            ConfigError: something is missing or of an unknown version.
        """
        version = value.get("format_version")
        if version not in (1, FORMAT_VERSION):
            raise ConfigError(f"expected a trajectory of format version 1 or {FORMAT_VERSION}, got {version!r}")
        data = dict(value)
        del data["format_version"]
        try:
            if version == 1:
                only = {"prompt_ids": data.pop("prompt_ids"), "segments": data.pop("segments"), "cause": "start"}
                data["sequences"] = [only] if only["prompt_ids"] else []
            data["prompt_text"], data["response_text"] = data.pop("input"), data.pop("output")
            data["ground_truth"], data["reward"] = data.pop("gts"), data.pop("score")
            data["messages"], data["tools"] = tuple(data["messages"]), tuple(data["tools"])
            data["sequences"] = tuple(_sequence(one) for one in data["sequences"])
            data["turns"] = tuple(_turn(one) for one in data["turns"])
            data["error"] = Failure(**data["error"]) if data["error"] is not None else None
            data["stop_reason"] = StopReason(data["stop_reason"])
            return cls(**data)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a trajectory of toolgym: {type(error).__name__}: {error}") from error


def plain(value: Any, depth: int = 0) -> Any:
    """Copy a value as plain JSON. What JSON cannot hold, as a tool may have in its metrics, becomes its text."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > MAX_DEPTH:
        return f"... [nested more than {MAX_DEPTH} levels deep]"
    if isinstance(value, enum.Enum):
        return plain(value.value, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name), depth + 1) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, depth + 1) for one in value]
    number = getattr(value, "item", None)  # NumPy's and torch's scalars
    if callable(number) and getattr(value, "shape", None) == ():
        return number()
    return str(value)


def _sequence(value: Mapping[str, Any]) -> TokenSequence:
    segments = tuple(_segment(one) for one in value["segments"])
    return TokenSequence(tuple(value["prompt_ids"]), segments, value["cause"])


def _segment(value: Mapping[str, Any]) -> Segment:
    return Segment(
        token_ids=tuple(value["token_ids"]),
        is_policy=value["is_policy"],
        logprobs=tuple(value["logprobs"]),
        weight_versions=tuple(value["weight_versions"]),
    )


def _turn(value: Mapping[str, Any]) -> Turn:
    calls = tuple(ToolCallRecord(**record) for record in value["tool_calls"])
    return Turn(**{**value, "tool_calls": calls})
