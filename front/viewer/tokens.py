"""The tokens of a trajectory with all that is known of each, and their texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolgym.rollout.recording.run_folder import RUN
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ToolgymError

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


def tokens_of(trajectory: Trajectory) -> Iterator[SeenToken]:
    """Yield the tokens of all sequences, in the order in which the policy saw them."""
    turn = -1
    for number, sequence in enumerate(trajectory.sequences):
        for token in sequence.prompt_ids.tolist():
            yield SeenToken(number, -1, token, "prompt")
        for segment in sequence.segments:
            if not segment.is_policy:
                yield from (SeenToken(number, turn, token, "env") for token in segment.token_ids.tolist())
                continue
            turn += 1
            numbers = {name: array.tolist() for name, array in segment.aligned.items() if array.ndim == 1}
            rows = zip(segment.token_ids.tolist(), segment.logprobs.tolist(), segment.weight_versions, strict=True)
            for place, (token, logprob, version) in enumerate(rows):
                values = {name: float(column[place]) for name, column in numbers.items()}
                yield SeenToken(number, turn, token, "policy", logprob, version, values)


class TokenTexts:
    """Texts of token ids, by the tokenizer of the run if it can be found; see `why_not`.

    Args:
        run: a run's folder or a file in it; its `run.json` says which tokenizer the run had.
        tokenizer: a tokenizer's folder or name, instead.

    Raises:
        ToolgymError: the given tokenizer cannot be loaded.
    """

    def __init__(self, run: Path, tokenizer: str | None = None) -> None:
        self.why_not = ""
        self._tokenizer: Any = None
        self._texts: dict[int, str] = {}
        source = tokenizer or _tokenizer_of(run)
        if source is None:
            self.why_not = "the run does not say which tokenizer it had: give it with --tokenizer"
            return
        try:
            from toolgym.rollout.models.tiny import tiny_policy_path
            from toolgym.rollout.models.tokenizer import load_tokenizer

            self._tokenizer = load_tokenizer(tiny_policy_path() if source == "tiny" else source)
        except (ToolgymError, ImportError) as error:
            if tokenizer is not None:
                raise
            self.why_not = f"the run's tokenizer {source!r} cannot be loaded ({error}): give it with --tokenizer"

    @property
    def known(self) -> bool:
        return self._tokenizer is not None

    def text(self, token: int) -> str:
        """The text of one token, special ones included; its number in brackets without a tokenizer."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.decode([token]) if self.known else f"[{token}]"
        return text


def _tokenizer_of(run: Path) -> str | None:
    folder = run if run.is_dir() else run.parent
    try:
        options = json.loads((folder / RUN).read_bytes())["options"]
        engine = str(options["engine"])
        tokenizer = options.get("tokenizer")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return tokenizer or (None if engine.startswith(("http://", "https://")) else engine)
