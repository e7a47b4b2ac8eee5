"""Search-R1's `<search>query</search>`."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import CallProblem

parse = get_parser("search_r1")


def read(text, **options):
    turn = parse(text, **options)
    assert all(call.name == "search" for call in turn.calls)
    return turn.content, [call.arguments["query_list"] for call in turn.calls], [error.problem for error in turn.errors]


@pytest.mark.parametrize(
    ("text", "content", "queries"),
    [
        ("<search> capital of France\n</search>", "", [["capital of France"]]),
        ("I must look.<search>a</search> then <search>b</search>", "I must look. then ", [["a"], ["b"]]),
        (
            "<think>maybe <search>a</search></think><search>b</search>",
            "<think>maybe <search>a</search></think>",
            [["b"]],
        ),
        ("<answer>Paris</answer>", "<answer>Paris</answer>", []),
        ('<search>{"name": "search"}</search>', "", [['{"name": "search"}']]),
        ("</search>", "</search>", []),
    ],
)
def test_queries_are_calls_and_all_else_is_content(text, content, queries):
    assert read(text) == (content, queries, [])


@pytest.mark.parametrize(
    ("text", "queries", "problems"),
    [
        ("<search>a", [], [CallProblem.UNCLOSED_TAG]),
        ("<search>a<search>b</search>", [["b"]], [CallProblem.UNCLOSED_TAG]),
        ("<search> </search>", [], [CallProblem.MALFORMED_CALL]),
        ("<think><search>a</search>", [], [CallProblem.OPEN_THINKING]),
        ("<think><search>a</search></think>", [], [CallProblem.CALL_IN_THINKING]),
    ],
)
def test_what_cannot_be_read_is_an_error(text, queries, problems):
    assert read(text)[1:] == (queries, problems)


def test_a_turn_that_begins_inside_of_thinking():
    text = "maybe <search>a</search></think><search>b</search>"
    for starts_open in (False, True):
        assert read(text, starts_open=starts_open) == ("maybe <search>a</search></think>", [["b"]], [])
