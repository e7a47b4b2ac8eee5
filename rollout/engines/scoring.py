"""`Engine.score_tokens`: its request and its result, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolgym.rollout.models.token_ids import TokenIds
from toolgym.tools.errors import ConfigError, EngineError, require_whole_number


@dataclass(frozen=True)
class ScoringRequest:
    """Tokens to score, checked: every id is in the vocabulary, and all fit the context.

    Attributes:
        token_ids: the whole context, with the tokens that are scored at its end.
        start: place of the first token that is scored, at least 1.
        request_id: unique among running requests.
        temperature: logits are divided by it.
    """

    token_ids: tuple[int, ...]
    start: int
    request_id: str
    temperature: float = 1.0


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of given tokens.

    Attributes:
        logprobs: natural-log probability of each token from `start` on, after all tokens before it, in the distribution
            of the whole vocabulary.
        weight_version: version of the weights that computed them.
    """

    logprobs: tuple[float, ...]
    weight_version: str


def scoring_request(ids: TokenIds, start: int, request_id: str, temperature: float) -> ScoringRequest:
    """Check the arguments of `Engine.score_tokens`. Raises ConfigError if one is out of range."""
    require_whole_number("start", start, at_least=1)
    if start >= len(ids):
        raise ConfigError(f"start must be the place of one of {len(ids)} tokens, got {start}")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not 0 < temperature < math.inf:
        raise ConfigError(f"temperature must be above 0 and finite, got {temperature!r}")
    return ScoringRequest(ids.as_tuple(), start, request_id, float(temperature))


def check_scores(engine: str, scores: object, count: int, most: float) -> None:
    """Raise EngineError unless an engine returned a log-probability for each token, finite and at most `most`."""
    if not isinstance(scores, TokenScores) or len(scores.logprobs) != count:
        raise EngineError(f"{engine}._score must return TokenScores of {count} tokens, got {scores!r:.200}")
    if any(not math.isfinite(value) or value > most for value in scores.logprobs):
        raise EngineError(
            f"{engine} gave a log-probability that is not a finite number of at most 0 (NaN in the model?)"
        )
