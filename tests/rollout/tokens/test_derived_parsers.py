"""Parsers that are derived from a template's own calls. The templates imitate the kinds of real ones."""

from __future__ import annotations

import random

import pytest

from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.schema import CallProblem, ToolSchema

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "body": {"type": "string"},
        "count": {"type": "integer"},
        "data": {"type": "object"},
    },
}
TOOLS = {name: ToolSchema(name, "Do it.", SCHEMA) for name in ("write", "look_up")}

HEAD = """{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}{%- if m.tool_calls -%}"""
TAIL = """{%- endif -%}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
EACH = "{%- for c in m.tool_calls -%}{%- set f = c.function -%}"
ITEMS = "{%- for k, v in f.arguments.items() -%}"

QUOTED = """{%- macro show(v) -%}
{%- if v is string -%}<|"|>{{ v }}<|"|>
{%- elif v is mapping -%}{{ '{' }}{%- for k, x in v.items() -%}{{ k }}:{{ show(x) }}{{ ',' if not loop.last }}
{%- endfor -%}{{ '}' }}
{%- elif v is boolean or v is none -%}{{ v | tojson }}
{%- elif v is sequence -%}[{%- for x in v -%}{{ show(x) }}{{ ',' if not loop.last }}{%- endfor -%}]
{%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}"""

KINDS = {
    "json list between tokens": """<|calls|>[{%- for c in m.tool_calls -%}
{{- {c.function.name: c.function.arguments} | tojson }}{{ ', ' if not loop.last }}{%- endfor -%}]<|end_calls|>""",
    "json list with other keys": """<|action|>[
{% for c in m.tool_calls %}    {"id": "{{ loop.index0 }}", "tool_name": "{{ c.function.name }}", "parameters":
{{- c.function.arguments | tojson }}}{{ ',' if not loop.last }}
{% endfor %}]<|end_action|>""",
    "json objects": EACH + '<call>{{ {"tool": f.name, "input": f.arguments} | tojson }}</call>\n{%- endfor -%}',
    "name and json": EACH + "<fn={{ f.name }}>{{ f.arguments | tojson }}</fn>{%- endfor -%}",
    "id, name and json": "<|calls|>"
    + EACH
    + "<|call|>{{ c.id }}<|name|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|end_call|>{%- endfor -%}",
    "tags": "\n<m:call>\n"
    + EACH
    + '<invoke name="{{ f.name }}">\n'
    + ITEMS
    + '<param name="{{ k }}">{{ v if v is string else v | tojson }}</param>\n{% endfor -%}</invoke>\n{% endfor -%}'
    + "</m:call>",
    "tags and Python values": EACH
    + "<s:call>\n<function={{ f.name }}>\n"
    + ITEMS
    + "<parameter={{ k }}>{{ v }}</parameter>\n{% endfor -%}</function>\n</s:call>{%- endfor -%}",
    "quotes of its own": QUOTED
    + EACH
    + "<|call>call:{{ f.name }}{{ '{' }}"
    + ITEMS
    + "{{ k }}:{{ show(v) }}{{ ',' if not loop.last }}{%- endfor -%}{{ '}' }}<call|>{%- endfor -%}",
    "Python calls": "<calls>"
    + EACH
    + "{{ f.name }}("
    + ITEMS
    + "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{%- endfor -%})"
    + "{{ '\n' if not loop.last }}{%- endfor -%}</calls>",
}
CALLS = (
    [("write", {"path": "a.txt", "body": 'say "hi"\n<b>x</b> ü🦊'})],
    [("look_up", {"count": 3, "data": {"deep": {"list": [1, "b", True, None]}}}), ("write", {"path": "b"})],
    [("look_up", {})],
)


class Family:
    """A kind of template with its renderer, and turns as the template writes them."""

    def __init__(self, kind):
        self.tokenizer = byte_tokenizer(HEAD + KINDS[kind] + TAIL)
        self.renderer = ChatRenderer(self.tokenizer, list(TOOLS.values()))
        self.parse = self.renderer.parser

    def text(self, calls, content="Let me see."):
        calls = [
            {"id": f"call0000{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content, "tool_calls": calls}]
        whole = self.tokenizer.apply_chat_template(messages, tokenize=False)
        return whole.rpartition("<|im_start|>assistant\n")[2].rpartition("<|im_end|>")[0]

    def read(self, text):
        return self.parse(text, schemas=TOOLS)


FAMILIES = {}


@pytest.fixture(params=KINDS)
def family(request):
    if request.param not in FAMILIES:
        FAMILIES[request.param] = Family(request.param)
    return FAMILIES[request.param]


def test_calls_are_read_back(family):
    assert family.renderer.parser_proof.name == "derived"
    for calls in CALLS:
        turn = family.read(family.text(calls))
        assert [(call.name, call.arguments) for call in turn.calls] == calls, turn.errors
        assert turn.content.strip() == "Let me see."


def test_a_cut_call_is_an_error(family):
    text = family.text(CALLS[0])
    start = len("Let me see.") + 12
    for at in range(start, len(text) - 1, 3):
        turn = family.read(text[:at])
        assert not turn.calls or [call.arguments for call in turn.calls] == [CALLS[0][0][1]]
        assert turn.calls or turn.errors or at < start + 12


def test_errors_show_how_to_write_a_call(family):
    text = family.text(CALLS[0]).replace("write", 'wr"ite', 1)
    turn = family.read(text)
    assert not turn.calls
    assert "Write it as" in turn.errors[0].message
    assert turn.errors[0].problem is CallProblem.MALFORMED_CALL


def test_calls_of_thoughts_are_not_run(family):
    turn = family.read(f"<think>{family.text(CALLS[0])}</think>It is done.")
    assert (turn.calls, turn.errors) == ([], [])


def test_damaged_calls_never_run_with_other_arguments(family):
    source = random.Random(7)
    calls = [("write", {"path": "a.txt", "body": "hello", "count": 7}), ("look_up", {"path": "b", "body": "you"})]
    right = [arguments for _, arguments in calls]
    text = family.text(calls, "")
    for _ in range(300):
        at = source.randrange(len(text))
        width = source.choice((1, 1, 2))
        changed = text[:at] + source.choice(("", "x")) * (width == 1) + text[at + width :]
        for call in family.read(changed).calls:
            swallowed = [value for value in call.arguments.values() if isinstance(value, str) and "b" in value[8:]]
            assert call.arguments in right or not swallowed, changed


@pytest.mark.parametrize("size", [20_000])
def test_hostile_texts_take_linear_time(family, size):
    start = family.text(CALLS[0], "")
    for unit in (start[:12], start[:40], "</", "{", "[", '<|"|>', start[-8:]):
        text = unit * (size // len(unit))
        assert family.read(text).text == text
