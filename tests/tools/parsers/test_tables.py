"""One table of cases for each format: what is a call, what is none, and what the model is told."""

from __future__ import annotations

import json

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import ToolSchema

F = {"a": 1}
Q = "a \"b\" 'c' \\d </tool_call> ünïcode 🙂\nend"
"""A text with quotes, a backslash, a closing tag, letters beyond ASCII and a line break."""


def js(**arguments):
    return json.dumps(arguments, ensure_ascii=False)


SCHEMAS = {
    "f": ToolSchema(
        "f",
        "",
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "s": {"type": "string"},
                "o": {"type": "object"},
                "b": {"type": "boolean"},
            },
        },
    )
}

# Each case: its name, the text, content, calls as (name, arguments), problems of errors, a word of the first error.
# Content None: not looked at.

QWEN = "<tool_call>\n<function=f>\n{}</function>\n</tool_call>"


def coder(**values):
    return QWEN.format("".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items()))


QWEN3_CODER = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", f"I look.\n{coder(a=1)}", "I look.\n", [("f", F)], [], ""),
    ("several", coder(a=1) + " and " + coder(s="x"), " and ", [("f", F), ("f", {"s": "x"})], [], ""),
    ("empty", QWEN.format(""), "", [("f", {})], [], ""),
    ("text is text", coder(s="5"), "", [("f", {"s": "5"})], [], ""),
    ("quotes and tags", coder(s=Q), "", [("f", {"s": Q})], [], ""),
    ("only one line break is cut", coder(s="\n x \n"), "", [("f", {"s": "\n x \n"})], [], ""),
    (
        "no line breaks",
        "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
        "",
        [("f", {"s": "x"})],
        [],
        "",
    ),
    ("object", coder(o='{"k": [1, null]}'), "", [("f", {"o": {"k": [1, None]}})], [], ""),
    ("Python's True", coder(b="True"), "", [("f", {"b": True})], [], ""),
    ("what is no integer stays text", coder(a="one"), "", [("f", {"a": "one"})], [], ""),
    ("a closing tag in a value", coder(s="x</parameter>y"), "", [("f", {"s": "x</parameter>y"})], [], ""),
    (
        "two functions in one tag",
        "<tool_call><function=f></function><function=g></function></tool_call>",
        "",
        [("f", {}), ("g", {})],
        [],
        "",
    ),
    ("unknown tool keeps text", coder(a=1).replace("=f>", "=g>"), "", [("g", {"a": "1"})], [], ""),
    (
        "no closing tag of a value",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        "",
        [],
        ["malformed_call"],
        "no closing </parameter>",
    ),
    (
        "a value that swallowed the next",
        "<tool_call><function=f><parameter=s>\n1\n<parameter=a>\n2\n</parameter></function></tool_call>",
        "",
        [],
        ["malformed_call"],
        "cannot be told apart",
    ),
    (
        "text between values",
        "<tool_call><function=f><parameter=s>1</parameter> and <parameter=a>2</parameter></function></tool_call>",
        "",
        [],
        ["malformed_call"],
        "cannot be told apart",
    ),
    (
        "twice",
        coder(a=1).replace("</function>", "<parameter=a>2</parameter></function>"),
        "",
        [],
        ["malformed_call"],
        "'a' stands twice",
    ),
    (
        "no function",
        "<tool_call>hello</tool_call>!",
        "!",
        [],
        ["malformed_call"],
        "expected <function=...>, got 'hello",
    ),
    ("JSON", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [], ["malformed_call"], "<function=tool>"),
    (
        "text in the function",
        "<tool_call><function=f>x</function></tool_call>",
        "",
        [],
        ["malformed_call"],
        "expected <parameter=...> or </function>, got 'x",
    ),
    (
        "text behind the function",
        "<tool_call><function=f></function>x</tool_call>",
        "",
        [],
        ["malformed_call"],
        "expected </tool_call>, got 'x",
    ),
    ("no tool_call", "<function=f>\n</function>", None, [], ["malformed_call"], "must stand between <tool_call>"),
    ("unclosed", coder(a=1).removesuffix("</tool_call>"), "", [], ["unclosed_tag"], "closing </tool_call> is missing"),
    (
        "cut in a value",
        "<tool_call>\n<function=f>\n<parameter=s>\nabc",
        "",
        [],
        ["unclosed_tag"],
        "Send the whole call",
    ),
    ("unclosed and the next", "<tool_call>\n<function=f>\n" + coder(a=1), "", [("f", F)], ["unclosed_tag"], ""),
    ("thinking", f"<think>{coder(a=2)}</think>{coder(a=1)}", f"<think>{coder(a=2)}</think>", [("f", F)], [], ""),
]

GLM_ONE = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


def glm(value, key="s"):
    return GLM_ONE.replace(">a<", f">{key}<").replace(">1<", f">{value}<")


GLM = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", f"I look.\n{GLM_ONE}", "I look.\n", [("f", F)], [], ""),
    ("several", f"{GLM_ONE}\n{glm('x')}", "\n", [("f", F), ("f", {"s": "x"})], [], ""),
    ("on one line", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "", [("f", F)], [], ""),
    ("empty", "<tool_call>f\n</tool_call>", "", [("f", {})], [], ""),
    ("empty on one line", "<tool_call>f</tool_call>", "", [("f", {})], [], ""),
    ("text is text", glm("5"), "", [("f", {"s": "5"})], [], ""),
    ("quotes and tags", glm(Q), "", [("f", {"s": Q})], [], ""),
    ("white space is data", glm(" x\n"), "", [("f", {"s": " x\n"})], [], ""),
    ("object", glm('{"k": [1]}', "o"), "", [("f", {"o": {"k": [1]}})], [], ""),
    ("boolean", glm("false", "b"), "", [("f", {"b": False})], [], ""),
    ("a closing tag in a value", glm("x</arg_value>y"), "", [("f", {"s": "x</arg_value>y"})], [], ""),
    (
        "no closing tag of a value",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>",
        "",
        [],
        ["malformed_call"],
        "no closing </arg_value>",
    ),
    (
        "a value that swallowed the next",
        "<tool_call>f<arg_key>s</arg_key><arg_value>1\n<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
        "",
        [],
        ["malformed_call"],
        "cannot be told apart",
    ),
    (
        "twice",
        GLM_ONE.replace("</tool_call>", "<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>"),
        "",
        [],
        ["malformed_call"],
        "'a' stands twice",
    ),
    (
        "JSON",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "",
        [],
        ["malformed_call"],
        "expected a tool's name",
    ),
    ("no name", "<tool_call>\n</tool_call>", "", [], ["malformed_call"], "expected a tool's name"),
    (
        "a key without a value",
        "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>",
        "",
        [],
        ["malformed_call"],
        "expected <arg_key>",
    ),
    ("unclosed", GLM_ONE.removesuffix("</tool_call>"), "", [], ["unclosed_tag"], "closing </tool_call> is missing"),
    ("unclosed and the next", f"<tool_call>f\n{GLM_ONE}", "", [("f", F)], ["unclosed_tag"], ""),
    ("thinking", f"<think>{glm('no')}</think>\n{GLM_ONE}", f"<think>{glm('no')}</think>\n", [("f", F)], [], ""),
]

LLAMA_ONE = '{"name": "f", "parameters": {"a": 1}}'
LLAMA3 = [
    ("none", "Just words.", "Just words.", [], [], ""),
    ("one", LLAMA_ONE, "", [("f", F)], [], ""),
    ("tag", f"<|python_tag|>{LLAMA_ONE}", "", [("f", F)], [], ""),
    ("words before", f"I look.\n  {LLAMA_ONE}", "I look.\n  ", [("f", F)], [], ""),
    ("arguments", '{"type": "function", "name": "f", "arguments": {"a": 1}}', "", [("f", F)], [], ""),
    ("arguments as a string", '{"name": "f", "parameters": "{\\"a\\": 1}"}', "", [("f", F)], [], ""),
    ("several", f"{LLAMA_ONE}; {LLAMA_ONE};{LLAMA_ONE}", "", [("f", F)] * 3, [], ""),
    ("several behind the tag", f"<|python_tag|>{LLAMA_ONE}\n{LLAMA_ONE} done", " done", [("f", F)] * 2, [], ""),
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
    ("in the middle of a line", f"use {LLAMA_ONE}", f"use {LLAMA_ONE}", [], [], ""),
    ("no parameters", '{"name": "f"}', "", [], ["not_a_call"], "'parameters' is missing"),
    ("parameters of another kind", '{"name": "f", "parameters": 3}', "", [], ["not_a_call"], "must be an object"),
    ("broken", '{"name": "f", "parameters": {"a": }}', "", [], ["malformed_json"], "Expecting value"),
    ("cut", '{"name": "f", "param', "", [], ["malformed_json"], "Write it as"),
    ("twice", '{"name": "f", "parameters": {"a": 1, "a": 2}} x', " x", [], ["malformed_json"], "'a' stands twice"),
    ("a built-in tool", '<|python_tag|>brave_search.call(query="x")', "", [], ["not_a_call"], "got 'brave_search"),
    ("nothing behind the tag", "<|python_tag|>", "", [], ["not_a_call"], "got ''"),
    ("JSON of another kind behind the tag", '<|python_tag|>{"x": 1}', "", [], ["not_a_call"], "'name' is missing"),
    ("good and broken", f'<|python_tag|>{LLAMA_ONE}; {{"name": 3}}', "", [("f", F)], ["not_a_call"], "'name'"),
    ("broken, then a tag", f'{{"name": "g", \n<|python_tag|>{LLAMA_ONE}', "", [("f", F)], ["malformed_json"], ""),
    ("thinking", f"<think>\n{LLAMA_ONE}</think>\n{LLAMA_ONE}", None, [("f", F)], [], ""),
]

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
    ("brackets in the text", "see [1] and [f(a=1)]", "see [1] and [f(a=1)]", [], [], ""),
    ("a list in the text", "[1, 2]", "[1, 2]", [], [], ""),
    ("a function in the text", "[f(x)] is the bracket", "[f(x)] is the bracket", [], [], ""),
    ("positional", '[f("x")]', "", [], ["malformed_call"], "expected an argument as name=value"),
    ("an expression", "[f(a=1+1)]", "", [], ["malformed_call"], "expected ',', got '+1"),
    ("code", "[f(a=open('x').read())]", "", [], ["malformed_call"], "expected a string, a number"),
    ("a tuple", "[f(a=(1, 2))]", "", [], ["malformed_call"], "expected a string, a number"),
    ("a set", "[f(a={1})]", "", [], ["malformed_call"], "a string as a key"),
    ("JSON's true", "[f(a=true)]", "", [], ["malformed_call"], "True, False, None"),
    ("twice", "[f(a=1, a=2)]", "", [], ["malformed_call"], "'a' stands twice"),
    ("a key twice", "[f(a={'k': 1, 'k': 2})]", "", [], ["malformed_call"], "'k' stands twice"),
    ("infinity", "[f(a=1e999)]", "", [], ["malformed_call"], "not a number that can be used"),
    ("complex", "[f(a=1j)]", "", [], ["malformed_call"], "not a number that can be used"),
    ("too many digits", f"[f(a={'1' * 5000})]", "", [], ["malformed_call"], "not a number that can be used"),
    ("deep", f"[f(a={'[' * 300}{']' * 300})]", "", [], ["malformed_call"], "levels deep"),
    ("a bad escape", r'[f(s="\x4")]', "", [], ["malformed_call"], "no escape sequence"),
    ("an unknown letter", r'[f(s="\N{NO SUCH}")]', "", [], ["malformed_call"], "no escape sequence"),
    ("no equals", "[f(a=1, b 2)]", "", [], ["malformed_call"], "expected '=' behind 'b'"),
    ("cut", '[f(s="abc', "", [], ["malformed_call"], "expected a string"),
    ("cut before a comma", "[f(a=1)", "", [], ["malformed_call"], "but the text ended"),
    ("nothing behind the marker", "<|python_start|>", "", [], ["malformed_call"], "expected '['"),
    ("an empty list", "<|python_start|>[]<|python_end|>", "", [], ["malformed_call"], "the list is empty"),
    ("no name", "<|python_start|>[1]<|python_end|>!", "!", [], ["malformed_call"], "expected a tool's name"),
    (
        "text before the marker's end",
        "<|python_start|>[f()] x<|python_end|>",
        "",
        [],
        ["malformed_call"],
        "expected <|python_end|> behind the list, got 'x",
    ),
    ("broken, then good", "[f(a=)]\n[f(a=1)]", "", [("f", F)], ["malformed_call"], ""),
    ("thinking", "<think>\n[f(a=2)]</think>\n[f(a=1)]", None, [("f", F)], [], ""),
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
    ("twice", '[TOOL_CALLS]f[ARGS]{"a": 1, "a": 1}', "", [], ["malformed_json"], "'a' stands twice"),
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
        ("text behind", f"{BEGIN}{fill('{} x')}{END}", "", [], ["malformed_json"], "unexpected text 'x"),
        ("twice", fill('{"a": 1, "a": 2}') + "!", "!", [], ["malformed_json"], "'a' stands twice"),
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


INVOKE = '<｜DSML｜invoke name="f">\n{}\n</｜DSML｜invoke>'


def param(key, value, string="true"):
    return f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'


def dsml(block):
    begin, end = f"<｜DSML｜{block}>", f"</｜DSML｜{block}>"
    good = INVOKE.format(param("a", 1, "false"))
    return [
        ("none", "Just words.", "Just words.", [], [], ""),
        ("one", f"I look.{begin}{good}{end}", "I look.", [("f", F)], [], ""),
        ("several", f"{begin}{good}\n{good}{end}", "\n", [("f", F)] * 2, [], ""),
        ("no block", good, "", [("f", F)], [], ""),
        ("text as it is", INVOKE.format(param("s", " 5 \n")), "", [("f", {"s": " 5 \n"})], [], ""),
        ("quotes and tags", INVOKE.format(param("s", Q)), "", [("f", {"s": Q})], [], ""),
        (
            "JSON for the value",
            INVOKE.format(param("o", '{"k": null}', "false")),
            "",
            [("f", {"o": {"k": None}})],
            [],
            "",
        ),
        ("JSON for all", INVOKE.format('{"a": 1}'), "", [("f", F)], [], ""),
        ("empty", INVOKE.format(""), "", [("f", {})], [], ""),
        ("closed at once", '<｜DSML｜invoke name="f"/>', "", [("f", {})], [], ""),
        ("not JSON", INVOKE.format(param("a", "one", "false")), "", [], ["malformed_call"], "is not JSON"),
        ("not JSON for all", INVOKE.format('{"a": }'), "", [], ["malformed_call"], "not valid JSON"),
        ("twice", INVOKE.format(param("a", 1) * 2), "", [], ["malformed_call"], "'a' stands twice"),
        ("a tag in a value", INVOKE.format(param("s", "<｜DSML｜x>")), "", [], ["malformed_call"], "holds another"),
        (
            "no string=",
            INVOKE.format(param("s", "x").replace(' string="true"', "")),
            "",
            [],
            ["malformed_call"],
            "expected a parameter or",
        ),
        ("no name", "<｜DSML｜invoke>\n</｜DSML｜invoke>!", "!", [], ["malformed_call"], 'expected name="tool">'),
        ("an empty block", f"{begin}\n{end}!", "!", [], ["malformed_call"], "no <｜DSML｜invoke"),
        (
            "unclosed value",
            '<｜DSML｜invoke name="f"><｜DSML｜parameter name="s" string="true">x',
            "",
            [],
            ["unclosed_tag"],
            "is missing",
        ),
        ("unclosed", good.removesuffix("</｜DSML｜invoke>"), "", [], ["unclosed_tag"], "is missing"),
        ("unclosed and the next", good.removesuffix("</｜DSML｜invoke>") + good, "", [("f", F)], ["unclosed_tag"], ""),
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
    ("text behind", harmony('{"a": 1} x'), "", [], ["malformed_json"], "unexpected text 'x"),
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

TABLES = {
    "qwen3_coder": QWEN3_CODER,
    "glm45": GLM,
    "llama3": LLAMA3,
    "pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "deepseekv3": deepseek(V3),
    "deepseekv31": deepseek(V31),
    "deepseekv32": dsml("function_calls"),
    "deepseekv4": dsml("tool_calls"),
    "kimi_k2": KIMI,
    "gpt_oss": GPT_OSS,
}


@pytest.mark.parametrize(
    ("parser", "case"),
    [(name, case) for name, table in TABLES.items() for case in table],
    ids=[f"{name}: {case[0]}" for name, table in TABLES.items() for case in table],
)
def test_table(parser, case):
    _, text, content, calls, problems, said = case
    parsed = get_parser(parser)(text, schemas=SCHEMAS)
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert [str(error.problem) for error in parsed.errors] == problems
    if content is not None:
        assert parsed.content == content
    if said:
        assert said in parsed.errors[0].message
    indices = [one.index for one in (*parsed.calls, *parsed.errors)]
    assert sorted(indices) == list(range(len(indices)))
    ids = [one.id for one in (*parsed.calls, *parsed.errors)]
    assert len(set(ids)) == len(ids)
