"""Tables of cases for the formats with tags around every argument: qwen3_coder, glm, DSML."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import ToolSchema

F = {"a": 1}
Q = "a \"b\" 'c' \\d </tool_call> ünïcode 🙂\nend"
"""A text with quotes, a backslash, a closing tag, letters beyond ASCII and a line break."""

# See `check_case` in conftest.py for what a case holds.

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
    (
        "a pair of its tags",
        coder(s="<parameter>x</parameter>y"),
        "",
        [("f", {"s": "<parameter>x</parameter>y"})],
        [],
        "",
    ),
    ("a closing tag in a value", coder(s="x</parameter>y"), "", [], ["malformed_call"], "cannot tell which"),
    ("a misspelt tag", coder(s="x</paramter>\ny"), "", [], ["malformed_call"], "holds '</paramter'"),
    ("a misspelt opening tag", coder(s="x<paramter=a>\ny"), "", [], ["malformed_call"], "holds '<paramter'"),
    ("HTML and generics", coder(s="<p>List<Parameter> x</p>"), "", [("f", {"s": "<p>List<Parameter> x</p>"})], [], ""),
    (
        "a parameter that the tool has not",
        coder(s="<parameter=z>1</parameter>"),
        "",
        [("f", {"s": "<parameter=z>1</parameter>"})],
        [],
        "",
    ),
    (
        "a misspelt beginning",
        coder(a=1).replace("<tool_call>\n", "<tool_cal>\n"),
        None,
        [],
        ["malformed_call"],
        "between",
    ),
    (
        "a parameter alone",
        "<parameter=a>1</parameter></tool_call>",
        None,
        [],
        ["malformed_call"],
        "outside of a call",
    ),
    ("only the end", "It is done.</tool_call>", "It is done.", [], ["malformed_call"], "outside of a call"),
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
        "cannot tell which",
    ),
    (
        "text between values",
        "<tool_call><function=f><parameter=s>1</parameter> and <parameter=a>2</parameter></function></tool_call>",
        "",
        [],
        ["malformed_call"],
        "cannot tell which",
    ),
    (
        "twice",
        coder(a=1).replace("</function>", "<parameter=a>2</parameter></function>"),
        "",
        [],
        ["malformed_call"],
        "'a' occurs twice",
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
        "text after the function",
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
    ("a closing tag in a value", glm("x</arg_value>y"), "", [], ["malformed_call"], "cannot tell which"),
    ("a misspelt tag", glm("x</arg_valu>y"), "", [], ["malformed_call"], "holds '</arg_valu'"),
    ("a misspelt opening tag", glm("x<arg_ky>y"), "", [], ["malformed_call"], "holds '<arg_ky'"),
    ("HTML", glm("<a href='x'>y</a>"), "", [("f", {"s": "<a href='x'>y</a>"})], [], ""),
    ("a misspelt beginning", GLM_ONE.replace("<tool_call>", "<tool_cal>"), None, [], ["malformed_call"], "outside of"),
    ("only the end", "It is done.</tool_call>", "It is done.", [], ["malformed_call"], "outside of a call"),
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
        "cannot tell which",
    ),
    (
        "twice",
        GLM_ONE.replace("</tool_call>", "<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>"),
        "",
        [],
        ["malformed_call"],
        "'a' occurs twice",
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
        ("twice", INVOKE.format(param("a", 1) * 2), "", [], ["malformed_call"], "'a' occurs twice"),
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


ONE_PARAMETER = ToolSchema("f", "", {"type": "object", "properties": {"s": {"type": "string"}}})


@pytest.mark.parametrize("value", ["x</parameter>y</arg_value>", "</paramter></arg_valu>", "</parameter></arg_value>"])
@pytest.mark.parametrize(("parser", "write"), [("qwen3_coder", lambda text: coder(s=text)), ("glm45", glm)])
def test_tags_in_the_value_of_the_only_parameter_are_data(parser, write, value):
    parsed = get_parser(parser)(write(value), schemas={"f": ONE_PARAMETER})
    assert [call.arguments for call in parsed.calls] == [{"s": value}]


def test_an_error_of_a_damaged_tag_takes_linear_time():
    text = "<tool_call>f<arg_key>s</arg_key><arg_value>" + "</arg_valu><x>" * 20_000
    assert get_parser("glm45")(text).errors


TABLES = {
    "qwen3_coder": QWEN3_CODER,
    "glm45": GLM,
    "deepseekv32": dsml("function_calls"),
    "deepseekv4": dsml("tool_calls"),
}


@pytest.mark.parametrize(
    ("parser", "case"),
    [(name, case) for name, table in TABLES.items() for case in table],
    ids=[f"{name}: {case[0]}" for name, table in TABLES.items() for case in table],
)
def test_table(check_case, parser, case):
    check_case(parser, case)
