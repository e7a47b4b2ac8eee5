"""Questions to search answers for: FlashRAG's form, and those of HotpotQA, 2WikiMultihopQA, MuSiQue and NQ-open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.prepare.record import DataRecord, Prepared, UnusableRecordError
from toolgym.tools.errors import ConfigError, shorten

_KEPT = ("type", "level", "evidences")


def question(record: DataRecord) -> Prepared:
    """`question` with `golden_answers` (FlashRAG), or `answer` (a text or several) with `answer_aliases`."""
    name = record.first_of("golden_answers", "answer")
    answer = record.fields[name]
    if name == "answer" and isinstance(answer, str):
        answers = [answer, *(record.fields.get("answer_aliases") or ())]
    else:
        answers = record.texts(name)
    if not all(isinstance(text, str) for text in answers):
        raise ConfigError(f"field 'answer_aliases' must be a list of texts, got {shorten(repr(answers[1:]), 60)}")
    if record.fields.get("answerable") is False:
        raise UnusableRecordError("has no answer (answerable is false)")
    id = next(iter(record.some("id", "_id").values()), None)
    return Prepared(
        record.text("question").strip(),
        {"target": list(dict.fromkeys(answers))},
        id=None if id is None else str(id),
        extra_info={**record.some(*_KEPT), **_supporting_titles(record.fields.get("supporting_facts"))},
    )


def _supporting_titles(facts: Any) -> dict[str, list[str]]:
    """The articles that hold the facts: pairs of a title and a sentence's number, or one list of each (on the hub)."""
    titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts or ()]
    return {"supporting_titles": list(dict.fromkeys(map(str, titles)))} if titles else {}
