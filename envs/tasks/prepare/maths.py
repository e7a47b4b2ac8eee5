"""Mathematics: GSM8K, MATH and DAPO-Math."""

from __future__ import annotations

from toolgym.envs.tasks.prepare.record import DataRecord, Prepared
from toolgym.tools.errors import ConfigError, shorten


def gsm8k(record: DataRecord) -> Prepared:
    """`question`, and `answer`: a solution whose last line is `#### 1,234`."""
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
    name = record.first_of("answer", "solution")
    answer = record.text("answer") if name == "answer" else last_boxed(record.text("solution"))
    extra = record.some("level", "type", "subject", "solution")
    return Prepared(record.text("problem"), answer, id=record.some("unique_id").get("unique_id"), extra_info=extra)


def dapo_math(record: DataRecord) -> Prepared:
    """Rows in verl's shape whose problem stands between instructions, which are the first and the last paragraph."""
    prompt, model, extra = (record.fields.get(name) for name in ("prompt", "reward_model", "extra_info"))
    try:
        text, answer, id = prompt[-1]["content"], model["ground_truth"], (extra or {}).get("index")  # type: ignore[index]
    except (TypeError, KeyError, IndexError):
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
