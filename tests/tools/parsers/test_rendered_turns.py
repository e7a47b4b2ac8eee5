"""Turns that the chat templates of real models render are read back: what their history shows is what they write."""

from __future__ import annotations

import json

import pytest

from tests.trl_templates import FOLDER
from toolgym.tools.parsers import get_parser, parser_for_template
from toolgym.tools.schema import ToolSchema

jinja = pytest.importorskip("transformers.utils.chat_template_utils", exc_type=ImportError)
TEMPLATES = sorted(
    path.stem
    for path in FOLDER.glob("*.jinja")
    if not path.stem.endswith("_training") and parser_for_template(path.read_text(encoding="utf-8"))
)
ARGUMENTS = {"code": "print(\"a\\n\", 'b')\n# ünïcode 🙂 <b>", "times": 2}
SCHEMA = ToolSchema(
    "run_code",
    "Run it.",
    {"type": "object", "properties": {"code": {"type": "string"}, "times": {"type": "integer"}}},
)
USER = {"role": "user", "content": "go"}
END = "<|end_of_turn_of_the_test|>"


def render(template, messages, **kwargs):
    compiled = jinja._compile_jinja_template(template)
    return compiled.render(messages=messages, tools=[SCHEMA.to_openai()], bos_token="<bos>", eos_token=END, **kwargs)


def generated(template, turn):
    """What the model would have generated: from the generation prompt to the end of the turn."""
    prompt = render(template, [USER], add_generation_prompt=True)
    whole = render(template, [USER, turn], add_generation_prompt=False)
    start = 0
    while start < min(len(prompt), len(whole)) and prompt[start] == whole[start]:
        start += 1
    text = whole[start:]
    for end in ("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", END):
        text = text.partition(end)[0]
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_template_renders_is_read_back(name, count):
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    parser = parser_for_template(template)
    if count == 2 and parser in ("llama3", "gpt_oss"):
        pytest.skip("the template renders one call a turn")
    arguments, content = ARGUMENTS, "I look."
    if parser == "lfm2":  # its templates do not escape what stands in strings
        arguments = {"code": "print(1)", "times": 2}
    given = arguments
    if parser == "deepseekv3":  # its templates want the arguments as text, and no content
        given, content = json.dumps(arguments, ensure_ascii=False), None
    function = {"name": "run_code", "arguments": given}
    calls = [{"id": f"call0000{i}", "type": "function", "function": function} for i in range(count)]
    text = generated(template, {"role": "assistant", "content": content, "tool_calls": calls})
    parsed = get_parser(parser)(text, schemas={"run_code": SCHEMA})
    assert parsed.errors == [], text
    assert [(call.name, call.arguments) for call in parsed.calls] == [("run_code", arguments)] * count, text
