"""The texts of a run's tokens; `tokens_of` has the tokens themselves."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path

from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.recording.run_folder import RUN
from toolgym.rollout.views.tokens import SeenToken as SeenToken
from toolgym.rollout.views.tokens import TokenKind as TokenKind
from toolgym.rollout.views.tokens import tokens_of as tokens_of
from toolgym.tools.errors import ToolgymError


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
        self._decode: Callable[[list[int]], str] | None = None
        self._texts: dict[int, str] = {}
        source = tokenizer or _tokenizer_of(run)
        if source is None:
            self.why_not = "the run does not say which tokenizer it had: give it with --tokenizer"
            return
        try:
            self._decode = _decoder(source)
        except (ToolgymError, ImportError) as error:
            if tokenizer is not None:
                raise
            self.why_not = f"the run's tokenizer {source!r} cannot be loaded ({error}): give it with --tokenizer"

    @property
    def known(self) -> bool:
        return self._decode is not None

    def text(self, token: int) -> str:
        """The text of one token, special ones included; its number in brackets without a tokenizer."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._decode([token]) if self._decode is not None else f"[{token}]"
        return text


def model_of(run: Path) -> str | None:
    """The name or folder of the model that a run's `run.json` says; None if it says none, or a server played it."""
    engine, _ = _options_of(run)
    return None if engine is None or engine.startswith(("http://", "https://")) else engine


def _decoder(source: str) -> Callable[[list[int]], str]:
    folder = tiny_policy_path() if source == "tiny" else Path(source)
    if (folder / "tokenizer.json").is_file():
        with contextlib.suppress(Exception):  # a broken one: the loader below says what is wrong
            from tokenizers import Tokenizer  # transformers would do the same, but load torch as well: seconds, 200 MB

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            return functools.partial(tokenizer.decode, skip_special_tokens=False)
    from toolgym.rollout.models.tokenizer import load_tokenizer

    decode: Callable[[list[int]], str] = load_tokenizer(folder if source == "tiny" else source).decode
    return decode


def _tokenizer_of(run: Path) -> str | None:
    return _options_of(run)[1] or model_of(run)


def _options_of(run: Path) -> tuple[str | None, str | None]:
    """Engine and tokenizer, as `toolgym rollout` was given them."""
    folder = run if run.is_dir() else run.parent
    try:
        options = json.loads((folder / RUN).read_bytes())["options"]
        return str(options["engine"]), options.get("tokenizer")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
