"""`Trajectory`: the record of one episode, with the exact tokens that the policy saw and wrote.

Most episodes are one token sequence (see `toolgym.rollout.trajectory.token_sequence`). If the context had to be written
anew (see `toolgym.rollout.tokens.conversation`), a further sequence begins; none is ever changed. As JSON (one line of
a file) a trajectory is a superset of the rows that verl's `rollout_data_dir` holds (`input`, `output`, `gts`, `score`,
`step`).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout.trajectory.token_sequence import Ids, LogProbs, Segment, TokenSequence
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.message import Message, images_of
from toolgym.tools.views.html import drawn_by

FORMAT_VERSION = 4
"""Version of the JSON that `Trajectory.to_json` writes, and the only one that is read."""

MAX_DEPTH = 150
"""Deepest nesting that is written: more than any call's arguments have, less than JSON's reader and writer can do."""


@dataclass(frozen=True)
class Turn:
    """One turn of the policy and the observation it led to.

    Attributes:
        text: the policy's text, without its end-of-turn token.
        finish_reason: the engine's: `stop`, `length` or `abort`.
        prompt_tokens: tokens of the context that was sent.
        generated_tokens: tokens that came back, of all parts together.
        cached_tokens: tokens of the context that the engine had in its prefix cache.
        observation_tokens: tokens that the env appended afterwards; 0 if a new sequence began instead.
        reward: reward of the env's step; None if the env was not stepped, as after a turn that was cut.
        engine_seconds: wall seconds until the engine had answered, resumes included, without `queue_seconds`.
        env_seconds: wall seconds of the env's step, tools included.
        sequence: number of the sequence that it was sampled in, counted from 0.
        resumes: how often it was aborted and went on from what it had.
        truncated: it ended without an end, by its length or by an abort that was not resumed.
        closing_tokens: tokens that the env appended to end a turn without its end-of-turn token.
        seed: the sampling seed of the turn's first part; None if it had none.
        queue_seconds: wall seconds that the turn waited for its place, see `RunConfig.max_generations`.
        sampling: parameters of this turn that differ from `Trajectory.sampling`, by name, as an agent behind the
            gateway may set them for a call; empty if none differs.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    observation_tokens: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    reward: float | None = None
    engine_seconds: float = 0.0
    env_seconds: float = 0.0
    sequence: int = 0
    resumes: int = 0
    truncated: bool = False
    closing_tokens: int = 0
    seed: int | None = None
    queue_seconds: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """The error of an episode whose `stop_reason` is a failure: its type and text, and the turn's number from 0."""

    message: str
    turn: int


class _Text:
    """A text that may be given as a function, called when the text is first read: decoding takes as long as the rest
    of the record, and in training nothing reads it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> str:
        if instance is None:
            return ""  # the field's default
        text: str | Callable[[], str] = instance.__dict__[self._slot]
        if not isinstance(text, str):
            text = instance.__dict__[self._slot] = text()
        return text

    def __set__(self, instance: object, text: str | Callable[[], str]) -> None:
        instance.__dict__[self._slot] = text


@dataclass(frozen=True)
class Peer:
    """Another member of a trajectory's group: its trajectory's id, and its reward as its run gave it out."""

    id: str
    reward: float


@dataclass(frozen=True)
class Trajectory:
    """One finished, truncated or failed episode.

    Attributes:
        env_id: the env's id, or the name of its class.
        group_id: the same for all trajectories that one run sampled from one task for one role, and unique across runs.
        task_index: number of the task in the run, counted from 0.
        sample_index: number of the trajectory in its group, counted from 0.
        messages: the whole conversation, whatever a context policy took away from the policy's view later. With one
            sequence, the chat template renders it to that sequence's ids.
        tools: the tools' schemas in the OpenAI shape, as the template got them.
        sequences: the exact tokens, in order; empty if the episode failed before it had a prompt.
        reward: sum of the rewards of all steps.
        ground_truth: the task's; any value that JSON can hold.
        error: the failure, if it failed; everything up to it is kept.
        metrics: the env's metrics of the last step.
        prompt_text: the last sequence's prompt decoded, special tokens included; when it is first read. To make a
            trajectory, give a text, or a function that returns it.
        response_text: the last sequence's ids behind the prompt decoded, likewise.
        started_at: seconds since the epoch.
        seconds: wall seconds of the whole episode, without those that it stood still.
        training_step: the training step it belongs to, if the caller says so.
        validate: whether it was played to validate a policy, not to train it.
        role: which of the env's roles the policy played.
        parent: id of the trajectory that it was branched from; None if it began with `reset`.
        branch_turn: number of the parent's turn, counted from 0, before which it was branched; None without a parent.
        settings: settings of its run beside the sampling (limits, chat template, tools, the env's arguments, ...), as
            short texts by name; see `run_settings`. Empty if it was not played in a run.
        level: how hard the task says that it is (`Task.level`); empty if it does not.
        peers: the usable members of its group that were given out before it, if the group was whole without it.
    """

    id: str
    env_id: str
    task_id: str
    source: str
    group_id: str
    task_index: int
    sample_index: int
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    sequences: tuple[TokenSequence, ...]
    reward: float
    stop_reason: StopReason
    turns: tuple[Turn, ...] = ()
    ground_truth: Any = None
    error: Failure | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    prompt_text: _Text = _Text()
    response_text: _Text = _Text()
    started_at: float = 0.0
    seconds: float = 0.0
    training_step: int = 0
    validate: bool = False
    role: str = "policy"
    parent: str | None = None
    branch_turn: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    level: str = ""
    peers: tuple[Peer, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the texts decoded: what decodes them stays in this process."""
        _ = self.prompt_text, self.response_text
        return self.__dict__

    def __repr__(self) -> str:
        return f"<Trajectory {self.id}: {self._summary}>"

    _repr_html_ = drawn_by("toolgym.rollout.views.trajectories:trajectory_html")

    @property
    def _summary(self) -> str:
        return (
            f"{self.env_id}, task {self.task_id or self.task_index}, sample {self.sample_index}, "
            f"{len(self.turns)} turns, {self.policy_tokens} policy tokens, reward {self.reward:g}, "
            f"{self.stop_reason.value}"
        )

    @property
    def sequence(self) -> TokenSequence:
        """The only sequence; an empty one if there is none. If there are several, it raises ConfigError, and so do
        `prompt_ids`, `segments` and all that derives from them."""
        if len(self.sequences) > 1:
            raise ConfigError(
                f"trajectory {self.id} has {len(self.sequences)} token sequences, so it has no one prompt and "
                "response; go through `trajectory.sequences`"
            )
        return self.sequences[0] if self.sequences else TokenSequence(np.zeros(0, np.int32), ())

    @property
    def prompt_ids(self) -> Ids:
        return self.sequence.prompt_ids

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.sequence.segments

    @property
    def response_ids(self) -> Ids:
        return self.sequence.response_ids

    @property
    def response_mask(self) -> NDArray[np.int8]:
        return self.sequence.response_mask

    @property
    def logprobs(self) -> LogProbs:
        return self.sequence.logprobs

    @property
    def weight_versions(self) -> list[str | None]:
        return self.sequence.weight_versions

    @property
    def policy_tokens(self) -> int:
        return sum(sequence.policy_tokens for sequence in self.sequences)

    @property
    def failed(self) -> bool:
        """Whether the engine, the env or a deadline broke the episode off."""
        return self.error is not None

    @property
    def trainable(self) -> bool:
        """Whether its tokens may be trained on, as rows of a batch: the policy sampled some, and nothing broke."""
        return self.stop_reason.trainable and self.policy_tokens > 0

    @property
    def usable(self) -> bool:
        """Whether a trainer may use tokens and reward: it is trainable, and its group is compared with it."""
        return self.trainable and self.in_group_statistics

    @property
    def in_group_statistics(self) -> bool:
        """Whether the policy earned its reward: not where something broke, the engine aborted it or the run cut it."""
        return self.stop_reason.in_group_statistics

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        return [record for turn in self.turns for record in turn.tool_calls]

    @property
    def turn_places(self) -> list[int]:
        """Places of the turns' messages in `messages`, one for each turn; empty if not all are there."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        count = len(self.turns)
        return places[-count:] if 0 < count <= len(places) else []

    @property
    def engine_seconds(self) -> float:
        return sum(turn.engine_seconds for turn in self.turns)

    @property
    def env_seconds(self) -> float:
        return sum(turn.env_seconds for turn in self.turns)

    @property
    def problems(self) -> list[str]:
        lines = [
            f"turn {number}: {record.name or 'call'}: {record.status}"
            + (" (infrastructure)" if record.infra_failure else "")
            for number, turn in enumerate(self.turns)
            for record in turn.tool_calls
            if record.status != "ok"
        ]
        if self.error is not None:
            lines.append(f"turn {self.error.turn}: {self.stop_reason}: {self.error.message}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The trajectory as JSON can hold it; `from_json` reads it back equal.

        verl's keys `input` and `output` hold `prompt_text` and `response_text`, `gts` the ground truth, `score` the
        reward, and `step` the training step. Each field has one type in all trajectories, as readers of tables want it:
        tools' schemas, and the arguments and metrics of calls, which may hold anything, are JSON texts. Only `gts` and
        the env's `metrics` are what tasks and env make them.
        """
        verl = {
            "input": self.prompt_text,
            "output": self.response_text,
            "gts": strict_json(self.ground_truth),
            "score": self.reward,
            "step": self.training_step,
        }
        there = {url for message in self.messages for url in images_of(message["content"])}
        shown = (image.url for sequence in self.sequences for image in sequence.images)
        elsewhere = [url for url in dict.fromkeys(shown) if url not in there]  # an env or a context policy wrote them
        empty = [name for name in ("level", "peers") if not getattr(self, name)]
        left_out = (*_VERLS, "sequences", "turns", *empty)
        names = [item.name for item in dataclasses.fields(self) if item.name not in left_out]
        return {
            "format_version": FORMAT_VERSION,
            **verl,
            **{name: plain(getattr(self, name)) for name in names},
            "metrics": strict_json(self.metrics),
            "messages": [plain(_with_calls(message, _text_of)) for message in self.messages],
            "tools": [_text_of(schema) for schema in self.tools],
            **({"images": elsewhere} if elsewhere else {}),
            "sequences": [sequence.to_json() for sequence in self.sequences],
            "turns": [turn_to_json(turn) for turn in self.turns],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trajectory:
        """Read what `to_json` made. Raises ConfigError if something is missing, or the JSON is of another version."""
        if not isinstance(value, Mapping):
            raise ConfigError(f"expected a trajectory as a JSON object, got {shorten(repr(value))}")
        version = value.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(f"expected a trajectory of format version {FORMAT_VERSION}, got {version!r}")
        try:
            data = {key: item for key, item in value.items() if key != "format_version"}
            for name, key in _VERLS.items():
                data[name] = data.pop(key)
            data["messages"] = tuple(_with_calls(message, json.loads) for message in data["messages"])
            data["tools"] = tuple(json.loads(tool) for tool in data["tools"])
            shown = (url for message in data["messages"] for url in images_of(message["content"]))
            urls = {hashlib.sha256(url.encode()).hexdigest(): url for url in (*shown, *data.pop("images", ()))}
            data["sequences"] = tuple(TokenSequence.from_json(sequence, urls) for sequence in data["sequences"])
            data["turns"] = tuple(turn_from_json(turn) for turn in data["turns"])
            data["error"] = Failure(**data["error"]) if data["error"] is not None else None
            data["peers"] = tuple(Peer(**peer) for peer in data.get("peers", ()))
            data["stop_reason"] = StopReason(data["stop_reason"])
            return cls(**data)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(f"not a trajectory of toolgym: {type(error).__name__}: {error}") from error


def require_trajectories(values: object) -> list[Trajectory]:
    if not isinstance(values, Iterable):
        raise ConfigError(f"expected a list of toolgym Trajectories, got {shorten(repr(values))}")
    trajectories = []
    for trajectory in values:
        if not isinstance(trajectory, Trajectory):
            raise ConfigError(f"expected a list of toolgym Trajectories, got {shorten(repr(trajectory))} in it")
        trajectories.append(trajectory)
    return trajectories


_VERLS = {
    "prompt_text": "input",
    "response_text": "output",
    "ground_truth": "gts",
    "reward": "score",
    "training_step": "step",
}


def plain(value: Any, depth: int = 0) -> Any:
    """Copy a value as plain JSON. A value that JSON cannot hold, such as a tool's metrics may have, becomes its
    text."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > MAX_DEPTH:
        return f"... [nested more than {MAX_DEPTH} levels deep]"
    if isinstance(value, enum.Enum):
        return plain(value.value, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name), depth + 1) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    number = getattr(value, "item", None)  # NumPy's and torch's scalars
    if callable(number) and getattr(value, "shape", None) == ():
        return number()
    return str(value)


def strict_json(value: Any) -> Any:
    """Copy a value as plain JSON without NaN and Infinity, which become null: JSON has no such numbers, and readers of
    tables want one type in a column."""
    return _without_special_numbers(plain(value))


def _without_special_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_special_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_special_numbers(item) for item in value]
    return value


def _text_of(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)


def _with_calls(message: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": change(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def turn_to_json(turn: Turn) -> dict[str, Any]:
    value: dict[str, Any] = plain(turn)
    if not value["sampling"]:
        del value["sampling"]
    for record in value["tool_calls"]:
        record["arguments"] = None if record["arguments"] is None else _text_of(record["arguments"])
        record["metrics"] = json.dumps(strict_json(record["metrics"]), ensure_ascii=False)
        record["reward"] = strict_json(record["reward"])
    return value


def turn_from_json(value: Mapping[str, Any]) -> Turn:
    calls = tuple(
        ToolCallRecord(
            **{
                **call,
                "arguments": None if call["arguments"] is None else json.loads(call["arguments"]),
                "metrics": json.loads(call["metrics"]),
                "reward": math.nan if call["reward"] is None else call["reward"],
            }
        )
        for call in value["tool_calls"]
    )
    return Turn(**{**value, "tool_calls": calls})
