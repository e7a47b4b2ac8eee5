"""Tables of cases for the formats with JSON between marks: llama3, mistral, deepseek, kimi."""

from __future__ import annotations

import json

import pytest

F = {"a": 1}
Q = "a \"b\" 'c' \\d </tool_call> ünïcode 🙂\nend"
"""A text with quotes, a backslash, a closing tag, letters beyond ASCII and a line break."""


def js(**arguments):
    return json.dumps(arguments, ensure_ascii=False)


# See `check_case` in conftest.py for what a case holds.

LLAMA_ONE = '{"name": "f", "parameters": {"a": 1}}'
LLAMA3 = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", LLAMA_ONE, "", [("f", F)], [], ""),
    ("tag", f"<|python_tag|>{LLAMA_ONE}", "", [("f", F)], [], ""),
    ("words before", f"I look.\n  {LLAMA_ONE}", "I look.\n  ", [("f", F)], [], ""),
    ("arguments", '{"type": "function", "name": "f", "arguments": {"a": 1}}', "", [("f", F)], [], ""),
    ("arguments as a string", '{"name": "f", "parameters": "{\\"a\\": 1}"}', "", [("f", F)], [], ""),
    ("several", f"{LLAMA_ONE}; {LLAMA_ONE};{LLAMA_ONE}", "", [("f", F)] * 3, [], ""),
    ("several after the tag", f"<|python_tag|>{LLAMA_ONE}\n{LLAMA_ONE} done", " done", [("f", F)] * 2, [], ""),
    ("several lines", f"{LLAMA_ONE}\n{LLAMA_ONE}", "\n", [("f", F)] * 2, [], ""),
    ("empty", '{"name": "f", "parameters": {}}', "", [("f", {})], [], ""),
    (
        "quotes and tags",
        f'{{"name": "f", "parameters": {js(s=Q + "<|python_tag|>")}}}',
        "",
        [("f", {"s": Q + "<|python_tag|>"})],
        [],
        "",
    ),
    ("an answer in JSON", '{"answer": 3}', '{"answer": 3}', [], [], ""),
    ("an answer about names", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', [], [], ""),
    ("calls inside an answer", '{"calls": [\n{"name": "f", "parameters": {}}]}', None, [], [], ""),
    ("a brace in the text", 'so\n{"x" is it}', 'so\n{"x" is it}', [], [], ""),
    ("after words on its line", f"use {LLAMA_ONE}", "use ", [("f", F)], [], ""),
    ("another tool after words", f"use {LLAMA_ONE}".replace('"f"', '"g"'), None, [], [], ""),
    ("broken after words", 'use {"name": "f", "parameters": {"a": }}', "use ", [], ["malformed_json"], "Expecting"),
    ("in other JSON", f'use {{"x": {LLAMA_ONE}}}', f'use {{"x": {LLAMA_ONE}}}', [], [], ""),
    ("no parameters", '{"name": "f"}', "", [], ["not_a_call"], "'parameters' is missing"),
    ("parameters of another kind", '{"name": "f", "parameters": 3}', "", [], ["not_a_call"], "must be an object"),
    ("broken", '{"name": "f", "parameters": {"a": }}', "", [], ["malformed_json"], "Expecting value"),
    ("cut", '{"name": "f", "param', "", [], ["malformed_json"], "Write it as"),
    ("twice", '{"name": "f", "parameters": {"a": 1, "a": 2}} x', " x", [], ["malformed_json"], "'a' occurs twice"),
    ("a built-in tool", '<|python_tag|>brave_search.call(query="x")', "", [], ["not_a_call"], "got 'brave_search"),
    ("nothing after the tag", "<|python_tag|>", "", [], ["not_a_call"], "got ''"),
    ("JSON of another kind after the tag", '<|python_tag|>{"x": 1}', "", [], ["not_a_call"], "'name' is missing"),
    ("good and broken", f'<|python_tag|>{LLAMA_ONE}; {{"name": 3}}', "", [("f", F)], ["not_a_call"], "'name'"),
    ("broken, then a tag", f'{{"name": "g", \n<|python_tag|>{LLAMA_ONE}', "", [("f", F)], ["malformed_json"], ""),
    ("thinking", f"<think>\n{LLAMA_ONE}</think>\n{LLAMA_ONE}", None, [("f", F)], [], ""),
]

MISTRAL = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("list", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", [("f", F)], [], ""),
    ("named", 'I look.[TOOL_CALLS]f[ARGS]{"a": 1}', "I look.", [("f", F)], [], ""),
    ("between the two", '[TOOL_CALLS]f{"a": 1}', "", [("f", F)], [], ""),
    ("with an id", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}', "", [("f", F)], [], ""),
    (
        "several in a list",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}] ok',
        " ok",
        [("f", F), ("g", {})],
        [],
        "",
    ),
    ("several", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", F), ("g", {})], [], ""),
    (
        "quotes and markers",
        f"[TOOL_CALLS]f[ARGS]{js(s=Q + '[TOOL_CALLS]')}",
        "",
        [("f", {"s": Q + "[TOOL_CALLS]"})],
        [],
        "",
    ),
    (
        "quotes and markers in a list",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {js(s=Q + "]")}}}]',
        "",
        [("f", {"s": Q + "]"})],
        [],
        "",
    ),
    ("arguments as a string", '[TOOL_CALLS] [{"name": "f", "arguments": "{\\"a\\": 1}"}]', "", [("f", F)], [], ""),
    (
        "a bad entry keeps its place",
        '[TOOL_CALLS] [{"name": "f"}, {"name": "f", "arguments": {"a": 1}}]',
        "",
        [("f", F)],
        ["not_a_call"],
        "'arguments' is missing",
    ),
    ("empty list", "[TOOL_CALLS] []", "", [], ["not_a_call"], "is empty"),
    ("nothing", "[TOOL_CALLS]", "", [], ["malformed_call"], "got ''"),
    ("no arguments", "[TOOL_CALLS]f", "", [], ["malformed_call"], "got 'f'"),
    ("arguments cut", '[TOOL_CALLS]f[ARGS]{"a', "", [], ["malformed_json"], "Unterminated"),
    ("arguments of another kind", "[TOOL_CALLS]f[ARGS][1]", "", [], ["not_a_call"], "must be a JSON object, got list"),
    ("a broken list", '[TOOL_CALLS] [{"name": "f", ]', "", [], ["malformed_json"], "Write it as [TOOL_CALLS] ["),
    (
        "broken, then good",
        '[TOOL_CALLS]f[ARGS]{oops}[TOOL_CALLS]f[ARGS]{"a": 1}',
        "",
        [("f", F)],
        ["malformed_json"],
        "",
    ),
    ("twice", '[TOOL_CALLS]f[ARGS]{"a": 1, "a": 1}', "", [], ["malformed_json"], "'a' occurs twice"),
    (
        "Magistral's thinking",
        '[THINK][TOOL_CALLS]g[ARGS]{}[/THINK][TOOL_CALLS]f[ARGS]{"a": 1}',
        None,
        [("f", F)],
        [],
        "",
    ),
    ("thinking", '<think>[TOOL_CALLS]g[ARGS]{}</think>[TOOL_CALLS]f[ARGS]{"a": 1}', None, [("f", F)], [], ""),
]

V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def deepseek(one):
    def fill(arguments):
        return one.replace("{}", arguments)

    good = fill('{"a": 1}')
    marked = Q + "<｜tool▁call▁end｜>```"
    return [
        ("none", "Just words.", "Just words.", [], [], ""),
        ("one", f"I look.{BEGIN}{good}{END}", "I look.", [("f", F)], [], ""),
        ("several", f"{BEGIN}{good}\n{good}{END}", "\n", [("f", F)] * 2, [], ""),
        ("no section", good, "", [("f", F)], [], ""),
        ("empty", f"{BEGIN}{fill('{}')}{END}", "", [("f", {})], [], ""),
        ("quotes and markers", f"{BEGIN}{fill(js(s=marked))}{END}", "", [("f", {"s": marked})], [], ""),
        ("no arguments", f"{BEGIN}{fill('')}{END}", "", [], ["malformed_json"], "Expecting value"),
        ("arguments of another kind", f"{BEGIN}{fill('[1]')}{END}", "", [], ["not_a_call"], "must be a JSON object"),
        ("broken, then good", f"{BEGIN}{fill('{oops}')}{good}{END}", "", [("f", F)], ["malformed_json"], "oops"),
        ("text after", f"{BEGIN}{fill('{} x')}{END}", "", [], ["malformed_json"], "unexpected text 'x"),
        ("twice", fill('{"a": 1, "a": 2}') + "!", "!", [], ["malformed_json"], "'a' occurs twice"),
        ("not a number", fill('{"a": NaN}'), "", [], ["malformed_json"], "NaN is not JSON"),
        ("an empty section", f"{BEGIN}{END}!", "!", [], ["malformed_call"], "Write it as"),
        ("an empty section, cut", BEGIN, "", [], ["malformed_call"], "Write it as"),
        ("no head", "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>!", "!", [], ["malformed_call"], "got '{}"),
        ("no head and the next", f"<｜tool▁call▁begin｜>{good}", "", [("f", F)], ["malformed_call"], ""),
        ("unclosed", good.removesuffix("<｜tool▁call▁end｜>"), "", [], ["unclosed_tag"], "is missing"),
        (
            "unclosed and the next",
            good.removesuffix("<｜tool▁call▁end｜>") + good,
            "",
            [("f", F)],
            ["unclosed_tag"],
            "",
        ),
        ("thinking", f"<think>{good}</think>{good}", f"<think>{good}</think>", [("f", F)], [], ""),
    ]


KIMI_BEGIN, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def kimi(arguments, head="functions.f:0"):
    return f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


KIMI_ONE = kimi('{"a": 1}')
KIMI = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", f"I look.{KIMI_BEGIN}{KIMI_ONE}{KIMI_END}", "I look.", [("f", F)], [], ""),
    (
        "several",
        f"{KIMI_BEGIN}{KIMI_ONE}\n{kimi('{}', 'functions.g:1')}{KIMI_END}",
        "\n",
        [("f", F), ("g", {})],
        [],
        "",
    ),
    ("no section", KIMI_ONE, "", [("f", F)], [], ""),
    ("no functions.", kimi("{}", "my.tool:3"), "", [("my.tool", {})], [], ""),
    ("quotes and markers", kimi(js(s=Q + "<|tool_call_end|>")), "", [("f", {"s": Q + "<|tool_call_end|>"})], [], ""),
    ("a bare counter", kimi("{}", "3") + "!", "!", [], ["malformed_call"], "got '3<|tool"),
    ("an empty section", f"{KIMI_BEGIN}{KIMI_END}!", "!", [], ["malformed_call"], "Write it as"),
    ("broken, then good", kimi("{oops}") + KIMI_ONE, "", [("f", F)], ["malformed_json"], "oops"),
    ("no arguments", kimi(""), "", [], ["malformed_json"], "Expecting value"),
    ("arguments of another kind", kimi("[]"), "", [], ["not_a_call"], "must be a JSON object"),
    ("unclosed", KIMI_ONE.removesuffix("<|tool_call_end|>"), "", [], ["unclosed_tag"], "is missing"),
    ("thinking", f"<think>{KIMI_ONE}</think>{KIMI_ONE}", f"<think>{KIMI_ONE}</think>", [("f", F)], [], ""),
]


TABLES = {
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "deepseekv3": deepseek(V3),
    "deepseekv31": deepseek(V31),
    "kimi_k2": KIMI,
}


@pytest.mark.parametrize(
    ("parser", "case"),
    [(name, case) for name, table in TABLES.items() for case in table],
    ids=[f"{name}: {case[0]}" for name, table in TABLES.items() for case in table],
)
def test_table(check_case, parser, case):
    check_case(parser, case)
