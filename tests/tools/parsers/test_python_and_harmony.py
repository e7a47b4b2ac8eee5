"""Tables of cases for Python's call syntax and for gpt-oss."""

from __future__ import annotations

import json

import pytest

F = {"a": 1}
Q = "a \"b\" 'c' \\d </tool_call> ünïcode 🙂\nend"
"""A text with quotes, a backslash, a closing tag, letters beyond ASCII and a line break."""


def js(**arguments):
    return json.dumps(arguments, ensure_ascii=False)


# See `check_case` in conftest.py for what a case holds.

PYTHONIC = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", "[f(a=1)]", "", [("f", F)], [], ""),
    ("several", "[f(a=1), g.h(), f(a=1,)]", "", [("f", F), ("g.h", {}), ("f", F)], [], ""),
    ("Llama 4's markers", "<|python_start|>[f(a=1)]<|python_end|>", "", [("f", F)], [], ""),
    ("no closing marker", "<|python_start|>[f(a=1)]", "", [("f", F)], [], ""),
    ("LFM2's markers", "I look. <|tool_call_start|>[f(a=1)]<|tool_call_end|>.", "I look. .", [("f", F)], [], ""),
    ("words around", "I look:\n [f(a=1)]\nDone", "I look:\n \nDone", [("f", F)], [], ""),
    ("quotes and tags", f"[f(s={Q!r})]", "", [("f", {"s": Q})], [], ""),
    ("a raw line break", '[f(s="a = 1\nb")]', "", [("f", {"s": "a = 1\nb"})], [], ""),
    ("three quotes", '[f(s="""a "b"\nc""")]', "", [("f", {"s": 'a "b"\nc'})], [], ""),
    ("raw and neighbours", r"""[f(s=r"\n" 'x')]""", "", [("f", {"s": "\\nx"})], [], ""),
    (
        "escapes",
        r'[f(s="\x41\u00e9\U0001F642\101\N{BULLET}\d\
")]',
        "",
        [("f", {"s": "Aé🙂A•\\d"})],
        [],
        "",
    ),
    (
        "all kinds",
        "[f(a=[1, -2.5, 1e3, 0x10, 1_000], o={'k': [None, True, False, {}]})]",
        "",
        [("f", {"a": [1, -2.5, 1e3, 16, 1000], "o": {"k": [None, True, False, {}]}})],
        [],
        "",
    ),
    ("after words on its line", "see [1] and [f(a=1)]", "see [1] and ", [("f", {"a": 1})], [], ""),
    ("broken after words", "I use [f(a=)]", "I use ", [], ["malformed_call"], "expected a string"),
    ("another tool in the text", "see [1] and [g(a=1)]", "see [1] and [g(a=1)]", [], [], ""),
    ("a list in the text", "[1, 2]", "[1, 2]", [], [], ""),
    ("a function in the text", "[f(x)] is the bracket", "[f(x)] is the bracket", [], [], ""),
    ("positional", '[f("x")]', "", [], ["malformed_call"], "expected an argument as name=value"),
    ("an expression", "[f(a=1+1)]", "", [], ["malformed_call"], "expected ',', got '+1"),
    ("code", "[f(a=open('x').read())]", "", [], ["malformed_call"], "expected a string, a number"),
    ("a tuple", "[f(a=(1, 2))]", "", [], ["malformed_call"], "expected a string, a number"),
    ("a set", "[f(a={1})]", "", [], ["malformed_call"], "a string as a key"),
    ("JSON's true", "[f(a=true)]", "", [], ["malformed_call"], "True, False, None"),
    ("twice", "[f(a=1, a=2)]", "", [], ["malformed_call"], "'a' occurs twice"),
    ("a key twice", "[f(a={'k': 1, 'k': 2})]", "", [], ["malformed_call"], "'k' occurs twice"),
    ("infinity", "[f(a=1e999)]", "", [], ["malformed_call"], "not a number that can be used"),
    ("complex", "[f(a=1j)]", "", [], ["malformed_call"], "not a number that can be used"),
    ("too many digits", f"[f(a={'1' * 5000})]", "", [], ["malformed_call"], "not a number that can be used"),
    ("deep", f"[f(a={'[' * 300}{']' * 300})]", "", [], ["malformed_call"], "levels deep"),
    ("a bad escape", r'[f(s="\x4")]', "", [], ["malformed_call"], "not an escape sequence"),
    ("an unknown letter", r'[f(s="\N{NO SUCH}")]', "", [], ["malformed_call"], "not an escape sequence"),
    ("no equals", "[f(a=1, b 2)]", "", [], ["malformed_call"], "expected '=' after 'b'"),
    ("cut", '[f(s="abc', "", [], ["malformed_call"], "expected a string"),
    ("cut before a comma", "[f(a=1)", "", [], ["malformed_call"], "but the text ended"),
    ("nothing after the marker", "<|python_start|>", "", [], ["malformed_call"], "expected '['"),
    ("an empty list", "<|python_start|>[]<|python_end|>", "", [], ["malformed_call"], "the list is empty"),
    ("no name", "<|python_start|>[1]<|python_end|>!", "!", [], ["malformed_call"], "expected a tool's name"),
    (
        "text before the marker's end",
        "<|python_start|>[f()] x<|python_end|>",
        "",
        [],
        ["malformed_call"],
        "expected <|python_end|> after the list, got 'x",
    ),
    ("broken, then good", "[f(a=)]\n[f(a=1)]", "", [("f", F)], ["malformed_call"], ""),
    ("thinking", "<think>\n[f(a=2)]</think>\n[f(a=1)]", None, [("f", F)], [], ""),
]

ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


def harmony(arguments, head="<|channel|>commentary to=functions.f <|constrain|>json"):
    return f"{head}<|message|>{arguments}<|call|>"


GPT_ONE = harmony('{"a": 1}')
GPT_OSS = [
    ("plain", "Just words.", "Just words.", [], [], ""),
    ("final", f"{ANALYSIS}<|channel|>final<|message|>Done<|return|>", "Done", [], [], ""),
    ("final without its end", f"{ANALYSIS}<|channel|>final<|message|>Done", "Done", [], [], ""),
    ("one", f"{ANALYSIS}{GPT_ONE}", "", [("f", F)], [], ""),
    ("end taken by the engine", f"{ANALYSIS}{GPT_ONE.removesuffix('<|call|>')}", "", [("f", F)], [], ""),
    ("recipient first", harmony('{"a": 1}', " to=functions.f<|channel|>commentary json"), "", [("f", F)], [], ""),
    (
        "on the analysis channel",
        harmony('{"a": 1}', "<|channel|>analysis to=functions.f <|constrain|>json"),
        "",
        [("f", F)],
        [],
        "",
    ),
    (
        "a tool that is not a function",
        harmony("{}", "<|channel|>commentary to=browser.search"),
        "",
        [("browser.search", {})],
        [],
        "",
    ),
    (
        "preamble",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{GPT_ONE}",
        "I look.",
        [("f", F)],
        [],
        "",
    ),
    ("several", f"{GPT_ONE}<|start|>assistant{GPT_ONE}", "", [("f", F)] * 2, [], ""),
    ("quotes and markers", harmony(js(s=Q + "<|call|><|end|>")), "", [("f", {"s": Q + "<|call|><|end|>"})], [], ""),
    ("words before", f"Well. {GPT_ONE}", "Well. ", [("f", F)], [], ""),
    (
        "words between",
        f"<|channel|>final<|message|>A<|end|> B <|start|>assistant{GPT_ONE}",
        "A\n B ",
        [("f", F)],
        [],
        "",
    ),
    ("empty arguments", harmony(""), "", [], ["malformed_json"], "Expecting value"),
    (
        "a program",
        harmony("print(1)", "<|channel|>analysis to=python code"),
        "",
        [],
        ["malformed_json"],
        "Write the call",
    ),
    ("arguments of another kind", harmony("[1]"), "", [], ["not_a_call"], "must be a JSON object"),
    ("text after", harmony('{"a": 1} x'), "", [], ["malformed_json"], "unexpected text 'x"),
    (
        "broken, then good",
        f"{harmony('{oops}')}<|start|>assistant{GPT_ONE}",
        "",
        [("f", F)],
        ["malformed_json"],
        "oops",
    ),
    ("not a number", harmony('{"a": Infinity}'), "", [], ["malformed_json"], "Infinity is not JSON"),
    ("no message", "<|channel|>commentary to=functions.f", "", [], ["unclosed_tag"], "no <|message|>"),
    ("analysis without its end", f"<|channel|>analysis<|message|>hm{GPT_ONE}", "", [], ["open_thinking"], "<|end|>"),
    (
        "analysis without its end, no call",
        "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Done",
        "Done",
        [],
        [],
        "",
    ),
    (
        "a call in words",
        "<|channel|>analysis<|message|>to=functions.f {}<|end|><|start|>assistant<|channel|>final<|message|>x",
        "x",
        [],
        [],
        "",
    ),
]


TABLES = {"pythonic": PYTHONIC, "gpt_oss": GPT_OSS}


@pytest.mark.parametrize(
    ("parser", "case"),
    [(name, case) for name, table in TABLES.items() for case in table],
    ids=[f"{name}: {case[0]}" for name, table in TABLES.items() for case in table],
)
def test_table(check_case, parser, case):
    check_case(parser, case)
