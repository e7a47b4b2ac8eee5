"""`overlong_penalty`: a negative reward for responses that are too long."""

from __future__ import annotations

from collections.abc import Callable

from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.tools.errors import ConfigError, require_whole_number


def overlong_penalty(
    max_length: int, buffer: int = 0, *, count: Callable[[str], int] = len, longest_turn: bool = False
) -> OutcomeScorer:
    """Return a scorer: 0 for a response that is short enough, down to -1 for one that is too long.

    All that the policy wrote counts: its calls too, and a turn that was cut (`Outcome.written`).

    The formula is DAPO's soft overlong punishment (Yu et al., arXiv 2503.14476, equation 13). With y the length of the
    response: 0 up to `max_length - buffer`; `(max_length - buffer - y) / buffer` from there to `max_length`; -1 beyond.

    Args:
        max_length: the length from which on a response has the whole penalty.
        buffer: over how much before it the penalty grows; 0: none, and all at once.
        count: the length of a text; by default its characters. For tokens: `lambda text: len(tokenizer.encode(text))`.
        longest_turn: count the longest of the policy's turns, not all of them together.

    Raises:
        ConfigError: a length is no whole number, or the buffer is longer than `max_length`.
    """
    require_whole_number("max_length", max_length, at_least=1)
    require_whole_number("buffer", buffer, at_least=0)
    if buffer > max_length:
        raise ConfigError(f"buffer must be at most max_length, {max_length}, got {buffer}")
    if not callable(count):
        raise ConfigError(f"count must be a function from a text to its length, got {count!r}")

    def score(outcome: Outcome) -> float:
        lengths = [count(text) for text in outcome.written]
        length = max(lengths, default=0) if longest_turn else sum(lengths)
        if length <= max_length - buffer:
            return 0.0
        if length > max_length:
            return -1.0
        return (max_length - buffer - length) / buffer

    return score
