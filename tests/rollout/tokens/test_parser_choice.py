"""The choice of a parser: the one that reads back the calls which a chat template renders."""

from __future__ import annotations

import pytest

from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer, check_template
from toolgym.tools.errors import TemplateError
from toolgym.tools.parsers import get_parser, parser_for_template
from toolgym.tools.schema import ToolSchema

LOOK = ToolSchema("look", "Look.", {"type": "object", "properties": {"x": {"type": "string"}}})

FRAME = """\
{%- set bar = '|' -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{%- if m.content %}: {{ m.content }}{% endif -%}
{%- if m.tool_calls %}CALLS{% endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{%- endif -%}
"""


def template(calls):
    return FRAME.replace("CALLS", calls)


def chosen(calls, tools=(LOOK,)):
    return ChatRenderer(byte_tokenizer(template(calls)), list(tools))


TAGS_FROM_A_VARIABLE = """
{%- set d = '｜DSML｜' -%}
{{ '\\n\\n<' + d + 'tool_calls>\\n' }}
{%- for k in m.tool_calls -%}
{{ '<' + d + 'invoke name="' + k.function.name + '">\\n' }}
{%- for n, v in k.function.arguments.items() -%}
{{ '<' + d + 'parameter name="' + n + '" string="' + ('true' if v is string else 'false') + '">' }}
{{- v if v is string else v | tojson }}{{ '</' + d + 'parameter>\\n' }}
{%- endfor -%}
{{ '</' + d + 'invoke>\\n' }}
{%- endfor -%}
{{ '</' + d + 'tool_calls>' }}"""

HERMES_BUILT = """
{%- for k in m.tool_calls -%}
{{ '\\n<' + 'tool_call>\\n' + ({'name': k.function.name, 'argu' + 'ments': k.function.arguments} | tojson) }}
{{- '\\n</' + 'tool_call>' }}
{%- endfor -%}"""


@pytest.mark.parametrize(
    ("calls", "name"), [(TAGS_FROM_A_VARIABLE, "deepseekv4"), (HERMES_BUILT, "hermes")], ids=["dsml", "hermes"]
)
def test_a_template_that_builds_its_tags_gets_the_parser_that_reads_them(calls, name):
    assert parser_for_template(template(calls)) is None
    renderer = chosen(calls)
    assert renderer.parser is get_parser(name)
    assert renderer.parser_proof.name == name
    assert renderer.parser_proof.proven
    assert renderer.parser_proof.unread == ()


def test_marks_in_the_instructions_do_not_choose_a_parser_that_cannot_read_the_calls():
    calls = "{# [TOOL_CALLS] #}{% for k in m.tool_calls %}{{ k.function.arguments.values() | list }}{% endfor %}"
    assert parser_for_template(template(calls)) == "mistral"
    renderer = chosen(calls)
    assert renderer.parser is None
    with pytest.raises(TemplateError, match=r"no parser reads back the calls .*red fox.*look.*could not"):
        renderer.require_parser()


def test_values_that_the_template_cannot_write_are_named():
    calls = """<|tool_call_start|>[
    {%- for k in m.tool_calls -%}{{ k.function.name }}(
    {%- for n, v in k.function.arguments.items() -%}
    {{ n }}={{ '"' + v + '"' if v is string else v }}{{ ', ' if not loop.last }}
    {%- endfor -%}){{ ', ' if not loop.last }}{%- endfor -%}]<|tool_call_end|>"""
    proof = chosen(calls).parser_proof
    assert proof.name == "lfm2"
    assert proof.unread == ("quotes",)


def test_a_template_without_calls_keeps_the_parser_of_its_marks():
    proof = chosen("{# [TOOL_CALLS] #}").parser_proof
    assert (proof.name, proof.proven) == ("mistral", False)


def test_a_template_that_refuses_the_probes_keeps_the_parser_of_its_marks():
    calls = "{% for k in m.tool_calls %}[TOOL_CALLS]{{ k.function.name }}[ARGS]"
    calls += "{{ k.function.arguments | tojson }}{% endfor %}"
    refusal = "{% for t in tools or [] if t.function.name == 'probe_tool' %}{{ raise_exception('No.') }}{% endfor %}"
    renderer = ChatRenderer(byte_tokenizer(refusal + template(calls)), [LOOK])
    assert renderer.parser is get_parser("mistral")
    assert not renderer.parser_proof.proven


IDS_IN_HISTORY = """
<|calls|>[{%- for k in m.tool_calls -%}
{"name": "{{ k.function.name }}", "arguments": {{ k.function.arguments | tojson }}
{%- if not last %}, "id": "{{ k.id }}"{% endif %}}{{ ', ' if not loop.last }}
{%- endfor -%}]</calls>"""


@pytest.mark.parametrize("end", ["<|im_end|>", "{% if not last %}<|im_end|>{% endif %}"], ids=["end", "end later"])
def test_calls_that_the_template_writes_otherwise_once_the_conversation_goes_on_are_read(end):
    text = template(IDS_IN_HISTORY).replace("<|im_end|>", end)
    text = text.replace("{%- if m.content", "{%- set last = loop.last and m.role == 'assistant' -%}{%- if m.content", 1)
    tokenizer = byte_tokenizer(text)
    renderer = ChatRenderer(tokenizer, [LOOK])
    assert renderer.facts.tool_calls_rendered
    assert (renderer.parser_proof.proven, renderer.parser_proof.unread) == (True, ())
    turn = renderer.parser('<|calls|>[{"name": "look", "arguments": {"x": "fox"}}]</calls>', schemas={"look": LOOK})
    assert [(call.name, call.arguments) for call in turn.calls] == [("look", {"x": "fox"})]
    assert check_template(tokenizer, [LOOK]).exact


TAGGED = """
{%- for k in m.tool_calls -%}
{{ '\\n<tool_call>\\n<function=' + k.function.name + '>\\n' }}
{%- for n, v in k.function.arguments.items() -%}
{{ '<parameter=' + n + '>\\n' }}{{ VALUE }}{{ '\\n</parameter>\\n' }}
{%- endfor -%}
{{ '</function>\\n</tool_call>' }}
{%- endfor -%}"""


@pytest.mark.parametrize(
    ("value", "null", "text"),
    [
        ("v if v is string or v is none else v | tojson", "None", "null"),
        ("v if v is string else v | tojson", "null", "None"),
    ],
    ids=["as Python", "as JSON"],
)
def test_a_string_that_may_be_null_is_null_as_the_template_writes_it(value, null, text):
    optional = {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    renderer = chosen(TAGGED.replace("VALUE", value), [ToolSchema("look", "Look.", optional)])
    assert renderer.parser_proof.name == "qwen3_coder"

    def read(word):
        written = f"<tool_call>\n<function=look>\n<parameter=x>\n{word}\n</parameter>\n</function>\n</tool_call>"
        return renderer.parse_text(written).calls[0].arguments["x"]

    assert read(null) is None
    assert read(text) == text
    assert read("nothing") == "nothing"
