"""Bodies for SGLang's HTTP server, and its answers as plain data. Formats as in SGLang 0.5.23: `GenerateReqInput` in
`managers/io_struct.py`, `SamplingParams` in `sampling/sampling_params.py`, and what the server was seen to send."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolgym.rollout.engines.base import (
    EngineLoad,
    FinishReason,
    Generation,
    GenerationRequest,
    SamplingParams,
)
from toolgym.rollout.engines.http import sampling_fields
from toolgym.rollout.engines.model_config import read_model_config
from toolgym.rollout.engines.scoring import ScoringRequest, TokenScores
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import ConfigError, EngineError, MissingLogprobsError, shorten

_KEPT = " toolgym:"
"""In a label, what divides the version from the random id of an update that kept the prefix cache."""
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)(?:\s+\d+)?$")

_log = logging.getLogger("toolgym.rollout")
_silent = LogThrottle(3600.0)


@dataclass(frozen=True)
class ServerInfo:
    """Facts of a server about itself. `context_length` is what it serves without cutting. `deterministic` says that
    it honours seeds (`--enable-deterministic-inference`), `routing_shape` are the layers, and experts per token, of
    a mixture of experts. None means that it does not say."""

    model_path: str
    tokenizer_path: str
    vocab_size: int
    context_length: int
    weight_version: str
    deterministic: bool
    sglang_version: str | None
    returns_routed_experts: bool | None = None
    routing_shape: tuple[int, int] | None = None
    returns_routing_weights: bool | None = None


def read_info(
    url: str,
    model: Mapping[str, Any],
    server: Mapping[str, Any],
    vocab_size: int | None = None,
    routing_shape: tuple[int, int] | None = None,
) -> ServerInfo:
    """Read the answers of `/model_info` and `/server_info`. The server derives `max_req_input_len` from its memory:
    a prompt must be shorter than that, and the server silently cuts a generation whose prompt and `max_new_tokens`
    together are a few tokens longer."""
    model_path = _field(url, "/model_info", model, "model_path", str)
    context_length = _field(url, "/server_info", server, "max_req_input_len", int)
    if isinstance(server.get("context_length"), int):
        context_length = min(context_length, server["context_length"])
    config = read_model_config(model_path)
    if vocab_size is None:
        vocab_size = config.vocab_size
    if vocab_size is None:
        raise ConfigError(
            f"SGLang does not tell its vocabulary's size, and {model_path!r} holds no config.json on this machine that "
            f"does: pass SGLangServer({url!r}, vocab_size=...)"
        )
    if routing_shape is None and config.layers is not None and config.experts_per_token is not None:
        routing_shape = (config.layers, config.experts_per_token)
    returns = server.get("enable_return_routed_experts")
    weights = server.get("enable_return_routed_expert_weights", None if returns is None else False)
    return ServerInfo(
        model_path=model_path,
        tokenizer_path=_field(url, "/model_info", model, "tokenizer_path", str),
        vocab_size=vocab_size,
        context_length=context_length,
        weight_version=_field(url, "/model_info", model, "weight_version", str),
        deterministic=bool(server.get("enable_deterministic_inference", False)),
        sglang_version=server.get("version"),
        returns_routed_experts=returns if isinstance(returns, bool) else None,
        routing_shape=routing_shape,
        returns_routing_weights=weights if isinstance(weights, bool) else None,
    )


def label_of(version: str, *, flushed: bool) -> str:
    """Return the label under which SGLang knows new weights. It is the version, if the prefix cache was flushed. If
    it was not, it is like no label before: a version's name may come twice, and what the cache holds under the first
    is not of the second one's weights."""
    return version if flushed else f"{version}{_KEPT}{uuid.uuid4().hex}"


def version_of(label: str) -> str:
    return label.partition(_KEPT)[0]


def may_be_stale(label: str) -> bool:
    """Whether keys and values of older weights may be in the prefix cache beside those of the weights of this label."""
    return _KEPT in label


def read_labels(answer: Any) -> tuple[str, ...]:
    """Return the labels of the weights that sampled the tokens, in order. There are none of an answer without
    tokens, and none of one that `read_generation` refuses."""
    try:
        meta = answer["meta_info"]
        spans = meta.get("weight_versions")
        labels = [meta["weight_version"]] if spans is None else [span["version"] for span in spans]
        return tuple(map(str, labels)) if answer["output_ids"] else ()
    except (AttributeError, KeyError, TypeError):
        return ()


def merge_infos(infos: Mapping[str, ServerInfo]) -> ServerInfo:
    (first_url, first), *others = infos.items()
    for name in (
        "vocab_size",
        "weight_version",
        "deterministic",
        "returns_routed_experts",
        "routing_shape",
        "returns_routing_weights",
    ):
        for url, info in others:
            value, other = getattr(first, name), getattr(info, name)
            if value != other:
                hint = (
                    ". Load the same weights into each alone first, without a pause: "
                    f"`async with SGLangServer({url!r}) as server: await server.update_weights(folder, version=...)`"
                )
                raise ConfigError(
                    f"servers of one engine must be equal, but {first_url} has {name} {value!r} and {url} has {other!r}"
                    + hint * (name == "weight_version")
                )
    return dataclasses.replace(first, context_length=min(info.context_length for info in infos.values()))


def _field(url: str, path: str, answer: Mapping[str, Any], name: str, kind: type) -> Any:
    value = answer.get(name)
    if not isinstance(value, kind):
        raise EngineError(
            f"{url}{path} must say {name!r} ({kind.__name__}), got {value!r}: is it an SGLang server of 0.5.9 or later?"
        )
    return value


def request_body(
    prompt_ids: Sequence[int], params: SamplingParams, seed: int | None, *, mask: bool = False
) -> dict[str, Any]:
    sampling = {
        **sampling_fields(params, of_sglang=True, mask=mask),
        "max_new_tokens": params.max_new_tokens,
        "min_new_tokens": 0,
        # With ignore_eos SGLang ignores stop_token_ids too, so it can be set only if there are none.
        "ignore_eos": not params.stop_token_ids,
        "no_stop_trim": True,
    }
    if params.grammar is not None:
        kind, text = params.grammar
        sampling[kind] = text
    if seed is not None:
        sampling["sampling_seed"] = seed
    return {
        "input_ids": list(prompt_ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def scoring_body(request: ScoringRequest) -> dict[str, Any]:
    """Return the body that scores given tokens: they are a prompt, and nothing is sampled. The first log-probability
    of a prompt is always null, so it begins one token earlier."""
    return {
        "input_ids": list(request.token_ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": request.start - 1,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def read_scores(answer: Any, request: ScoringRequest) -> TokenScores:
    """Read the log-probabilities of given tokens. Raises EngineError if they are not those of the tokens that were
    sent."""
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    entries = meta.get("input_token_logprobs") if isinstance(meta, Mapping) else None
    ids = request.token_ids[request.start :]
    if not isinstance(meta, Mapping) or not isinstance(entries, list) or len(entries) != len(ids) + 1:
        raise EngineError(
            f"SGLang must answer with {len(ids) + 1} of input_token_logprobs in meta_info, got {shorten(repr(entries))}"
        )
    logprobs = _read_entries("input_token_logprobs", entries[1:], ids)
    version = meta.get("weight_version")
    if not isinstance(version, str):
        raise EngineError("SGLang must answer with a weight_version: use 0.5.9 or later")
    return TokenScores(logprobs, version_of(version))


def image_fields(request: GenerationRequest) -> dict[str, Any]:
    """Return the fields of a request with images; none without."""
    if not request.images:
        return {}
    urls = [image.url for image in request.images]
    return {"input_ids": one_id_each(request), "image_data": urls, "return_prompt_token_ids": True}


def one_id_each(request: GenerationRequest) -> list[int]:
    """Return the request's ids with one for each image instead of all.

    SGLang puts an image's ids where it finds one of them, and keeps all other ids (0.5.23, `_expand_input_ids` in
    `srt/multimodal/processors/base_processor.py`); if it finds them all, it never answers. Raises EngineError if an
    image is no run of one id, or that id stands where no image is.
    """
    if not request.images:
        return list(request.prompt_ids)
    ids, sent, end = list(request.prompt_ids), [], 0
    spans = [ids[image.start : image.start + image.tokens] for image in request.images]
    [(part, placed)] = Counter(itertools.chain(*spans)).most_common(1)
    for image, span in zip(request.images, spans, strict=True):
        first, count = span.index(part) if part in span else 0, span.count(part)
        if not count or span[first : first + count] != [part] * count:
            raise EngineError(
                f"an image is sent as one run of one id, and that at token {image.start} is none: images of this model "
                "family cannot be sent as ids"
            )
        sent += [*ids[end : image.start], *span[: first + 1], *span[first + count :]]
        end = image.start + image.tokens
    if ids.count(part) != placed:
        raise EngineError(
            f"the context has {ids.count(part)} ids {part}, and its images are {placed} of them: the policy sampled a "
            "token that stands for parts of images"
        )
    return sent + ids[end:]


def check_prompt(answer: Mapping[str, Any], request: GenerationRequest) -> None:
    """Raise EngineError if SGLang computed on other ids than the request's; older ones tell their number only."""
    ids = answer.get("prompt_token_ids")
    count = answer["meta_info"].get("prompt_tokens") if ids is None else len(ids)
    if count != len(request.prompt_ids) or (ids is not None and tuple(ids) != tuple(request.prompt_ids)):
        raise EngineError(
            f"SGLang computed on {count} ids that are not the {len(request.prompt_ids)} of the request with "
            f"{len(request.images)} images: its processor must be that of the rollout, with its settings, and its "
            "model one that takes images"
        )


def read_generation(answer: Any, params: SamplingParams) -> Generation:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("meta_info"), Mapping):
        raise EngineError(f"SGLang must answer with output_ids and meta_info, got {shorten(answer)}")
    meta = answer["meta_info"]
    token_ids = answer.get("output_ids")
    if not isinstance(token_ids, list) or not all(type(token_id) is int for token_id in token_ids):
        raise EngineError(f"SGLang must answer with a list of ids in output_ids, got {shorten(token_ids)}")
    return Generation(
        token_ids=tuple(token_ids),
        logprobs=_logprobs(meta, token_ids),
        finish_reason=_finish_reason(meta, token_ids, params),
        weight_versions=_weight_versions(meta, len(token_ids)),
        cached_tokens=int(meta.get("cached_tokens") or 0),  # absent where a request was aborted in the queue
    )


def _logprobs(meta: Mapping[str, Any], token_ids: list[int]) -> tuple[float, ...]:
    entries = meta.get("output_token_logprobs")
    if entries is None and not token_ids:  # aborted in the queue
        return ()
    if not isinstance(entries, list) or len(entries) != len(token_ids):
        raise MissingLogprobsError(
            f"SGLang must answer with one of output_token_logprobs per output id ({len(token_ids)}), "
            f"got {shorten(entries)}",
            len(token_ids),
        )
    return _read_entries("output_token_logprobs", entries, token_ids)


def _read_entries(field: str, entries: Sequence[Any], token_ids: Sequence[int]) -> tuple[float, ...]:
    logprobs = []
    for place, (entry, token_id) in enumerate(zip(entries, token_ids, strict=True)):
        if not isinstance(entry, list | tuple) or len(entry) < 2:
            raise EngineError(f"an entry of {field} must be [logprob, id, text], got {shorten(entry)}")
        if entry[1] != token_id:
            kind = field.partition("_")[0]
            raise EngineError(f"SGLang's logprob {place} is of id {entry[1]!r}, but {kind} id {place} is {token_id}")
        if not isinstance(entry[0], int | float) or not math.isfinite(entry[0]):
            raise EngineError(f"SGLang's logprob {place} must be a finite number, got {entry[0]!r} (NaN in the model?)")
        logprobs.append(float(entry[0]))
    return tuple(logprobs)


def _finish_reason(meta: Mapping[str, Any], token_ids: list[int], params: SamplingParams) -> FinishReason:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, Mapping) else None
    if kind == "abort":
        return FinishReason.ABORT
    if kind == "stop" and isinstance(reason, Mapping):
        matched = reason.get("matched")
        if not token_ids or (matched != token_ids[-1] and matched not in params.stop):
            # SGLang says "NaN happened" here when the sampled id is not one.
            raise EngineError(f"SGLang stopped on {matched!r}, which is not the last of its ids")
        return FinishReason.STOP
    if kind == "length":
        if len(token_ids) != params.max_new_tokens:
            raise EngineError(
                f"SGLang ended after {len(token_ids)} tokens where max_new_tokens is {params.max_new_tokens}: "
                f"the server caps it (its memory, or SGLANG_MAX_NEW_TOKENS_LIMIT)"
            )
        return FinishReason.LENGTH
    raise EngineError(f"SGLang must end with stop, length or abort, got {shorten(reason)}")


def _weight_versions(meta: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Spread the spans over the tokens. Servers without spans tell one version, that at the end; all tokens get it."""
    spans = meta.get("weight_versions")
    if spans is None:
        version = meta.get("weight_version")
        if not isinstance(version, str):
            raise EngineError("SGLang must answer with a weight_version: use 0.5.9 or later")
        return (version_of(version),) * count
    versions: list[str] = []
    try:
        for span in spans:
            if span["start"] != len(versions) or not isinstance(span["version"], str):
                raise ValueError
            versions.extend([version_of(span["version"])] * (span["end"] - span["start"]))
        if len(versions) != count:
            raise ValueError
    except (TypeError, KeyError, ValueError) as error:
        raise EngineError(f"SGLang's weight_versions do not cover its {count} tokens: {shorten(spans)}") from error
    return tuple(versions)


def parse_metrics(text: Any) -> dict[str, float]:
    if not isinstance(text, str):
        raise EngineError(f"/metrics must answer in Prometheus' text format, got {str(text)[:200]!r}")
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            raise EngineError(f"/metrics must answer in Prometheus' text format, got the line {line[:200]!r}")
        samples[match["name"] + (match["labels"] or "")] = float(match["value"])
    return samples


def read_load(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> EngineLoad | None:
    """Read the answers of `/v1/loads`; None, with a line in the log, if a replica says nothing. SGLang answers there
    without a flag (0.5.23, `srt/entrypoints/v1_loads.py`): one entry for each data-parallel rank, whose
    `token_usage` is the share of its KV cache that running requests take. What the prefix cache merely keeps counts
    as free."""
    silent = [name for name, loads in answers.items() if not loads]
    if silent or not answers:
        if _silent.due(", ".join(silent)) is not None:
            _log.warning(
                "%s says nothing at /v1/loads of how busy it is, so the number of episodes cannot follow its KV cache: "
                "look in its log for 'load snapshot', or give RunConfig(max_concurrent=...) as a number",
                " and ".join(silent) or "no replica",
            )
        return None
    loads = [load for entries in answers.values() for load in entries]
    try:
        return EngineLoad.of_replicas(
            [
                EngineLoad(
                    kv_cache_use=min(1.0, max(0.0, float(load["token_usage"]))),
                    running=int(load["num_running_reqs"]),
                    queued=int(load["num_waiting_reqs"]),
                    max_running=int(load["max_running_requests"]) or None,
                )
                for load in loads
            ]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            "/v1/loads must say token_usage, num_running_reqs, num_waiting_reqs and max_running_requests of each "
            f"scheduler, as SGLang 0.5.23 does, got {shorten(repr(loads))}"
        ) from error
