"""Readers of records of public data sets: mathematics, and questions to search answers for.

Fields are checked when they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolgym.tools.errors import ConfigError, ToolgymError, nearest, shorten
from toolgym.tools.judge.rows.columns import check_names, names, plain_row, read_json

QUESTION_WORDS = names(
    "answer, answers, aliases, alternatives, audio, choice, choices, context, contexts, diagram, document, documents, "
    "figure, image, images, instruction, instructions, option, options, passage, passages, picture, rubric, system, "
    "table, unit, units, video"
)
"""Words in the name of a field that belongs to the question, or to what a right answer is."""


class UnusableRecordError(ToolgymError):
    """A record that its data set is known to have and that makes no task; says why."""


@dataclass(frozen=True)
class DataRecord:
    """One record. A field that is missing, or is something else than asked for, is a `ConfigError`.

    Attributes:
        fields: its columns.
        folder: folder of its file; None if it is not from a file.
        ignore: columns that may be overlooked, although their names are those of columns that matter.
    """

    fields: Mapping[str, Any]
    folder: Path | None = None
    ignore: Collection[str] = ()

    def check(self, uses: str, labels: str = "") -> None:
        """Raise ConfigError for a field that may change what a right answer is and that is not read.

        Args:
            uses: names of the fields that are read, separated by commas.
            labels: names of fields that are known not to matter, separated by commas.
        """
        known = names(uses) | names(labels) | set(self.ignore)
        check_names(plain_row(self.fields), known, "the record", QUESTION_WORDS)

    def text(self, name: str) -> str:
        value = self._required(name)
        if not isinstance(value, str):
            raise ConfigError(f"field {name!r} must be a text, got {shorten(repr(value), 60)}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._required(name)
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            raise ConfigError(f"field {name!r} must be a list of texts, got {shorten(repr(value), 60)}")
        return value

    def first_of(self, *names: str) -> str:
        """The first of these names that the record has."""
        for name in names:
            if self.fields.get(name) is not None:
                return name
        self._required(names[0])
        raise ConfigError(f"field {names[0]!r} is empty")

    def some(self, *names: str) -> dict[str, Any]:
        """Those of these fields that the record has."""
        return {name: self.fields[name] for name in names if self.fields.get(name) is not None}

    def _required(self, name: str) -> Any:
        if name not in self.fields:
            known = shorten(", ".join(map(str, self.fields)))
            raise ConfigError(f"there is no field {name!r}{nearest(name, self.fields) or '.'} Fields: {known}")
        return self.fields[name]


@dataclass(frozen=True)
class Prepared:
    """The parts of a task; `id` and `split` are the record's own, if it has them."""

    question: str
    ground_truth: Any
    id: str | None = None
    split: str | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)


def gsm8k(record: DataRecord) -> Prepared:
    """`question`, and `answer`: a solution whose last line is `#### 1,234`."""
    record.check("question, answer")
    question, solution = record.text("question"), record.text("answer")
    _, mark, last = solution.rpartition("####")
    answer = last.strip().replace(",", "")
    if not mark or not answer:
        raise ConfigError(f"field 'answer' must end with '#### <number>', got {shorten(repr(solution[-60:]))}")
    return Prepared(
        question,
        answer,
        extra_info={"question": question, "answer": solution},
        tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": answer}}},
        interaction_kwargs={"name": "gsm8k", "query": question, "ground_truth": answer},
    )


def math(record: DataRecord) -> Prepared:
    r"""`problem`, `level`, `type` and `solution`, whose last `\boxed{...}` is the answer; or `answer`, as MATH-500."""
    record.check("problem, answer, solution", "level, type, subject, unique_id")
    name = record.first_of("answer", "solution")
    answer = record.text("answer") if name == "answer" else last_boxed(record.text("solution"))
    extra = record.some("level", "type", "subject", "solution")
    return Prepared(record.text("problem"), answer, id=record.some("unique_id").get("unique_id"), extra_info=extra)


def dapo_math(record: DataRecord) -> Prepared:
    """Rows in verl's shape whose problem stands between instructions, which are the first and the last paragraph."""
    record.check("prompt, reward_model, extra_info", "data_source, ability")
    prompt, model, extra = (record.fields.get(name) for name in ("prompt", "reward_model", "extra_info"))
    try:
        if len(prompt) != 1 or model.get("style", "rule") != "rule":  # type: ignore[arg-type, union-attr]
            raise ConfigError(
                "prompt must be one message and reward_model.style must be 'rule', got "
                f"{shorten(repr({'prompt': prompt, 'reward_model': model}))}"
            )
        text, answer, id = prompt[-1]["content"], model["ground_truth"], (extra or {}).get("index")  # type: ignore[index]
    except (TypeError, KeyError, IndexError, AttributeError):
        raise ConfigError(
            "expected the fields prompt[-1].content and reward_model.ground_truth, got "
            f"{shorten(repr(dict(record.fields)))}"
        ) from None
    first, _, rest = text.partition("\n\n")
    problem, _, last = rest.rpartition("\n\n")
    if not problem or "Answer:" not in first + last:
        raise ConfigError(f"prompt[-1].content must have the problem between two paragraphs, got {shorten(repr(text))}")
    return Prepared(problem, answer, id=id)


def last_boxed(solution: str) -> str:
    r"""The content of the last `\boxed{...}` or `\fbox{...}` of a solution, or behind `\boxed ` up to `$`."""
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    behind = solution[start:].removeprefix("\\boxed").removeprefix("\\fbox") if start >= 0 else ""
    if behind[:1] == " " and behind.lstrip()[:1] != "{":
        return behind.partition("$")[0].strip()
    behind, depth = behind.lstrip(), 0
    for place, character in enumerate(behind if behind[:1] == "{" else ""):
        escaped = behind[place - 1] == "\\" if place else False
        depth += 0 if escaped else (character == "{") - (character == "}")
        if depth == 0:
            return behind[1:place]
    raise ConfigError(f"field 'solution' must hold \\boxed{{answer}}, got {shorten(repr(solution[-80:]))}")


def question(record: DataRecord) -> Prepared:
    """`question` with `golden_answers` (FlashRAG), `possible_answers` as JSON (PopQA), or `answer`, a text or several;
    and further right answers in `answer_aliases`.
    """
    record.check(
        "question, golden_answers, possible_answers, answer, answer_aliases, answerable, supporting_facts",
        "id, _id, type, level, evidences, evidences_id, answer_id, entity_ids, context, metadata, paragraphs, "
        "question_decomposition, s_aliases, o_aliases",
    )
    name = record.first_of("golden_answers", "possible_answers", "answer")
    answer = record.fields[name]
    if name == "possible_answers" and isinstance(answer, str):
        answers = read_json("field 'possible_answers'", answer)
    else:
        answers = [answer] if name == "answer" and isinstance(answer, str) else record.texts(name)
    answers = [*answers, *(record.fields.get("answer_aliases") or ())]
    if not all(isinstance(text, str) for text in answers):
        raise ConfigError(f"field 'answer_aliases' must be a list of texts, got {shorten(repr(answers), 60)}")
    if record.fields.get("answerable") is False:
        raise UnusableRecordError("has no answer (answerable is false)")
    id = next(iter(record.some("id", "_id").values()), None)
    return Prepared(
        record.text("question").strip(),
        {"target": list(dict.fromkeys(answers))},
        id=None if id is None else str(id),
        extra_info={
            **record.some("type", "level", "evidences"),
            **_supporting_titles(record.fields.get("supporting_facts")),
        },
    )


def _supporting_titles(facts: Any) -> dict[str, list[str]]:
    """The articles that hold the facts: pairs of a title and a sentence's number, or one list of each (on the hub)."""
    titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts or ()]
    return {"supporting_titles": list(dict.fromkeys(map(str, titles)))} if titles else {}
