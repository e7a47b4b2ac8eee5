"""Tables of cases for functionary 3.2 and Phi-4-mini."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser

F = {"a": 1}
PHI_ONE = '{"name": "f", "arguments": {"a": 1}}'

# See `check_case` in conftest.py for what a case holds.

FUNCTIONARY = [
    ("none", "all\nJust words.", "Just words.", [], [], ""),
    ("no recipient", "Just words.\n>>> 1 + 1\n2", "Just words.\n>>> 1 + 1\n2", [], [], ""),
    ("one", 'f\n{"a": 1}', "", [("f", F)], [], ""),
    ("with its mark", '>>>f\n{"a": 1}', "", [("f", F)], [], ""),
    ("several after words", 'all\nI look.>>>f\n{"a": 1}>>>f\n{}', "I look.", [("f", F), ("f", {})], [], ""),
    ("a mark in a string", 'f\n{"s": ">>>f\\n{}"}', "", [("f", {"s": ">>>f\n{}"})], [], ""),
    ("a mark in words", "all\nType >>>help\nNow.", "Type >>>help\nNow.", [], [], ""),
    ("another tool", 'g\n{"a": 1}', "", [("g", F)], [], ""),
    ("text after", 'f\n{"a": 1} Done', "", [], ["malformed_json"], "expected >>>"),
    ("a program", ">>>f\nprint(1)", "", [], ["malformed_json"], "Write it as >>>tool"),
    ("a list", "f\n[1]", "", [], ["malformed_call"], "a JSON object"),
    ("cut", 'all\nI look.>>>f\n{"a": ', "I look.", [], ["malformed_json"], ""),
    ("cut in the mark's line", "all\nI look.>>>f", "I look.", [], ["malformed_call"], "before the arguments"),
    ("a short mark", 'all\nI look.\n>>f\n{"a": 1}', "I look.\n", [], ["malformed_call"], "does not follow >>>"),
    ("no mark", 'all\nI look.f\n{"a": 1}', "I look.", [], ["malformed_call"], "does not follow >>>"),
    ("no line break", 'f{"a": 1}', "", [], ["malformed_call"], "a line break"),
    ("broken, then good", "f\n{oops>>>f\n{}", "", [("f", {})], ["malformed_json"], ""),
    ("a thought", '<think>f\n{"a": 1}</think>Done', '<think>f\n{"a": 1}</think>Done', [], [], ""),
]
PHI = [
    ("none", "Use functools and [brackets].", "Use functools and [brackets].", [], [], ""),
    ("one", f"functools[{PHI_ONE}]", "", [("f", F)], [], ""),
    ("several, words around", f"I look. functools[{PHI_ONE}, {PHI_ONE}] x", "I look.  x", [("f", F)] * 2, [], ""),
    ("tags", f"<|tool_call|>[{PHI_ONE}]<|/tool_call|>", "", [("f", F)], [], ""),
    ("tags and the word", f"<|tool_call|>functools[{PHI_ONE}]<|/tool_call|>", "", [("f", F)], [], ""),
    ("parameters", 'functools[{"name": "f", "parameters": {"a": 1}}]', "", [("f", F)], [], ""),
    ("keys in another order", 'functools[{"arguments": {"a": 1}, "name": "f"}]', "", [("f", F)], [], ""),
    ("as the template writes", '{"name": "f", "arguments": {\'a\': 1}},\n' + PHI_ONE, "", [("f", F)] * 2, [], ""),
    ("a tag in a string", 'functools[{"name": "f", "arguments": {"s": "]}"}}]', "", [("f", {"s": "]}"})], [], ""),
    ("JSON in words", 'It is {"name": "Ann"}.', 'It is {"name": "Ann"}.', [], [], ""),
    ("JSON on its line", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', [], [], ""),
    ("an empty list", "functools[]", "", [], ["malformed_call"], "the list of calls is empty"),
    ("no bracket", f"functools{PHI_ONE}]", "", [], ["malformed_call"], "expected a list"),
    ("no word", f"I look: [{PHI_ONE}]", "I look: [", [], ["malformed_call"], "does not follow functools"),
    ("not closed", f"functools[{PHI_ONE}", "", [], ["malformed_call"], "expected ',' or ']'"),
    ("no closing tag", f"<|tool_call|>[{PHI_ONE}]", "", [], ["unclosed_tag"], "<|/tool_call|>"),
    ("no opening tag", f"\n[{PHI_ONE}]<|/tool_call|>", None, [], ["malformed_call"], "Write it as functools["),
    ("an expression", 'functools[{"name": "f", "arguments": {"a": 1+1}}]', "", [], ["malformed_call"], "not valid"),
    ("no name", 'functools[{"arguments": {}}]', "", [], ["not_a_call"], "'name' is missing"),
    ("cut", "I look.\nfunctool", "I look.\n", [], ["unclosed_tag"], "Send the whole call again"),
]
TABLES = {"functionary": FUNCTIONARY, "phi4_mini": PHI}


@pytest.mark.parametrize(
    ("parser", "case"),
    [(name, case) for name, table in TABLES.items() for case in table],
    ids=[f"{name}: {case[0]}" for name, table in TABLES.items() for case in table],
)
def test_table(check_case, parser, case):
    check_case(parser, case)


def test_the_words_of_a_phi_call_are_not_a_call_without_its_tool():
    text = f"It writes {PHI_ONE}."
    assert get_parser("phi4_mini")(text).content == text
