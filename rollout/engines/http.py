"""Retries, refusals and sampling parameters that the engines of servers share."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from toolgym.rollout.engines.base import SamplingParams
from toolgym.tools.errors import ConfigError, EngineError, shorten
from toolgym.tools.http.retries import AttemptError, Retries, repeat

T = TypeVar("T")

RETRIES = Retries(attempts=4, max_delay=2.0)
"""How often a request is sent that its server refuses for the moment. The engines have their own deadlines."""

TINY_TOP_P = 1e-9
"""A top-p that only the most probable token passes."""


class NotTakenError(AttemptError):
    """A server did not take a request, which may be sent again. `final` is raised if no attempt is left."""

    def __init__(self, final: ConfigError | EngineError, after: float | None = None, *, counts: bool = True) -> None:
        super().__init__(str(final), sent=False, after=after)
        self.final = final
        self.counts = counts


async def repeat_request(attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await repeat(attempt, RETRIES, repeatable=True)
    except NotTakenError as error:
        raise error.final from None


def error_text(answer: Any) -> str:
    """Find the message in the decoded body of an error, in any of the shapes that SGLang and vLLM send."""
    if isinstance(answer, Mapping):
        for name in ("error", "message", "detail"):
            inner = answer.get(name)
            if isinstance(inner, Mapping):
                inner = inner.get("message")
            if inner:
                return str(inner)
    return shorten(answer)


def decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def refusal(
    url: str, status: int, body: Any, *, name: str = "", of_content: bool = True, hint: str = ""
) -> ConfigError | EngineError:
    """Make the error of an answer that is not 200. `name` is the server's in the error that the request's content is
    wrong, which a status such as 400 means only if `of_content`. `hint` says what to do about 404."""
    message = error_text(body)
    if of_content and status in (400, 413, 422):
        return ConfigError(f"{name or url} refused the request: {message}")
    if status in (401, 403):
        hint = "Pass the server's api_key"
    elif status != 404:
        hint = ""
    return EngineError(f"{url} answered {status}: {message}" + (f". {hint}" if hint else ""))


def sampling_fields(params: SamplingParams, *, of_sglang: bool, mask: bool = False) -> dict[str, Any]:
    """Return the fields that every server takes. All are explicit, because servers have defaults of their own. To
    SGLang, top-k 1 is greedy: log-probabilities would be temperature-scaled or not depending on the rest of the
    batch (`is_all_greedy` in its sampler). A tiny top-p keeps the same token, and the scaled ones. With `mask`, a
    sampling mask will be asked for, which wants a finite top-k."""
    top_p, top_k, min_p = params.top_p, params.top_k, params.min_p
    if of_sglang and top_k == 1 and params.temperature > 0:
        top_p, top_k, min_p = TINY_TOP_P, 2 if mask else -1, 0.0
    return {
        "temperature": params.temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "stop_token_ids": list(params.stop_token_ids),
        **({"stop": list(params.stop)} if params.stop else {}),
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "n": 1,
        "skip_special_tokens": False,
    }


def forbidding(token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the sampling field that bans ids, as OpenAI's API defines it: -100 takes one out of the sampling."""
    return {"logit_bias": dict.fromkeys(token_ids, -100.0)} if token_ids else {}


def seed_of(params: SamplingParams, source: random.Random, *, deterministic: bool) -> int | None:
    """Return the seed to send; None sends none. A `deterministic` SGLang server (`--enable-deterministic-inference`)
    would give every request without a seed the same one, so one is drawn for each."""
    if deterministic and params.min_p > 0:
        raise ConfigError("SGLang with --enable-deterministic-inference cannot sample with min_p")
    seed = source.getrandbits(63) if deterministic and params.seed is None else params.seed
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(f"a server takes seeds from 0 to 2**63 - 1, got {seed!r}")
    return seed
