"""Programs: MBPP, HumanEval, APPS and TACO. The ground truth is JSON text, for records differ in their shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from toolgym.envs.tasks.prepare.record import DataRecord, Prepared, UnusableRecordError
from toolgym.tools.errors import ConfigError, shorten

_MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""Ids of MBPP's splits, as its paper divides them (https://arxiv.org/abs/2108.07732, section 2.1)."""


def mbpp(record: DataRecord) -> Prepared:
    """`text` (`prompt` in the sanitized file), `task_id`, `test_list`; the ground truth is the whole record."""
    number = record.fields.get("task_id")
    if type(number) is not int:
        raise ConfigError(f"field 'task_id' must be a whole number, got {number!r}")
    tests = record.texts("test_list")
    split = next((name for name, ids in _MBPP_SPLITS.items() if number in ids), None)
    asked = record.text(record.first_of("text", "prompt"))
    shown = "\n".join(tests)
    return Prepared(
        f"{asked.strip()}\n\nYour program must pass these tests:\n```python\n{shown}\n```",
        json.dumps(dict(record.fields)),
        id=f"MBPP/{number}",
        split=split,
    )


def humaneval(record: DataRecord) -> Prepared:
    """`task_id`, `prompt`, `entry_point`, `test`; the ground truth is the whole record."""
    for name in ("entry_point", "test"):
        record.text(name)
    start = record.text("prompt").strip("\n")
    return Prepared(
        f"Complete this program:\n```python\n{start}\n```",
        json.dumps(dict(record.fields)),
        id=record.text("task_id"),
    )


def contest(record: DataRecord) -> Prepared:
    """`question`, `starter_code` and `input_output`, the ground truth: JSON text of `inputs`, `outputs`, maybe
    `fn_name`.
    """
    tests = record.text("input_output")
    if not tests.strip():
        raise UnusableRecordError("has no tests (input_output is empty)")
    try:
        read = json.loads(tests)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"field 'input_output' must be JSON text: {error}") from error
    if not isinstance(read, Mapping) or not all(isinstance(read.get(name), list) for name in ("inputs", "outputs")):
        raise ConfigError(f"field 'input_output' must hold lists of inputs and outputs, got {shorten(tests, 60)!r}")
    if not read["inputs"]:
        raise UnusableRecordError("has no tests (input_output has no inputs)")
    starter = str(record.fields.get("starter_code") or "").strip("\n")
    how = "Read from standard input and print to standard output."
    if read.get("fn_name"):
        how = f"Write the function `{read['fn_name']}`."
    began = f"\n\nBegin with this:\n```python\n{starter}\n```" if starter else ""
    number = record.fields.get("id", record.fields.get("problem_id"))
    return Prepared(
        f"{record.text('question').strip()}\n\n{how}{began}",
        tests,
        id=None if number is None else str(number),
        extra_info=record.some("difficulty", "url", "source"),
    )
