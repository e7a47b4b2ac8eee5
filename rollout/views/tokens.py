"""The tokens of a trajectory with all that is known of each, and their picture in a notebook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.views.html import escaped, note

TokenKind = Literal["prompt", "policy", "env"]


@dataclass(frozen=True, slots=True)
class SeenToken:
    """One token: only those of kind `policy` are trained on, and have a log-probability, a version and values.

    Attributes:
        sequence: number of its token sequence, counted from 0.
        turn: number of the policy's turn that sampled it, or after which the env put it; -1 in a prompt.
        version: of the weights that sampled it.
        values: further numbers of the token by name, such as `entropy`: the payloads with one number a token.
    """

    sequence: int
    turn: int
    id: int
    kind: TokenKind
    logprob: float | None = None
    version: str | None = None
    values: dict[str, float] = field(default_factory=dict)


def sampled_turns(trajectory: Trajectory) -> Iterator[int]:
    """Yield the number of the turn that sampled each of the policy's segments with tokens: turns without have none."""
    yield from (number for number, turn in enumerate(trajectory.turns) if turn.generated_tokens)
    yield from itertools.count(len(trajectory.turns))


def tokens_of(trajectory: Trajectory) -> Iterator[SeenToken]:
    """Yield the tokens of all sequences, in the order in which the policy saw them."""
    turn, turns = -1, sampled_turns(trajectory)
    for number, sequence in enumerate(trajectory.sequences):
        for token in sequence.prompt_ids.tolist():
            yield SeenToken(number, -1, token, "prompt")
        for segment in sequence.segments:
            if not segment.is_policy:
                yield from (SeenToken(number, turn, token, "env") for token in segment.token_ids.tolist())
                continue
            turn = next(turns) if len(segment) else turn
            numbers = {name: array.tolist() for name, array in segment.aligned.items() if array.ndim == 1}
            rows = zip(segment.token_ids.tolist(), segment.logprobs.tolist(), segment.weight_versions, strict=True)
            for place, (token, logprob, version) in enumerate(rows):
                values = {name: float(column[place]) for name, column in numbers.items()}
                yield SeenToken(number, turn, token, "policy", logprob, version, values)


MOST_TOKENS = 2_000
"""Tokens of one view: each takes some hundred bytes."""

STYLE = """
.tgv .k{font:12px/1.9 ui-monospace,monospace;overflow-wrap:anywhere;white-space:pre-wrap;margin:4px 0}
.tgv .k i{font-style:normal;border-radius:2px;padding:1px 0;box-shadow:inset 0 0 0 1px rgba(128,128,128,.16)}
.tgv .k.ids i{padding:1px 3px;margin-right:2px} .tgv i.p{background:rgba(128,128,128,.14)}
.tgv i.e{background:rgba(90,130,240,.25)} .tgv i.p4{background:rgba(40,160,90,.22)}
.tgv i.p3{background:rgba(40,160,90,.42)} .tgv i.p2{background:rgba(230,190,40,.45)}
.tgv i.p1{background:rgba(235,120,40,.5)} .tgv i.p0{background:rgba(225,50,50,.55)}
"""

_STEPS = (-3.0, -1.5, -0.5, -0.05)  # log-probabilities from which on a policy token has the next colour
_SHARES = ("5 % or less", "over 5 %", "over 22 %", "over 61 %", "over 95 %")
_COLOURS = "".join(f'<i class="p{step}">{share}</i>' for step, share in enumerate(_SHARES))
_LEGEND = note("Policy tokens (mask 1) by their probability; prompt and env (mask 0):") + (
    f'<div class="k ids">{_COLOURS}<i class="p">prompt</i><i class="e">env</i></div>'
)

Texts = Callable[[int], str]  # from a token's id to its text


def texts_of(tokenizer: Any) -> Texts | None:
    """The texts that a tokenizer, or the folder or name of one, makes of single ids; None without one."""
    if isinstance(tokenizer, str):
        from toolgym.rollout.models.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
    return None if tokenizer is None else lambda token: str(tokenizer.decode([token]))


def tokens_html(
    tokens: Sequence[SeenToken], texts: Texts | None, first: int = 0, words: Mapping[int, str] | None = None
) -> str:
    """The tokens from `first` on, with what is known of each where the mouse rests. `words` are the policy's, by turn,
    for tokens without texts. Where tokens are left out, it says how to see them."""
    end = min(len(tokens), first + MOST_TOKENS)
    parts = [_LEGEND] if tokens else []
    for (sequence, turn, kind), run in itertools.groupby(
        tokens[first:end], lambda token: (token.sequence, token.turn, token.kind)
    ):
        line = " ".join((words or {}).get(turn, "").split())
        title = f"turn {turn}{f': {line}' if line else ''}" if kind == "policy" else kind
        cells = "".join(_cell(token, texts) for token in run)
        heading = escaped(f"sequence {sequence}, {title}" if sequence else title, 300)
        parts.append(f'<div class="n">{heading}</div><div class="k{" ids" * (texts is None)}">{cells}</div>')
    if first > 0 or end < len(tokens):
        more = f"; the next ones: toolgym.rollout.show(…, first_token={end})" if end < len(tokens) else ""
        parts.append(note(f"Tokens {first:,} to {end:,} of {len(tokens):,} are shown{more}."))
    if texts is None and tokens:
        parts.append(note("These are ids. For their texts: toolgym.rollout.show(…, tokenizer=…)."))
    return "".join(parts)


def _cell(token: SeenToken, texts: Texts | None) -> str:
    about, css = f"id {token.id}, mask {int(token.kind == 'policy')}", token.kind[0]
    if token.logprob is not None:
        css = f"p{sum(token.logprob >= step for step in _STEPS)}"
        probability = f"{math.exp(min(0.0, token.logprob)):.1%}"
        about += f", log-prob {token.logprob:.4g} ({probability}), version {token.version}"
    about += "".join(f", {name} {value:.4g}" for name, value in token.values.items())
    text = str(token.id) if texts is None else texts(token.id).replace("\n", "⏎\n")
    return f'<i class="{css}" title="{escaped(about, 200)}">{escaped(text, 40)}</i>'
