r"""The grammar of answers: from text to an `Answer`.

An answer is a list of values, a set, a tuple, an interval, a matrix, a relation, a ratio, a choice, a quantity with its
unit, or words. Formulas inside of these are read by `formulas`.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolgym.envs.rewards.mathematics.containers import as_bracketed, as_listing, as_matrix, as_reals_except, as_union
from toolgym.envs.rewards.mathematics.families import as_congruence, as_family
from toolgym.envs.rewards.mathematics.formulas import UnreadableError
from toolgym.envs.rewards.mathematics.parts import joined, split, stripped, without_lead
from toolgym.envs.rewards.mathematics.quantities import as_based, as_quantity, as_ratio
from toolgym.envs.rewards.mathematics.relations import as_relation
from toolgym.envs.rewards.mathematics.values import Answer
from toolgym.envs.rewards.mathematics.wordings import as_choice, as_words
from toolgym.tools.answers.numbers import NEGATIONS
from toolgym.tools.answers.tokens import AnswerToken, read_tokens

MAX_TOKENS = 2000


def read_answer(text: str, *, groups: bool = True) -> Answer:
    """Return what a text is as an answer; `groups` says whether `1,200` is one number. Raises UnreadableError."""
    if "\\begin" in text:
        return as_matrix(text, read_answer)
    tokens = read_tokens(text, groups=groups)
    if len(tokens) > MAX_TOKENS:
        raise UnreadableError("the answer is too long")
    return _read(tokens)


def plain_texts(text: str) -> set[str]:
    """Return a text without its look, so that equal texts are equal answers: as formulas, and as words in any case.

    `\\text{ Red}` is `red`, and `7 t` is `7t`.
    """
    tokens = stripped(read_tokens(text)[:MAX_TOKENS])
    if not tokens:
        return set()
    texts = {"".join(_apart(before, token) for before, token in zip([None, *tokens], tokens, strict=False))}
    if all(token.kind in ("word", "symbol", "number") for token in tokens):
        texts.add(joined(tokens))
    return texts


def _apart(before: AnswerToken | None, token: AnswerToken) -> str:
    text = f"\\{token.text}" if token.kind == "command" else token.text
    is_blank = before is not None and before.kind == token.kind and token.kind in ("number", "word")
    return f" {text}" if is_blank else text


def _read(tokens: Sequence[AnswerToken]) -> Answer:
    congruence = as_congruence(tokens, _read)
    if congruence is not None:
        return congruence
    tokens = stripped(tokens)
    if not tokens:
        raise UnreadableError("the answer is empty")
    if (words := as_words(tokens)) is not None:
        return words
    choice = as_choice(tokens, _read)
    if choice is not None:
        return choice
    family = as_family(tokens, _read)
    if family is not None:
        return family
    for separators in ((";",), (",",)):
        items = split(tokens, separators)
        if len(items) > 1:
            return as_listing(items, _read, join=_join(tokens))
    return _read_single(without_lead(tokens))


def _join(tokens: Sequence[AnswerToken]) -> str:
    if any(token.is_word("or", "或") or token.is_command("lor") for token in tokens):
        return "or"
    return "and" if any(token.is_word("and", "和", "且") or token.is_command("land") for token in tokens) else ""


def _read_single(tokens: Sequence[AnswerToken]) -> Answer:
    tokens = stripped(tokens)
    if not tokens:
        raise UnreadableError("the answer is empty")
    if (excepted := as_reals_except(tokens, _read)) is not None:
        return excepted
    if any(token.is_word(*NEGATIONS) for token in tokens):
        words = as_words(tokens, always=True)
        assert words is not None
        return words
    relation = as_relation(tokens, _read)
    if relation is not None:
        return relation
    region = as_union(tokens, _read)
    if region is not None:
        return region
    bracketed = as_bracketed(tokens, _read)
    if bracketed is not None:
        return bracketed
    based = as_based(tokens)
    if based is not None:
        return based
    ratio = as_ratio(tokens)
    if ratio is not None:
        return ratio
    return as_quantity(tokens)
