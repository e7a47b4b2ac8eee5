"""Calls of which one tag is forgotten or misspelt: none may run with other arguments than were written."""

from __future__ import annotations

import random
import re

import pytest

from tests.parameters import first
from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import ToolSchema

KEYS = ("path", "body", "count", "note")
TOOL = ToolSchema(
    "write",
    "",
    {"type": "object", "properties": {key: {"type": "integer" if key == "count" else "string"} for key in KEYS}},
)
VALUES = ("a.txt", "hello\nworld", "<p>Hi <b>you</b></p>", "if a < b > c: pass", "", "x = 1\n\n# <todo>")


def glm(calls, line=""):
    argument = f"<arg_key>{{}}</arg_key>{line}<arg_value>{{}}</arg_value>{line}"
    return "\n".join(
        f"<tool_call>{name}{line}" + "".join(argument.format(*pair) for pair in pairs) + "</tool_call>"
        for name, pairs in calls
    )


def coder(calls, line="\n"):
    argument = f"<parameter={{}}>{line}{{}}{line}</parameter>{line}"
    return "\n".join(
        f"<tool_call>{line}<function={name}>{line}"
        + "".join(argument.format(*pair) for pair in pairs)
        + f"</function>{line}</tool_call>"
        for name, pairs in calls
    )


def hy3(calls):
    names = "tool_call|arg_key|arg_value"
    text = re.sub(rf"<(/?)({names})>", r"<\1\2:opensource>", glm(calls, "\n"))
    text = re.sub(r"(<tool_call:opensource>\w+)", r"\1<tool_sep:opensource>", text)
    return f"<tool_calls:opensource>\n{text}\n</tool_calls:opensource>"


def dsml(calls):
    argument = '<｜DSML｜parameter name="{}" string="true">{}</｜DSML｜parameter>\n'
    inside = "\n".join(
        f'<｜DSML｜invoke name="{name}">\n' + "".join(argument.format(*pair) for pair in pairs) + "</｜DSML｜invoke>"
        for name, pairs in calls
    )
    return f"<｜DSML｜tool_calls>\n{inside}\n</｜DSML｜tool_calls>"


FORMATS = {
    "glm45": lambda calls: glm(calls, "\n"),
    "glm47": glm,
    "qwen3_coder": coder,
    "qwen3_coder in one line": lambda calls: coder(calls, ""),
    "hy3": hy3,
    "deepseekv4": dsml,
}
TAG = re.compile(r"</?(?:｜DSML｜)?(?:tool_call|arg_key|arg_value|function|parameter|invoke|tool_sep)[^<>]*>")


def drawn(random_source):
    calls = []
    for _ in range(random_source.choice((1, 1, 2))):
        keys = random_source.sample(KEYS, random_source.randint(1, len(KEYS)))
        calls.append(("write", [(key, "7" if key == "count" else random_source.choice(VALUES)) for key in keys]))
    return calls


def damaged(random_source, text):
    tag = random_source.choice(list(TAG.finditer(text)))
    letter = random_source.randrange(len(tag[0]))
    changed = random_source.choice(
        (
            "",
            tag[0][:letter] + tag[0][letter + 1 :],
            tag[0][:letter] + "x" + tag[0][letter + 1 :],
            tag[0][:letter] + tag[0][letter : letter + 2][::-1] + tag[0][letter + 2 :],
        )
    )
    return text[: tag.start()] + changed + text[tag.end() :]


def read(name, text):
    return get_parser(name.split(" ")[0])(text, schemas={"write": TOOL})


def arguments(calls, string):
    number = (lambda key, value: value) if string else (lambda key, value: 7 if key == "count" else value)
    return [{key: number(key, value) for key, value in pairs} for _, pairs in calls]


@pytest.mark.parametrize("name", FORMATS)
@first("count", [100, 4000], short=1)
def test_no_damaged_call_runs_with_other_arguments(name, count):
    source = random.Random(f"{name}{count}")
    silent = 0
    for _ in range(count):
        calls = drawn(source)
        whole = FORMATS[name](calls)
        right = arguments(calls, name == "deepseekv4")
        assert [call.arguments for call in read(name, whole).calls] == right
        text = damaged(source, whole)
        turn = read(name, text)
        for call in turn.calls:
            known = call.name != "write" or set(call.arguments) - set(KEYS) or call.arguments in right
            assert known, (text, call.arguments)
        silent += not turn.errors and len(turn.calls) < len(calls)
    assert silent == 0


@pytest.mark.parametrize("name", FORMATS)
def test_values_with_html_and_xml_are_read(name):
    texts = (
        "<html><body><p class='x'>1 < 2</p></body></html>",
        "<config><parameter>a</parameter><item key='1'/></config>",
        "List<Parameter> values = new ArrayList<>(); // Function<Integer>",
        "<svg><path d='M0 0'/></svg><!-- note -->",
        "std::function<void(int)> f; a << b >> c;",
        "<invoice><key>1</key><value>2</value></invoice>",
    )
    for text in texts:
        calls = [("write", [("path", "a.xml"), ("body", text)])]
        turn = read(name, FORMATS[name](calls))
        assert [call.arguments for call in turn.calls] == [{"path": "a.xml", "body": text}], turn.errors
