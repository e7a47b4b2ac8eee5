"""`Segment` and `TokenSequence`: the exact tokens of an episode, as arrays.

Tokens are stored once, in the order in which the context grew; every mask and layout is derived from them. Values of
single tokens (log-probabilities, weight versions, payloads such as the experts that a router chose) are kept beside
them and are cut, joined and stored together with them.
"""

from __future__ import annotations

import base64
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.tools.errors import ConfigError

Ids = NDArray[np.int32]
"""Token ids, int32 `[tokens]`, read-only."""

LogProbs = NDArray[np.float64]
"""Natural-log probabilities, float64 `[tokens]`, read-only."""

VersionRuns = tuple[tuple[str, int], ...]
"""Weight versions as pairs of a version and the number of tokens in a row that it sampled."""

KINDS = "biuf"
"""Kinds of NumPy dtypes that a payload may have: booleans, integers and floats (of at most 64 bits)."""

FILLERS = {"sampling_mask": -1}
"""Fillers for the rows of payloads `[tokens, width]` whose width may differ from one generation to the next."""


class ArrayJson(TypedDict):
    """An array to the last bit: its little-endian bytes in C order as base64."""

    dtype: str
    shape: list[int]
    base64: str


class PayloadJson(ArrayJson):
    name: str


class VersionRunJson(TypedDict):
    version: str
    tokens: int


class SegmentJson(TypedDict):
    token_ids: list[int]
    is_policy: bool
    logprobs: list[float]
    version_runs: list[VersionRunJson]
    aligned: list[PayloadJson]


class ImageJson(TypedDict):
    """A place of an image; `sha256` is that of its data URL, which is among the trajectory's messages."""

    sha256: str
    start: int
    tokens: int


class SequenceJson(TypedDict):
    prompt_ids: list[int]
    segments: list[SegmentJson]
    start_reason: str
    images: NotRequired[list[ImageJson]]


_NO_PAYLOADS: Mapping[str, NDArray[Any]] = {}
_VERSION = operator.itemgetter(0)
_UNSIGNED: dict[Any, type[np.unsignedinteger[Any]]] = {np.dtype(np.int32): np.uint32, np.dtype(np.int64): np.uint64}


def version_runs(versions: Iterable[str]) -> VersionRuns:
    if isinstance(versions, tuple) and versions and versions.count(versions[0]) == len(versions):
        return ((versions[0], len(versions)),)  # as nearly always
    return tuple((version, len(list(run))) for version, run in itertools.groupby(versions))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    if not array.flags.writeable and array.base is None:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _ids(values: ArrayLike | TokenIds) -> Ids:
    if isinstance(values, TokenIds):
        return values.array  # checked when they were made
    array = np.asarray(values)
    if array.shape == (0,):
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not _fits_int32(array):
        raise ConfigError(f"token ids must be whole numbers from 0 to 2**31 - 1 in one dimension, got {values!r:.200}")
    return _frozen(array.astype(np.int32, copy=False))


def _fits_int32(array: NDArray[Any]) -> bool:
    if not array.size:
        return True
    unsigned = _UNSIGNED.get(array.dtype)
    if unsigned is not None:  # without its sign, a negative one is too great as well: one look instead of two
        return bool(array.view(unsigned).max() < 2**31)
    return bool(0 <= array.min() <= array.max() < 2**31)


def _payload(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in KINDS or array.dtype.itemsize > 8:
        raise ConfigError(f"payload {name!r} must be an array of booleans, integers or floats, got {array.dtype}")
    return _frozen(array.astype(array.dtype.newbyteorder("="), copy=False))


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """A run of tokens behind the prompt, all sampled by the policy or all put there by the env.

    `Segment.policy` and `Segment.env` make one from any sequences; `TokenIds` are not checked again. The arrays are
    read-only views of those given.
    Raises ConfigError if an array does not have one value per token.

    Attributes:
        token_ids: int32 `[tokens]`, the ids in order.
        logprobs: float64 `[tokens]`, the engine's log-probability of each id; empty for the env's tokens.
        version_runs: the versions of the weights that sampled the ids, as runs; empty for the env's tokens.
        aligned: further values per token by name, such as `routed_experts`, `[tokens, ...]`; see `Generation.aligned`.
            Only a policy's segment has them.
    """

    token_ids: Ids
    is_policy: bool
    logprobs: LogProbs = field(default_factory=lambda: np.zeros(0))
    version_runs: VersionRuns = ()
    aligned: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "token_ids", _ids(self.token_ids))
        set_field(self, "logprobs", _frozen(np.asarray(self.logprobs, dtype=np.float64)))
        set_field(self, "version_runs", tuple((version, count) for version, count in self.version_runs))
        if self.aligned:
            set_field(self, "aligned", {name: _payload(name, values) for name, values in self.aligned.items()})
        expected = len(self.token_ids) if self.is_policy else 0
        counts = [count for _, count in self.version_runs]
        versions = sum(counts)
        if self.logprobs.shape != (expected,) or versions != expected or (counts and min(counts) < 1):
            raise ConfigError(
                f"a segment of {len(self.token_ids)} {'policy' if self.is_policy else 'env'} tokens needs {expected} "
                f"logprobs and weight versions, got {len(self.logprobs)} and {versions}"
            )
        for name, array in self.aligned.items():
            if not self.is_policy:
                raise ConfigError(f"a segment of the env has no payloads, got {name!r}")
            if array.shape[:1] != (expected,):
                raise ConfigError(f"payload {name!r} of {expected} tokens must be [{expected}, ...], got {array.shape}")

    @classmethod
    def policy(
        cls,
        token_ids: ArrayLike | TokenIds,
        logprobs: ArrayLike,
        weight_versions: Iterable[str],
        aligned: Mapping[str, NDArray[Any]] | None = None,
    ) -> Segment:
        """Tokens that the policy sampled, with one log-probability and one weight version per id."""
        return cls(
            cast(Ids, token_ids), True, np.asarray(logprobs), version_runs(weight_versions), aligned or _NO_PAYLOADS
        )

    @classmethod
    def env(cls, token_ids: ArrayLike | TokenIds) -> Segment:
        return cls(cast(Ids, token_ids), False)

    @classmethod
    def merge(cls, segments: Sequence[Segment]) -> Segment:
        """Join segments that follow each other, as the parts of a resumed turn do. Raises ConfigError if there are
        none, some are the policy's and some the env's, or one lacks a payload that another has: no value of a router
        or a sampler means "unknown"."""
        if len({segment.is_policy for segment in segments}) != 1:
            raise ConfigError("segments to merge must be all the policy's or all the env's, and at least one")
        names = dict.fromkeys(name for segment in segments for name in segment.aligned)
        runs = itertools.chain.from_iterable(segment.version_runs for segment in segments)
        joined = [(version, sum(count for _, count in same)) for version, same in itertools.groupby(runs, _VERSION)]
        return cls(
            np.concatenate([segment.token_ids for segment in segments]),
            segments[0].is_policy,
            np.concatenate([segment.logprobs for segment in segments]),
            tuple(joined),
            {name: joined_payload(name, segments) for name in names},
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, part: slice) -> Segment:
        """A part of the segment with everything that belongs to its tokens, as `segment[2:5]`."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ConfigError(f"a segment is cut in order, without a step; got step {step}")
        runs, at = [], 0
        for version, count in self.version_runs:
            kept = min(stop, at + count) - max(start, at)
            runs += [(version, kept)] if kept > 0 else []
            at += count
        aligned = {name: array[start:stop] for name, array in self.aligned.items()}
        return Segment(self.token_ids[start:stop], self.is_policy, self.logprobs[start:stop], tuple(runs), aligned)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        return (
            self.is_policy == other.is_policy
            and np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.logprobs, other.logprobs)
            and self.version_runs == other.version_runs
            and self.aligned.keys() == other.aligned.keys()
            and all(_same(array, other.aligned[name]) for name, array in self.aligned.items())
        )

    def __hash__(self) -> int:
        return hash((self.is_policy, self.token_ids.tobytes()))

    @property
    def weight_versions(self) -> tuple[str, ...]:
        return tuple(version for version, count in self.version_runs for _ in range(count))

    def to_json(self) -> SegmentJson:
        return {
            "token_ids": self.token_ids.tolist(),
            "is_policy": self.is_policy,
            "logprobs": self.logprobs.tolist(),
            "version_runs": [{"version": version, "tokens": count} for version, count in self.version_runs],
            "aligned": [PayloadJson(name=name, **array_to_json(array)) for name, array in self.aligned.items()],
        }

    @classmethod
    def from_json(cls, value: SegmentJson) -> Segment:
        """Read what `to_json` made. Raises KeyError, TypeError or ValueError for something else."""
        aligned = {payload["name"]: array_from_json(payload) for payload in value["aligned"]}
        runs = tuple((run["version"], run["tokens"]) for run in value["version_runs"])
        return cls(np.asarray(value["token_ids"]), value["is_policy"], np.asarray(value["logprobs"]), runs, aligned)


def joined_payload(name: str, segments: Sequence[Segment], width: int = 0) -> NDArray[Any]:
    """A payload of segments that follow each other, as one array, at least `width` wide (see `filled_up`)."""
    for segment in segments:
        if name not in segment.aligned:
            raise ConfigError(f"{len(segment)} of the policy's tokens have no payload {name!r}, which others have")
    arrays = [segment.aligned[name] for segment in segments]
    width = max([width, *(array.shape[1] for array in arrays if array.ndim == 2)])
    arrays = [filled_up(name, array, width) for array in arrays]
    kinds = {f"{array.dtype} {['tokens', *array.shape[1:]]}" for array in arrays}
    if len(kinds) > 1:
        raise ConfigError(f"payload {name!r} comes in different forms: {', '.join(sorted(kinds))}")
    return np.concatenate(arrays)


def filled_up(name: str, array: NDArray[Any], width: int) -> NDArray[Any]:
    """A payload whose rows have at least so many values, if `FILLERS` says what fills them up; else as it is."""
    if name not in FILLERS or array.ndim != 2 or array.dtype.kind != "i" or array.shape[1] >= width:
        return array
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=FILLERS[name])


def _same(array: NDArray[Any], other: NDArray[Any]) -> bool:
    return array.dtype == other.dtype and np.array_equal(array, other, equal_nan=array.dtype.kind == "f")


def array_to_json(array: NDArray[Any]) -> ArrayJson:
    raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": base64.b64encode(raw).decode("ascii")}


def array_from_json(value: ArrayJson) -> NDArray[Any]:
    """Read what `array_to_json` made. Raises KeyError, TypeError or ValueError for something else."""
    dtype = np.dtype(value["dtype"])
    raw = base64.b64decode(value["base64"], validate=True)
    return np.frombuffer(raw, dtype=dtype.newbyteorder("<")).reshape(value["shape"])


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """One context from its prompt to its end: what an engine was sent and produced, and one row of a batch.

    A later sequence holds the turns of earlier ones in its prompt, if at all, so no sampled token is in the segments of
    two sequences. Raises ConfigError if `prompt_ids` are no token ids.

    Attributes:
        prompt_ids: int32 `[tokens]`, the ids up to the first turn that was sampled in this sequence.
        segments: the tokens behind the prompt, in order.
        start_reason: why it began: `start` (the episode's first), `template` (the chat template renders the
            conversation otherwise than what was there), `env` (the env began the context anew, see `StepInfo.context`),
            or the name of the context policy that changed the messages. For agents behind the gateway the causes of
            docs/capture.md.
        images: those in the prompt and in the env's segments, in the order of their places.
    """

    prompt_ids: Ids
    segments: tuple[Segment, ...]
    start_reason: str = "start"
    images: tuple[PlacedImage, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", _ids(self.prompt_ids))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSequence):
            return NotImplemented
        return (
            np.array_equal(self.prompt_ids, other.prompt_ids)
            and self.segments == other.segments
            and self.start_reason == other.start_reason
            and self.images == other.images
        )

    def __hash__(self) -> int:
        return hash((self.prompt_ids.tobytes(), self.segments))

    @property
    def response_ids(self) -> Ids:
        """int32 `[response]`, all ids behind the prompt, the policy's and the env's."""
        return np.concatenate([_ids(()), *(segment.token_ids for segment in self.segments)])

    @property
    def response_mask(self) -> NDArray[np.int8]:
        """int8 `[response]`, 1 for each id that the policy sampled, 0 for each of the env's."""
        hands = np.array([segment.is_policy for segment in self.segments], dtype=np.int8)
        return np.repeat(hands, np.array([len(segment) for segment in self.segments], dtype=np.int64))

    @property
    def logprobs(self) -> LogProbs:
        """float64 `[response]`, the engine's log-probability of each id; 0.0 for the env's."""
        parts = (segment.logprobs if segment.is_policy else np.zeros(len(segment)) for segment in self.segments)
        return np.concatenate([np.zeros(0), *parts])

    @property
    def weight_versions(self) -> list[str | None]:
        """Version of the weights behind each id; None for the env's. Same length as `response_ids`."""
        return [
            version
            for segment in self.segments
            for version in (segment.weight_versions if segment.is_policy else (None,) * len(segment))
        ]

    @property
    def response_tokens(self) -> int:
        return sum(map(len, self.segments))

    @cached_property
    def policy_segments(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.is_policy)

    @cached_property
    def policy_tokens(self) -> int:
        return sum(map(len, self.policy_segments))

    def to_json(self) -> SequenceJson:
        value: SequenceJson = {
            "prompt_ids": self.prompt_ids.tolist(),
            "segments": [segment.to_json() for segment in self.segments],
            "start_reason": self.start_reason,
        }
        if self.images:
            value["images"] = [{"sha256": i.sha256, "start": i.start, "tokens": i.tokens} for i in self.images]
        return value

    @classmethod
    def from_json(cls, value: SequenceJson, urls: Mapping[str, str] | None = None) -> TokenSequence:
        """Read what `to_json` made. `urls` are the data URLs of images by their SHA-256. Raises KeyError, TypeError or
        ValueError for something else, or without the URL of an image."""
        segments = tuple(Segment.from_json(segment) for segment in value["segments"])
        images = tuple(PlacedImage((urls or {})[i["sha256"]], i["start"], i["tokens"]) for i in value.get("images", ()))
        return cls(np.asarray(value["prompt_ids"]), segments, value["start_reason"], images)
