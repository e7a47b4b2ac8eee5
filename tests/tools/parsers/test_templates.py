"""Telling the parser from a chat template."""

from __future__ import annotations

import pytest

from tests.trl_templates import FOLDER
from toolgym.tools.parsers import get_parser, parser_for_template

# The lines of each family's templates that render calls, shortened.
TEMPLATES = {
    "hermes": """<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>""",
    "qwen3_coder": """{{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}{{- '<parameter=' + name + '>\\n' }}""",
    "hy3": """{%- set k = ':opensource' %}{{ '<tool_call{}>'.format(k) + tc.name + '<tool_sep{}>'.format(k) }}""",
    "glm45": """{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value></tool_call>""",
    "llama3": """<|start_header_id|>{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""",
    "pythonic": """Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]""",
    "lfm2": """{{- "<|tool_call_start|>[" + (calls | join(", ")) + "]<|tool_call_end|>" -}}""",
    "mistral": """{{- "[TOOL_CALLS] [" }}{{- ', "id": "' + tool_call.id + '"}' }}""",
    "deepseekv3": """'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '<｜tool▁sep｜>' + '```json'""",
    "deepseekv31": """'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>' + arguments""",
    "deepseekv32": """<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ name }}">""",
    "deepseekv4": """<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{{ name }}">""",
    "kimi_k2": """<|tool_call_begin|>{{ tool_call['id'] }}<|tool_call_argument_begin|>{{ arguments }}""",
    "gpt_oss": """"<|start|>assistant to=" + "functions." + name + "<|channel|>commentary " + "<|call|>" """,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_family_is_known_by_its_marks(name):
    assert parser_for_template(TEMPLATES[name]) == name
    assert get_parser(name)("Just words.").content == "Just words."


def test_no_marks_or_those_of_two_families_are_no_answer():
    assert parser_for_template("{{ messages[0]['content'] }}") is None
    assert parser_for_template(TEMPLATES["hermes"] + TEMPLATES["mistral"]) is None
    assert parser_for_template(TEMPLATES["glm45"] + TEMPLATES["qwen3_coder"]) is None


def test_the_templates_of_many_models():
    found = {path.stem: parser_for_template(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.jinja")}
    wanted = {
        "deepseekv3": "deepseekv3",
        "glm4moe": "glm45",
        "gptoss": "gpt_oss",
        "lfm2_v2": "lfm2",
        "llama3": None,  # knows no tools
        "llama3_1": "llama3",
        "nemotron_3_nano": "qwen3_coder",
        "phi3": None,
        "qwen2_5": "hermes",
        "qwen3": "hermes",
        "qwen3_5_think": "qwen3_coder",
    }
    known = wanted.keys() & found.keys()
    assert known
    assert {name: found[name] for name in known} == {name: wanted[name] for name in known}
