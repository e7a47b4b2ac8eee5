"""What a query selects, and what it says of a term that makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import RunIndex

DEMO = Path(__file__).parents[3] / "front/viewer/demo"


@pytest.fixture(scope="module")
def index():
    return RunIndex(DEMO).read_all()


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ("", lambda row: True),
        ("reward<0.5", lambda row: row.reward < 0.5),
        ("turns>=2 step=1", lambda row: row.turns >= 2 and row.step == 1),
        ("stop!=answered", lambda row: row.stop != "answered"),
        ("env=codeinterpreter blame=engine", lambda row: row.blame == "engine"),
        ("tool=malformed", lambda row: "malformed_json" in row.problems),
        ("tool=*", lambda row: bool(row.problems)),
        ("tool!=*", lambda row: not row.problems),
        ("failed", lambda row: row.failed),
        ("!success branch", lambda row: not row.success and row.parent is not None),
        ('error="closed the connection"', lambda row: row.failed),
    ],
)
def test_terms_about_figures(index, query, holds):
    selected = list(Query.parse(query).select(index))
    assert selected == [row for row in index.rows if holds(row)]
    assert selected


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("APPLES", "apples"), ('"How many apples"', "How many apples"), (r"/apples and finds \d+/", "apples"),
        ("/print\\(\\d+/", "print("),
    ],
)  # fmt: skip
def test_texts_are_looked_for_in_the_messages(index, query, text):
    selected = list(Query.parse(query).select(index))
    assert selected
    for row in selected:
        assert text.lower() in index.line(row).decode().lower()
    assert len(selected) < len(index)


def test_no_key_and_no_figure_is_taken_for_a_text(index):
    for text in ("infra_failure", "messages", "call_0", "assistant", "/logprobs/", "/function/"):
        assert not list(Query.parse(text).select(index)), text
    row = next(row for row in index.rows if row.failed)
    for text in (row.id, row.task, row.group, row.error[-20:]):
        assert row in list(Query.parse(f'"{text}"').select(index))


def test_arguments_are_looked_for_as_they_are_read(tmp_path):
    path = tmp_path / "1.jsonl"
    call = {
        "id": "1",
        "function": {"name": "run", "arguments": json.dumps({"type": 'say("hi")\nend', "n": [42, None]})},
    }
    message = {"role": "assistant", "content": [{"type": "text", "text": "as parts"}], "tool_calls": [call, {}]}
    path.write_text(
        json.dumps({"format_version": 4, "input": "unseen", "messages": [message]}) + "\nno JSON: fail\n",
        encoding="utf-8",
    )
    index = RunIndex(path).read_all()
    selected = {text: [row.number for row in Query.parse(text).select(index)]
             for text in ('/say."hi".\nend/', "42", '"AS parts"', "run", "type", "unseen", "fail")}  # fmt: skip
    assert list(selected.values()) == [[0], [0], [0], [0], [], [], [1]]


def test_arguments_nested_without_end_hold_up_no_search(tmp_path):
    call = {"function": {"name": "deep", "arguments": "[" * 700 + '"low"' + "]" * 700}}
    line = json.dumps({"format_version": 4, "messages": [{"role": "assistant", "tool_calls": [call]}]})
    (tmp_path / "1.jsonl").write_text(line + "\n")
    index = RunIndex(tmp_path).read_all()
    assert [len(list(Query.parse(text).select(index))) for text in ("low", "/deep/", "lower")] == [1, 1, 0]


def test_a_text_is_looked_for_as_json_writes_it(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text('{"input": "say \\"hi\\"\\n–", "output": "", "score": 0, "step": 1}\n', encoding="utf-8")
    index = RunIndex(path).read_all()
    assert len(list(Query.parse("–").select(index))) == 1
    assert len(list(Query.parse('/"hi"\n/').select(index))) == 1
    assert not list(Query.parse("absent").select(index))


def test_an_order_keeps_equal_rows_as_they_were(index):
    query = Query.parse("sort:-turns failed")
    assert (query.sort, query.descending) == ("turns", True)
    rows = Query.parse("sort:-turns").ordered(list(index.rows))
    assert rows == sorted(index.rows, key=lambda row: -row.turns)
    assert Query.parse("sort:task").ordered(list(index.rows)) == sorted(index.rows, key=lambda row: row.task)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("reward<high", "reward< takes a number, got 'high'"),
        ("rewrd<1", "did you mean 'reward'"),
        ("env<5", "takes = or !="),
        ("tool>ok", "takes = or !="),
        ("/(/", "is no regular expression"),
        ("sort:rewar", "did you mean 'reward'"),
    ],
)
def test_a_term_that_makes_no_sense_is_an_error_that_says_so(query, why):
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        Query.parse(query)
