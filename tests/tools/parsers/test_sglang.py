"""SGLang's own parsers behind our contract, where SGLang is installed."""

from __future__ import annotations

import sys

import pytest

from toolgym.tools.errors import ConfigError, MissingExtraError, UnknownNameError
from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import CallProblem, ToolSchema

SCHEMAS = {
    "f": ToolSchema("f", "", {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}),
    "g": ToolSchema("g"),
}


def test_without_sglang_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(MissingExtraError, match=r"sglang:qwen25.*\[sglang\]"):
        get_parser("sglang:qwen25")


@pytest.fixture
def detectors():
    return pytest.importorskip("sglang.srt.function_call.function_call_parser", exc_type=ImportError)


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen25", 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("hermes", 'I look.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        ("qwen3_coder", "I look.<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "I look.<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ("mistral", 'I look.[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'),
        ("mistral", 'I look.[TOOL_CALLS]f[ARGS]{"a": 1}'),
        ("llama3", 'I look.<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
        ("pythonic", "I look.\n[f(a=1)]"),
        (
            "deepseekv3",
            'I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseekv31",
            'I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜>",
        ),
        (
            "deepseekv32",
            'I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="a" string="false">1'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        (
            "kimi_k2",
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ),
    ],
)
def test_both_read_the_same_from_a_well_formed_turn(detectors, name, text):
    theirs = get_parser(f"sglang:{name}")(text, schemas=SCHEMAS, first_id=3)
    ours = get_parser(name)(text, schemas=SCHEMAS, first_id=3)
    assert [(call.name, call.arguments) for call in theirs.calls] == [("f", {"a": 1})]
    assert theirs.calls[0].id == "call_3"
    assert [(call.name, call.arguments) for call in ours.calls] == [("f", {"a": 1})]
    assert theirs.content.strip() == ours.content.strip() == "I look."
    assert theirs.errors == ours.errors == []


@pytest.mark.sglang
def test_a_turn_with_no_readable_call_is_an_error_not_the_end(detectors):
    parse = get_parser("sglang:qwen25")
    for text in (
        '<tool_call>\n{"name": "f", oops}\n</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    ):
        parsed = parse(text, schemas=SCHEMAS)
        assert parsed.calls == []
        assert [error.problem for error in parsed.errors] == [CallProblem.MALFORMED_CALL]
        assert "one of the tools: f, g" in parsed.errors[0].message


@pytest.mark.sglang
def test_a_detector_that_fails_on_a_text_is_an_error_that_the_model_reads(detectors):
    parsed = get_parser("sglang:hermes")('<tool_call>"words"</tool_call>', schemas=SCHEMAS)
    assert len(parsed.errors) == 1
    assert parsed.calls == []


@pytest.mark.sglang
def test_thinking_is_split_off_first(detectors):
    parse = get_parser("sglang:qwen25")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    closed = parse(f"<think>{call}</think>Done", schemas=SCHEMAS)
    assert (closed.content, closed.calls, closed.errors) == (f"<think>{call}</think>Done", [], [])
    begun = parse(f"{call}</think>\n{call}", schemas=SCHEMAS, starts_open=True)
    assert len(begun.calls) == 1
    never = parse(f"<think>{call}", schemas=SCHEMAS)
    assert [error.problem for error in never.errors] == [CallProblem.OPEN_THINKING]


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("name", "opens", "closes", "call"),
    [
        ("gemma4", "<|channel>thought\n", "<channel|>", "<|tool_call>call:f{a:1}<tool_call|>"),
        ("mistral", "[THINK]", "[/THINK]", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
        (
            "cohere_command4",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>',
        ),
    ],
)
def test_calls_of_thoughts_in_tags_of_any_model_are_not_run(detectors, name, opens, closes, call):
    parse = get_parser(f"sglang:{name}")
    assert [request.arguments for request in parse(call, schemas=SCHEMAS).calls] == [{"a": 1}]
    thought = parse(f"{opens}I may write {call}{closes}It is 4.", schemas=SCHEMAS)
    assert (thought.calls, thought.errors, thought.open_thinking) == ([], [], False)
    begun = parse(f"I may write {call}{closes}It is 4.", schemas=SCHEMAS, starts_open=True)
    assert (begun.calls, begun.errors) == ([], [])
    after = parse(f"{opens}Hm.{closes}{call}", schemas=SCHEMAS)
    assert [request.arguments for request in after.calls] == [{"a": 1}]
    never = parse(f"{opens}{call}", schemas=SCHEMAS)
    assert never.open_thinking
    assert [error.problem for error in never.errors] == [CallProblem.OPEN_THINKING]


@pytest.mark.sglang
def test_every_name_of_sglang_can_be_had_or_says_why_not(detectors):
    names = list(detectors.FunctionCallParser.ToolCallParserEnum)
    had = []
    for name in names:
        try:
            parse = get_parser(f"sglang:{name}")
        except ConfigError as error:
            assert "from its name alone" in str(error)  # noqa: PT017  some do raise, most do not
            continue
        had.append(name)
        parsed = parse("Just words.", schemas=SCHEMAS)
        assert (parsed.content, parsed.calls, parsed.errors) == ("Just words.", [], []), name
    assert len(had) > 20


@pytest.mark.sglang
def test_mistakes_of_the_user_are_named(detectors):
    with pytest.raises(UnknownNameError, match=r"did you mean 'qwen25'\? It has: "):
        get_parser("sglang:qwen2")
    with pytest.raises(ConfigError, match="pass schemas="):
        get_parser("sglang:qwen25")("text")
