"""Messages of `OpenAICompatible`: bodies, server-sent events, and what a server's log-probabilities mean.

Facts about servers, each from its source: vLLM (`vllm/v1/core/sched/utils.py`, `v1/engine/detokenizer.py`,
`entrypoints/openai/completion/`), and SGLang 0.5.23 (`srt/entrypoints/openai/serving_completions.py`), whose answers
were also seen live.

- Both put the stop token into `token_ids`; only the text lacks it. vLLM names it in `stop_reason` (null for the
  model's own end of sequence), SGLang in `matched_stop`.
- vLLM honours `stop_token_ids` beside `ignore_eos`; SGLang's `ignore_eos` switches both off.
- vLLM before 0.10.2 and servers like it have no `token_ids`, but can write `token_id:5` into `logprobs.tokens`.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolgym.rollout.engines.base import FinishReason, SamplingParams
from toolgym.rollout.engines.http import sampling_fields
from toolgym.tools.errors import ConfigError, EngineError, MissingLogprobsError, shorten

PROBE_TOP = 5
"""Most probable tokens that are compared to find out what a server's log-probabilities mean."""
PROBE_SPREAD = 0.2
"""Nats that the most probable tokens of the probe must at least be apart to tell it."""
ID_PREFIX = "token_id:"

HOW_TO_START = (
    "Such a server is vLLM 0.10.2 or later (vllm serve MODEL --logprobs-mode processed_logprobs) or SGLang 0.5.23 or "
    "later (python -m sglang.launch_server --model-path MODEL)"
)


class Family(enum.StrEnum):
    """Maker of the server; vLLM and SGLang take different parameters for where to stop."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OTHER = "other"


class LogprobsMode(enum.StrEnum):
    """Distribution of a server's log-probabilities."""

    SCALED = "scaled"
    """Temperature-scaled, before top-p, top-k and min-p: what this library means. SGLang's."""
    RAW = "raw"
    """The model's own at every temperature: vLLM's default (`--logprobs-mode raw_logprobs`). The same as `SCALED`
    at the temperatures 0 and 1."""
    PROCESSED = "processed"
    """After temperature, top-p, top-k and min-p: vLLM's `--logprobs-mode processed_logprobs`. The same as `SCALED`
    where none of the three narrows."""

    def check(self, params: SamplingParams) -> None:
        if self is LogprobsMode.RAW and params.temperature not in (0.0, 1.0):
            raise ConfigError(
                f"this server gives log-probabilities without the temperature, so they would be wrong at temperature "
                f"{params.temperature:g}: sample at 1.0, or start vLLM with --logprobs-mode processed_logprobs"
            )
        narrowed = params.top_p < 1 or params.top_k != -1 or params.min_p > 0
        if self is LogprobsMode.PROCESSED and narrowed and params.temperature > 0:
            raise ConfigError(
                "this server gives log-probabilities after top-p, top-k and min-p, so they would be wrong with "
                f"top_p={params.top_p:g}, top_k={params.top_k}, min_p={params.min_p:g}: leave these at 1, -1 and 0, or "
                "start vLLM with --logprobs-mode raw_logprobs and sample at temperature 1"
            )


@dataclass(frozen=True)
class ModelInfo:
    name: str
    family: Family
    context_length: int | None
    root: str | None


def read_models(url: str, answer: Any, wanted: str | None) -> ModelInfo:
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list) or not all(isinstance(card, Mapping) and card.get("id") for card in data):
        raise EngineError(
            f"{url}/v1/models must answer with a list of models, got {shorten(answer)}. {HOW_TO_START}; give its url "
            "without the path behind /v1"
        )
    names = [str(card["id"]) for card in data]
    if wanted is None and len(names) != 1:
        raise ConfigError(f"{url} serves {', '.join(names) or 'no model'}: say which with model=...")
    if wanted is not None and wanted not in names:
        raise ConfigError(f"{url} does not serve {wanted!r}; it serves {', '.join(names) or 'no model'}")
    card = data[0 if wanted is None else names.index(wanted)]
    owner, length = str(card.get("owned_by", "")), card.get("max_model_len")
    return ModelInfo(
        name=str(card["id"]),
        family=Family(owner) if owner in (Family.VLLM, Family.SGLANG) else Family.OTHER,
        context_length=length if isinstance(length, int) and length > 0 else None,
        root=card.get("root") if isinstance(card.get("root"), str) else None,
    )


def request_body(
    model: ModelInfo, prompt_ids: Sequence[int], params: SamplingParams, seed: int | None, top: int = 0
) -> dict[str, Any]:
    """Build the body of `/v1/completions`, with the `top` most probable tokens beside the sampled one."""
    return {
        **sampling_fields(params, of_sglang=model.family is Family.SGLANG),
        "model": model.name,
        "prompt": list(prompt_ids),
        "max_tokens": params.max_new_tokens,
        "min_tokens": 0,
        "ignore_eos": model.family is Family.VLLM or not params.stop_token_ids,
        "echo": False,
        "add_special_tokens": False,
        "logprobs": top,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_stop_fields(model.family, params),
        **({} if seed is None else {"seed": seed}),
    }


def _stop_fields(family: Family, params: SamplingParams) -> dict[str, Any]:
    """Return the fields that keep the tokens of a stop text in the answer."""
    if not params.stop:
        return {}
    return {"no_stop_trim": True} if family is Family.SGLANG else {"include_stop_str_in_output": True}


class EventReader:
    """Splits a byte stream of server-sent events into the JSON that each carries. Lines may be of any length: the
    first event of an answer repeats the whole prompt."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.done = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        whole = b"".join([*self._parts, head])
        self._parts = [rest] if rest else []
        events = []
        for line in whole.split(b"\n"):
            if not line.startswith(b"data:"):  # blank lines between events, and comments that keep a line open
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                continue
            try:
                event = json.loads(data)
            except ValueError as error:
                raise EngineError(f"a server-sent event must be JSON, got {shorten(repr(data))}") from error
            if not isinstance(event, dict):
                raise EngineError(f"a server-sent event must be a JSON object, got {shorten(event)}")
            events.append(event)
        return events


@dataclass
class Answer:
    """One streamed answer, as far as it has come. `logprobs` may lag behind the ids by some."""

    prompt: Sequence[int]
    params: SamplingParams
    vocab_size: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    top: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    _stop: Any = None
    _prompt_seen: bool = False

    def take(self, event: Mapping[str, Any]) -> None:
        if event.get("error"):
            error = event["error"]
            text = error.get("message") if isinstance(error, Mapping) else error
            raise EngineError(f"the server broke off the generation: {shorten(text or error)}")
        choices = event.get("choices")
        if (
            not isinstance(choices, list)
            or len(choices) > 1
            or not all(isinstance(choice, Mapping) for choice in choices)
        ):
            raise EngineError(f"an answer must have one choice, got {shorten(choices)}")
        for choice in choices:
            self._take_choice(choice)
        if isinstance(event.get("usage"), Mapping):
            self._take_usage(event["usage"])

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        echoed = choice.get("prompt_token_ids")
        if echoed is not None:
            if list(echoed) != list(self.prompt):
                raise EngineError(
                    f"the server saw another prompt ({len(echoed)} ids) than was sent ({len(self.prompt)}): start it "
                    "without a completion template, and without anything that adds tokens"
                )
            self._prompt_seen = True
        logprobs = choice.get("logprobs")
        values_by_name: Mapping[str, Any] = logprobs if isinstance(logprobs, Mapping) else {}
        ids = _ids(choice.get("token_ids"), values_by_name.get("tokens"))
        values = values_by_name.get("token_logprobs") or []
        if ids is None:
            if choice.get("text") or values:
                raise EngineError(
                    "the server answers with text, without the ids of its tokens: OpenAICompatible needs a server that "
                    f"returns them (return_token_ids). {HOW_TO_START}"
                )
            ids = []
        if ids and not values_by_name:
            raise EngineError(
                "the server answers without log-probabilities: OpenAICompatible needs a server that returns them "
                f"(logprobs). {HOW_TO_START}"
            )
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise EngineError(
                    f"the server sampled id {token_id}, outside the vocabulary of {self.vocab_size} ids: vocab_size "
                    "must be the model's"
                )
        for value in values:
            if type(value) not in (int, float) or not math.isfinite(value) or value > 1e-3:
                raise EngineError(
                    f"a log-probability must be a finite number of at most 0, got {value!r} (NaN in the model, or "
                    "--logprobs-mode raw_logits or processed_logits?)"
                )
        self.token_ids += ids
        self.logprobs += [float(value) for value in values]
        tops = values_by_name.get("top_logprobs")
        if not self.top and isinstance(tops, list) and tops and isinstance(tops[0], Mapping):
            self.top = sorted(
                (logprob for logprob in tops[0].values() if isinstance(logprob, int | float)), reverse=True
            )
        if choice.get("finish_reason") is not None:
            self.finish = str(choice["finish_reason"])
            self._stop = choice.get("stop_reason", choice.get("matched_stop"))

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        counted = usage.get("prompt_tokens")
        if isinstance(counted, int) and counted:
            if counted != len(self.prompt):
                raise EngineError(
                    f"the server counted {counted} prompt tokens where {len(self.prompt)} were sent: something adds "
                    "or cuts tokens on the way"
                )
            self._prompt_seen = True
        details = usage.get("prompt_tokens_details")
        if isinstance(details, Mapping) and isinstance(details.get("cached_tokens"), int):
            self.cached_tokens = details["cached_tokens"]
        generated = usage.get("completion_tokens")
        if self.finish is not None and isinstance(generated, int) and generated != len(self.token_ids):
            raise EngineError(
                f"the server counted {generated} generated tokens and returned {len(self.token_ids)} ids: some were "
                "lost on the way"
            )

    def reason(self) -> FinishReason:
        """Say why the answer ended, having checked that its parts agree."""
        count = len(self.token_ids)
        if self.finish is None:
            raise EngineError(f"the server's answer broke off after {count} tokens, before it was finished")
        if len(self.logprobs) != count:
            text = f"the server returned {count} ids and {len(self.logprobs)} log-probabilities"
            raise MissingLogprobsError(text, count)
        if not self._prompt_seen:
            raise EngineError(
                "the server tells neither the prompt's ids nor their number, so what the model saw is not known. "
                f"{HOW_TO_START}"
            )
        if self.finish == "abort":
            return FinishReason.ABORT
        if self.finish == "length":
            if count != self.params.max_new_tokens:
                raise EngineError(
                    f"the server ended after {count} tokens where max_new_tokens is {self.params.max_new_tokens}: its "
                    "context is shorter than context_length says"
                )
            return FinishReason.LENGTH
        if self.finish == "stop":
            last = self.token_ids[-1] if self.token_ids else None
            if last is not None and self._stop in self.params.stop:
                return FinishReason.STOP
            if last is None or (last not in self.params.stop_token_ids and (type(self._stop) is not int)):
                raise EngineError(
                    f"the server stopped on {self._stop!r} after the id {last!r}, which is not among stop_token_ids "
                    f"{sorted(self.params.stop_token_ids)}: it leaves the stop token out, or stops at something that "
                    "was not asked for"
                )
            if type(self._stop) is int and self._stop != last:
                raise EngineError(
                    f"the server stopped on id {self._stop}, which is not the last of its ids ({last}): it leaves "
                    "the stop token out"
                )
            return FinishReason.STOP
        raise EngineError(f"a generation must end with stop, length or abort, the server says {self.finish!r}")


def _ids(token_ids: Any, tokens: Any) -> list[int] | None:
    written: list[int] | None = None
    if isinstance(tokens, list) and tokens and all(str(token).startswith(ID_PREFIX) for token in tokens):
        try:
            written = [int(token.removeprefix(ID_PREFIX)) for token in tokens]
        except ValueError:
            raise EngineError(f"logprobs.tokens must hold token_id:NUMBER, got {shorten(tokens)}") from None
    if token_ids is None:
        return written
    if not isinstance(token_ids, list) or not all(type(token_id) is int for token_id in token_ids):
        raise EngineError(f"token_ids must be a list of ids, got {shorten(token_ids)}")
    if written is not None and written != token_ids:
        raise EngineError(f"token_ids {shorten(token_ids)} and logprobs.tokens {shorten(written)} disagree")
    return token_ids


def read_mode(url: str, plain: Sequence[float], hot: Sequence[float], narrow: Sequence[float]) -> LogprobsMode:
    """Tell from three answers to one prompt which distribution a server's log-probabilities are of. They are the
    most probable first tokens' log-probabilities, falling: `plain` at temperature 1, `hot` at temperature 2,
    `narrow` at temperature 1 with top-k 2. Between any two tokens, the difference of log-probabilities halves at
    temperature 2, unless they are raw; and top-k 2 leaves the third token its log-probability, unless they are
    processed."""
    advice = "say which they are with logprobs_mode=..., if you know how the server was started"
    if min(len(plain), len(hot)) < 3 or not narrow:
        raise EngineError(f"{url} does not return the most probable tokens' log-probabilities, so {advice}")
    count = min(len(plain), len(hot), PROBE_TOP)
    before, after = plain[0] - plain[count - 1], hot[0] - hot[count - 1]
    if before < PROBE_SPREAD:
        raise EngineError(f"the model of {url} finds all tokens about equally probable, so {advice}")
    ratio = after / before
    if 0.85 < ratio < 1.15:
        return LogprobsMode.RAW
    if not 0.35 < ratio < 0.65:
        raise EngineError(f"the log-probabilities of {url} change with the temperature as none do, so {advice}")
    # Two tokens that share all of the probability; the model's own two would need to be nearly certain.
    narrowed = math.exp(narrow[0]) + math.exp(narrow[min(1, len(narrow) - 1)])
    unnarrowed = math.exp(plain[0]) + math.exp(plain[1])
    if unnarrowed > 0.999:
        raise EngineError(f"the model of {url} is too sure of the probe's next token, so {advice}")
    return LogprobsMode.PROCESSED if abs(narrowed - 1) < abs(narrowed - unnarrowed) else LogprobsMode.SCALED
