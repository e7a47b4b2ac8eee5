"""`CallableEngine`: an engine made from one async function, such as a trainer's own generation."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, GenerationRequest
from toolgym.tools.errors import ConfigError, EngineError, nearest, require_whole_number, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

Answer: TypeAlias = "Generation | Mapping[str, Any] | tuple[Any, ...]"
"""A return value that `read_answer` reads."""

Generate: TypeAlias = Callable[[GenerationRequest], Awaitable[Answer]]

NO_LIMIT = 10**9
"""From this length on, a tokenizer's `model_max_length` says that it has none."""

_KEYS = ("token_ids", "logprobs", "finish_reason", "weight_versions", "cached_tokens", "aligned")
_REASONS = ", ".join(repr(reason.value) for reason in FinishReason)
_KINDS: dict[type, str] = {numbers.Integral: "iu", numbers.Real: "iuf"}
"""The kinds of NumPy dtypes whose arrays hold such numbers, and nothing else."""


class CallableEngine(Engine):
    """Generates by calling an async function. Raises ConfigError if an argument is not usable, or no context length is
    known.

    Args:
        generate: gets a `GenerationRequest`, returns what `read_answer` reads. Cancelling the call must abort the
            request. It may raise anything: that episode fails, with `engine_failed`.
        tokenizer: of the model.
        context_length: most tokens of prompt and generation together; None: the tokenizer's `model_max_length`.
        vocab_size: number of token ids; None: the tokenizer's. A model with padding rows in its embedding has more.
        weight_version: version of the weights, for answers that do not say theirs.
        takes_images: whether `generate` computes on the `images` of a request too.
    """

    def __init__(
        self,
        generate: Generate,
        *,
        tokenizer: PreTrainedTokenizerBase,
        context_length: int | None = None,
        vocab_size: int | None = None,
        weight_version: str | int = "0",
        takes_images: bool = False,
    ) -> None:
        if not callable(generate):
            raise ConfigError(f"generate must be an async function of a GenerationRequest, got {generate!r}")
        if context_length is None:
            context_length = getattr(tokenizer, "model_max_length", None)
            if context_length is None or context_length >= NO_LIMIT:
                raise ConfigError(
                    "the tokenizer does not say how long a context may be: give context_length, the most tokens of "
                    "prompt and generation together"
                )
        require_whole_number("context_length", context_length, at_least=2)
        self._generate_turn = generate
        self._context_length = context_length
        self._vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        require_whole_number("vocab_size", self._vocab_size, at_least=1)
        self._weight_version = str(weight_version)
        self._takes_images = takes_images
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def takes_images(self) -> bool:
        return self._takes_images

    @property
    def weight_version(self) -> str:
        return self._weight_version

    @weight_version.setter
    def weight_version(self, version: str | int) -> None:
        self._weight_version = str(version)

    async def _generate(self, request: GenerationRequest) -> Generation:
        version = self._weight_version
        answer = self._generate_turn(request)
        if not inspect.isawaitable(answer):
            raise EngineError(f"generate must be an async function, it returned {shorten(repr(answer))}")
        return read_answer(await answer, request, version)


def read_answer(answer: object, request: GenerationRequest, weight_version: str = "0") -> Generation:
    """Return what a generate function answered as a `Generation`. Raises EngineError if it is none of these, the
    lengths differ, or the reason is left out and does not follow.

    Args:
        answer: a `Generation`; or a mapping with `token_ids` and `logprobs`, and any of the other attributes of
            `Generation`; or a tuple `(token_ids, logprobs)` or `(token_ids, logprobs, finish_reason)`. Lists, tuples,
            NumPy arrays and tensors `[tokens]` are fine. `weight_versions` may be one version for all tokens. If
            `finish_reason` is left out, it follows from the last id and the number of ids.
        request: what was asked for.
        weight_version: version of the weights if the answer does not say it.
    """
    if isinstance(answer, Generation):
        return answer
    if isinstance(answer, tuple) and len(answer) in (2, 3):
        answer = dict(zip(_KEYS, answer, strict=False))
    if not isinstance(answer, Mapping) or not {"token_ids", "logprobs"} <= set(answer):
        raise EngineError(
            "generate must return (token_ids, logprobs), a mapping with these keys, or a Generation, got "
            f"{shorten(repr(answer))}"
        )
    for name in answer:
        if name not in _KEYS:
            raise EngineError(f"generate returned an unknown key {name!r}{nearest(str(name), _KEYS)}")
    token_ids = _numbers("token_ids", answer["token_ids"], int, numbers.Integral)
    logprobs = _numbers("logprobs", answer["logprobs"], float, numbers.Real)
    aligned = answer.get("aligned") or {}
    if not isinstance(aligned, Mapping):
        raise EngineError(f"generate returned aligned={shorten(repr(aligned))}; it must map names to arrays")
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=_reason(answer.get("finish_reason"), token_ids, request),
        weight_versions=_versions(answer.get("weight_versions"), len(token_ids), weight_version),
        cached_tokens=int(answer.get("cached_tokens") or 0),
        aligned={str(name): np.asarray(array) for name, array in aligned.items()},
    )


def _numbers(name: str, values: Any, convert: type[T], kind: type) -> tuple[T, ...]:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in _KINDS[kind]:
        return tuple(values.astype(convert, copy=False).tolist())
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise EngineError(f"generate must return {name} as a list, got {shorten(repr(values))}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "whole numbers" if kind is numbers.Integral else "numbers"
            raise EngineError(f"generate must return {name} as a list of {what}, got {value!r} in it")
    return tuple(map(convert, values))


def _reason(reason: Any, token_ids: tuple[int, ...], request: GenerationRequest) -> FinishReason:
    if reason is not None:
        try:
            return FinishReason(reason)
        except ValueError:
            raise EngineError(f"generate must return a finish_reason out of {_REASONS}, got {reason!r}") from None
    if token_ids and token_ids[-1] in request.params.stop_token_ids:
        return FinishReason.STOP
    if len(token_ids) == request.params.max_new_tokens:
        return FinishReason.LENGTH
    raise EngineError(
        f"generate returned {len(token_ids)} ids for max_new_tokens={request.params.max_new_tokens}, the last of which "
        f"is none of stop_token_ids: it must say with finish_reason why the turn ended ({_REASONS})"
    )


def _versions(versions: Any, count: int, weight_version: str) -> tuple[str, ...]:
    if versions is None:
        return (weight_version,) * count
    if isinstance(versions, str | numbers.Integral):
        return (str(versions),) * count
    if hasattr(versions, "tolist"):
        versions = versions.tolist()
    if not isinstance(versions, Sequence):
        raise EngineError(f"generate must return weight_versions as one version or a list, got {versions!r}")
    return tuple(map(str, versions))
