"""What holds for every parser and any text: nothing raises, nothing is lost, and rendered calls come back equal."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolgym.tools.errors import UnknownNameError
from toolgym.tools.parsers import get_parser, parse_hermes, parser_names
from toolgym.tools.parsers.scan import MAX_REQUESTS
from toolgym.tools.schema import CallProblem, ToolSchema

FORMATS = [
    "search_r1",
    "hermes",
    "qwen3_coder",
    "llama3",
    "pythonic",
    "mistral",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "deepseekv4",
    "glm45",
    "hy3",
    "kimi_k2",
    "minimax_m3",
    "gpt_oss",
]

MARKERS = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "[THINK]", "[/THINK]"],
    *["<function=", "<function=f>", "</function>", "<parameter=a>", "</parameter>"],
    *["<tool_calls:opensource>", "<tool_call:opensource>f", "<tool_sep:opensource>", "</tool_call:opensource>"],
    *["<arg_key:opensource>a</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>"],
    *["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "\nf"],
    *['{"name": "f", "parameters": {}}', '{"name": "f", "arguments": {"a": 1}}', "<|python_tag|>", ";"],
    *["\n[f(", "a=1", ")]", "<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "'''", '"""', "\\x4"],
    *["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f[ARGS]{}"],
    *["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    *["<｜tool▁sep｜>", "function<｜tool▁sep｜>f\n```json\n", "\n```"],
    *["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', "</｜DSML｜invoke>"],
    *['<｜DSML｜parameter name="a" string="false">', "</｜DSML｜parameter>", "<｜DSML｜tool_calls>", "/>"],
    *["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.f:0"],
    *["<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    *["<|start|>assistant", "<|channel|>analysis", "<|channel|>commentary to=functions.f", "<|message|>"],
    *["]<]minimax[>[", "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", ']<]minimax[>[<invoke name="f">'],
    *["]<]minimax[>[</invoke>", "]<]minimax[>[<item>", "]<]minimax[>[</item>"],
    *["<search>", "</search>"],
    *["<|call|>", "<|end|>", "<|return|>", "<|constrain|>json"],
    *[
        '{"a": 1}',
        "{}",
        "[",
        "]",
        "{",
        "}",
        '"',
        "'",
        "\\",
        ",",
        ":",
        "=",
        "(",
        ")",
        "\n",
        " ",
        "1",
        "x",
        "NaN",
        "1e999",
    ],
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(MARKERS), max_size=25).map("".join))
each = pytest.mark.parametrize("name", FORMATS)


@each
@settings(deadline=None)
@given(text=texts, starts_open=st.booleans(), first_id=st.integers(0, 10**6))
def test_no_text_makes_a_parser_raise(name, text, starts_open, first_id):
    parsed = get_parser(name)(text, starts_open=starts_open, first_id=first_id)
    requests = [*parsed.calls, *parsed.errors]
    assert sorted(one.index for one in requests) == list(range(len(requests)))
    assert len({one.id for one in requests}) == len(requests)
    for call in parsed.calls:
        assert call.name
        json.dumps(call.arguments, allow_nan=False)
    for error in parsed.errors:
        assert error.message
        assert error.raw in text
    if not requests and name != "gpt_oss":
        drop = [
            "]<]minimax[>[</tool_call>",
            "<｜tool▁calls▁end｜>",
            "<|tool_calls_section_end|>",
            "</｜DSML｜function_calls>",
            "</｜DSML｜tool_calls>",
        ]
        kept = text
        for marker in drop:
            kept = kept.replace(marker, "")
        said = parsed.content
        for marker in drop:
            said = said.replace(marker, "")
        assert said == kept


names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
# What every format can say: JSON without lone surrogates, and floats that come back as they were.
words = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
json_calls = st.lists(st.tuples(names, st.dictionaries(words, values, max_size=3)), max_size=4)
named_calls = st.lists(st.tuples(names, st.dictionaries(keys, values, max_size=3)), max_size=4)


def js(value):
    return json.dumps(value, ensure_ascii=False)


def render_mistral_list(calls):
    return "[TOOL_CALLS] " + js([{"name": n, "arguments": a} for n, a in calls]) if calls else ""


JSON_RENDERERS = {
    "hermes": lambda calls: "\n".join(
        f"<tool_call>\n{js({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls
    ),
    "llama3": lambda calls: (
        "<|python_tag|>" * bool(calls) + "; ".join(js({"name": n, "parameters": a}) for n, a in calls)
    ),
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{js(a)}" for n, a in calls),
    "deepseekv3": lambda calls: "".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{js(a)}\n```<｜tool▁call▁end｜>" for n, a in calls
    ),
    "deepseekv31": lambda calls: "".join(
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{js(a)}<｜tool▁call▁end｜>" for n, a in calls
    ),
    "kimi_k2": lambda calls: "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{js(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    ),
    "gpt_oss": lambda calls: "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{js(a)}<|call|>" for n, a in calls
    ),
}


def read(name, text, schemas=None):
    parsed = get_parser(name)(text, schemas=schemas)
    assert parsed.errors == []
    return [(call.name, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize("name", [*JSON_RENDERERS, "mistral list"])
@settings(deadline=None)
@given(calls=json_calls)
def test_json_formats_give_back_what_was_rendered(name, calls):
    render = JSON_RENDERERS.get(name, render_mistral_list)
    found = read(name.split()[0], render(calls))
    assert found == calls
    assert js(found) == js([list(call) for call in calls])  # 1, 1.0 and true are not the same


@settings(deadline=None)
@given(calls=named_calls)
def test_the_pythonic_format_gives_back_what_was_rendered(calls):
    inside = ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls)
    text = f"[{inside}]" if calls else ""
    found = read("pythonic", f"<|python_start|>{text}<|python_end|>" if calls else "")
    assert js(found) == js([list(call) for call in calls])
    assert js(read("pythonic", text)) == js(found)


def schemas_of(calls):
    """Schemas that say of each argument whether it is a text."""
    made = {}
    for name, arguments in calls:
        properties = {
            key: {"type": "string" if isinstance(value, str) else ["null", "boolean", "number", "array", "object"]}
            for key, value in arguments.items()
        }
        made[name] = ToolSchema(name, "", {"type": "object", "properties": properties})
    return made


TEXT_RENDERERS = {
    "qwen3_coder": lambda n, a: (
        "<tool_call>\n<function="
        + n
        + ">\n"
        + "".join(
            f"<parameter={k}>\n{js(v) if isinstance(v, list | dict) else v}\n</parameter>\n" for k, v in a.items()
        )
        + "</function>\n</tool_call>"
    ),
    "glm45": lambda n, a: (
        f"<tool_call>{n}\n"
        + "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{v if isinstance(v, str) else js(v)}</arg_value>\n"
            for k, v in a.items()
        )
        + "</tool_call>"
    ),
    "hy3": lambda n, a: (
        f"<tool_calls:opensource>\n<tool_call:opensource>{n}<tool_sep:opensource>\n"
        + "".join(
            f"<arg_key:opensource>{k}</arg_key:opensource>\n"
            f"<arg_value:opensource>{v if isinstance(v, str) else js(v)}</arg_value:opensource>\n"
            for k, v in a.items()
        )
        + "</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "deepseekv32": lambda n, a: (
        f'<｜DSML｜invoke name="{n}">\n'
        + "".join(
            f'<｜DSML｜parameter name="{k}" string="{str(isinstance(v, str)).lower()}">'
            f"{v if isinstance(v, str) else js(v)}</｜DSML｜parameter>\n"
            for k, v in a.items()
        )
        + "</｜DSML｜invoke>"
    ),
}


@pytest.mark.parametrize("name", TEXT_RENDERERS)
@settings(deadline=None)
@given(
    calls=st.lists(st.tuples(names, st.dictionaries(keys, values, max_size=3)), max_size=4, unique_by=lambda c: c[0])
)
def test_text_formats_give_back_what_was_rendered_where_the_schema_tells_the_type(name, calls):
    text = "\n".join(TEXT_RENDERERS[name](n, a) for n, a in calls)
    assert js(read(name, text, schemas_of(calls))) == js([list(call) for call in calls])


OPENINGS = {
    "hermes": ["<tool_call>", '<tool_call>{"a": "'],
    "qwen3_coder": ["<tool_call><function=f><parameter=a>", "</parameter>", "<parameter=a>"],
    "llama3": ['{"a":\n', '{"name":\n', "<|python_tag|>{"],
    "pythonic": ["\n[f(a=", '\n[f(a="', "1,"],
    "mistral": ["[TOOL_CALLS]f", '[TOOL_CALLS]f[ARGS]{"'],
    "deepseekv3": ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"],
    "deepseekv31": ["<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"],
    "deepseekv32": ['<｜DSML｜invoke name="f">', "<｜DSML｜function_calls>"],
    "deepseekv4": ["<｜DSML｜tool_calls>"],
    "glm45": ["<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value>"],
    "hy3": [
        "<tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a</arg_key:opensource><arg_value:opensource>",
        "<tool_calls:opensource>",
    ],
    "kimi_k2": ["<|tool_call_begin|>", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>["],
    "minimax_m3": [']<]minimax[>[<invoke name="f">]<]minimax[>[<a>', "]<]minimax[>[<item>", "]<]minimax[>["],
    "phi4_mini": ["functools[", '{"name": ', '\n{"name": "f", "arguments": ', "<|tool_call|>"],
    "functionary": ["\n>>>f\n", ">>>", "f{", ">>>f "],
    "gpt_oss": ["<|channel|>analysis<|message|>", "<|channel|>commentary to=f<|message|>{"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPENINGS)
def test_a_megabyte_made_to_be_slow_is_read_in_linear_time(name):
    parse = get_parser(name)
    for piece in [*OPENINGS[name], "<think>", "</think>", "<think></think>", " ", "{", "["]:
        text = OPENINGS[name][0] + piece * (1_000_000 // len(piece))
        started = time.process_time()
        parse(text)
        assert time.process_time() - started < 30, piece  # below one second; quadratic time would take minutes


@each
def test_no_more_than_so_many_requests_are_read_of_one_turn(name):
    one = {"hy3": "<tool_call:opensource>f<tool_sep:opensource></tool_call:opensource>"}
    one |= {"glm45": "<tool_call>f\n</tool_call>", "qwen3_coder": "<tool_call><function=f></function></tool_call>"}
    one |= {"minimax_m3": ']<]minimax[>[<invoke name="f">]<]minimax[>[</invoke>'}
    piece = one.get(name) or {
        **JSON_RENDERERS,
        "deepseekv32": lambda calls: TEXT_RENDERERS["deepseekv32"]("f", {}),
        "deepseekv4": lambda calls: TEXT_RENDERERS["deepseekv32"]("f", {}),
        "pythonic": lambda calls: "\n[f()]\n",
        "search_r1": lambda calls: "<search>f</search>",
    }[name]([("f", {})])
    parsed = get_parser(name)(piece * (MAX_REQUESTS + 50))
    assert len(parsed.calls) == MAX_REQUESTS
    assert [error.problem for error in parsed.errors] == [CallProblem.TOO_MANY_CALLS]


def test_no_more_than_so_many_requests_are_read_of_one_list():
    many = [("f", {})] * (MAX_REQUESTS + 1)
    for name, text in (("mistral", render_mistral_list(many)), ("pythonic", f"[{', '.join(['f()'] * len(many))}]")):
        parsed = get_parser(name)(text)
        assert len(parsed.calls) == MAX_REQUESTS
        assert [error.problem for error in parsed.errors] == [CallProblem.TOO_MANY_CALLS]


def test_ids_have_the_form_that_chat_templates_of_the_format_want():
    mistral = get_parser("mistral")
    named = mistral(
        "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]f[CALL_ID]x[ARGS]{}", first_id=7
    )
    assert [call.id for call in named.calls] == ["call00007", "abc123def", "call00009"]
    listed = mistral(
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "f", "id": "abcdefghi"}]'
    )
    assert (listed.calls[0].id, listed.errors[0].id) == ("abcdefghi", "call00001")
    kimi = get_parser("kimi_k2")(JSON_RENDERERS["kimi_k2"]([("f", {}), ("g", {})]), first_id=7)
    assert [call.id for call in kimi.calls] == ["functions.f:0", "functions.g:1"]
    hermes = parse_hermes(JSON_RENDERERS["hermes"]([("f", {})]), first_id=7)
    assert hermes.calls[0].id == "call_7"


def test_parsers_are_found_by_name_and_alias():
    assert get_parser("qwen25") is get_parser("qwen") is get_parser("hermes") is parse_hermes
    assert get_parser("gpt-oss") is get_parser("gpt_oss")
    for name in parser_names():
        assert get_parser(name)("Just words.")[:4] == ("Just words.", "Just words.", [], [])
    with pytest.raises(UnknownNameError, match=r"did you mean 'kimi_k2'\? Known: hermes, .*sglang:NAME"):
        get_parser("kimi")
