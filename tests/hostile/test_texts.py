"""Every parser and scorer that reads what a policy wrote takes linear time, whatever it wrote.

A turn may have a megabyte, and the event loop of the trainer waits while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.hostile.growth import FIRST, LAST, NOTICEABLE, first_superlinear
from tests.hostile.shapes import shapes
from toolgym.envs.actions import read_action
from toolgym.envs.families.sql import compare
from toolgym.envs.families.sql import env as sql_env
from toolgym.envs.result_text import cut
from toolgym.envs.rewards import answer, conduct, judge, qa, unit_tests
from toolgym.envs.served.sessions.backends import actions
from toolgym.envs.tool_instances import encodable
from toolgym.rollout.capture import canonical
from toolgym.rollout.capture.wires import responses_history
from toolgym.rollout.recording.secrets import scrub
from toolgym.rollout.runner.metrics import figures
from toolgym.tools.answers import marks, numbers, statements
from toolgym.tools.errors import error_text, nearest, on_one_line, shorten
from toolgym.tools.judge import extract_program, same_output
from toolgym.tools.library import editor, final_answer
from toolgym.tools.library.code_input import clean_code
from toolgym.tools.library.terminal import render_terminal
from toolgym.tools.message import assistant, tool_call, without_thinking
from toolgym.tools.parsers import get_parser, split_reasoning
from toolgym.tools.parsers.registry import _PARSERS
from toolgym.tools.parsers.strict_json import read_json, read_whole_json
from toolgym.tools.schema import ToolCall, ToolSchema, check_call
from toolgym.tools.search import bm25
from toolgym.tools.views.html import escaped

Work = Callable[[str], object]

_TYPES: Mapping[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}}
_SCHEMAS = {"f": ToolSchema("f", parameters=_TYPES)}


def _parsing(name: str) -> Work:
    parser = get_parser(name)
    return lambda text: parser(text, schemas=_SCHEMAS).message


PARSERS: dict[str, Work] = {name: _parsing(name) for name in _PARSERS}

READERS: dict[str, Work] = {
    "open thinking": partial(get_parser("hermes"), starts_open=True),
    "split_reasoning": split_reasoning,
    "read_json": lambda text: read_json(text, 0),
    "read_whole_json": read_whole_json,
    "read_action": lambda text: read_action(assistant("", [tool_call("f", {"a": text})]), get_parser("hermes")),
    "check_call": lambda text: check_call(ToolCall("1", "f", {"a": text, text: 1, "b": [text]}), _SCHEMAS),
    "unknown tool": lambda text: check_call(ToolCall("1", text, {}), _SCHEMAS),
    "nearest": lambda text: nearest(text, ["search", "code_interpreter"]),
    "error_text": lambda text: error_text(KeyError(text)),
    "shorten": shorten,
    "encodable": encodable,
    "cut": lambda text: cut(text, 1000, "middle"),
    "escaped": escaped,
    "fenced_blocks": actions.fenced_blocks,
    "special tokens at the end": actions.without_end_token,
    "patches": actions._DIFF.search,
    "thinking in turns": without_thinking,
    "what a terminal shows": render_terminal,
    "fences around a program": clean_code,
    "marks of replies": canonical._MARK.findall,
    "thinking of Responses": responses_history.thought_of,
    "scrub": scrub,
    "on_one_line": on_one_line,
    "metric names": figures._name,
    "words of a search": bm25._WORD.findall,
    "editor": lambda text: editor._insert("f", text, {"command": "insert", "insert_text": text, "insert_line": 0}),
}

SCORERS: dict[str, Work] = {
    "marked_answer": marks.marked_answer,
    "said_answer": statements.said_answer,
    "without_withdrawn": statements.without_withdrawn,
    "read_number": numbers.read_number,
    "plain_choice": answer.plain_choice,
    "tagged_answer": qa.tagged_answer,
    "has_answer_form": qa.has_answer_form,
    "exact_match": lambda text: qa.exact_match(text, ["The right one"]),
    "f1": lambda text: qa.f1(text, ["The right one"]),
    "final_answer": final_answer.final_answer,
    "score_final_answer": lambda text: final_answer.score_final_answer(text, "7"),
    "extract_program": partial(extract_program, language="cpp"),
    "final_program": unit_tests.final_program,
    "same_output": lambda text: same_output(text, f"{text} 1"),
    "same_output with a tolerance": lambda text: same_output(text, text.replace("9", "8"), tolerance=1e-5),
    "read_verdict": judge.read_verdict,
    "thinking as form": lambda text: conduct._compiled(conduct.THINK).fullmatch(text),
    "query in a block": sql_env._BLOCK.findall,
    "is_ordered": compare.is_ordered,
    "spider_query": compare.spider_query,
}

WORK = {**PARSERS, **READERS, **SCORERS}

LENGTH = 1 << 14
"""Characters of the texts of the short test."""


@pytest.mark.parametrize("name", WORK)
def test_time_is_linear_in_a_turn(name):
    """One length that shows quadratic work which a megabyte would make minutes of; the long test looks closer."""
    superlinear = {
        shape: why
        for shape, make in shapes()
        if (why := first_superlinear(WORK[name], make, LENGTH, LENGTH, noticeable=NOTICEABLE / 4))
    }
    assert superlinear == {}


@pytest.mark.abuse  # minutes
@pytest.mark.parametrize("name", WORK)
def test_time_is_linear_up_to_a_megabyte(name):
    superlinear = {shape: why for shape, make in shapes() if (why := first_superlinear(WORK[name], make, FIRST, LAST))}
    assert superlinear == {}


def test_quadratic_work_is_seen():
    def quadratic(text: str) -> None:
        for at in range(0, len(text), 32):
            text.count("b", at)

    make = dict(shapes())["letters"]
    assert "take" in first_superlinear(quadratic, make)
    assert first_superlinear(json.dumps, make) == ""
