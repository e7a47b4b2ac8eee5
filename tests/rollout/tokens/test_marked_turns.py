"""What is read off a turn of marked values. The templates imitate the kinds of real ones."""

from __future__ import annotations

import pytest

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import find_end_of_turn
from toolgym.rollout.tokens.marked_turns import MarkedTurns, ThinkingTags, find_thinking_tags
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_check import byte_tokenizer

CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"


def template(opens, closes, before="", behind="", prompt="", field="reasoning_content", always=False):
    """A template whose turns are `opens thought closes before text behind`."""
    when = "true" if always else f"m.{field}"
    thought = "{% if " + when + " %}" + opens + "{{ m." + field + " or '' }}" + closes + "{% endif %}"
    turn = thought + before + "{{ m.content }}" + behind + CALLS
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        + turn
        + "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        + "{% if add_generation_prompt %}<|im_start|>assistant\n"
        + prompt
        + "{% endif %}"
    )


BLOCKS = template("", "").replace(
    "{% if m.reasoning_content %}{{ m.reasoning_content or '' }}{% endif %}{{ m.content }}",
    "{% if m.content is mapping %}{% for b in m.content.blocks %}"
    "{% if b.type == 'thoughts' %}<|inner|>{{ b.text }}<|outer|>{% else %}{{ b.text }}{% endif %}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}",
)

FAMILIES = {
    "tags of words": (template("<think>\n", "\n</think>\n\n"), ThinkingTags("<think>", "</think>")),
    "opened by the prompt": (
        template("<think>\n", "\n</think>\n\n", prompt="<think>\n", always=True),
        ThinkingTags("<think>", "</think>"),
    ),
    "brackets": (template("[THINK]", "[/THINK]"), ThinkingTags("[THINK]", "[/THINK]")),
    "a frame around the answer": (
        template("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), "<|END_TEXT|>"),
    ),
    "tags of several tokens": (
        template(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            "<|open|>response<|sep|>",
            prompt="<|open|>think<|sep|>",
            always=True,
        ),
        ThinkingTags("<|open|>think<|sep|>", "<|close|>think<|sep|>", ("<|open|>response<|sep|>",)),
    ),
    "a closing tag that closes the answer too": (
        template("<|content_thinking|>", "<|end_part|>", "<|content_text|>", "<|end_part|>"),
        ThinkingTags("<|content_thinking|>", "<|end_part|>", ("<|content_text|>",), "<|end_part|>", False),
    ),
    "a field of another name": (
        template("<mm:think>", "</mm:think>", field="reasoning"),
        ThinkingTags("<mm:think>", "</mm:think>"),
    ),
    "blocks of the content": (BLOCKS, ThinkingTags("<|inner|>", "<|outer|>")),
    "none": (template("", ""), None),
}


def find(source):
    tokenizer = byte_tokenizer(source)
    tokenizer.eos_token = "<|im_end|>"
    chat_template, encoder = ChatTemplate(tokenizer), SafeEncoder.of(tokenizer)
    ends = find_end_of_turn(chat_template, encoder, "tool", ["<|im_end|>"])
    return find_thinking_tags(MarkedTurns(chat_template, encoder), ends)


@pytest.mark.parametrize(("source", "tags"), FAMILIES.values(), ids=FAMILIES)
def test_thinking_tags_are_read_off_the_template(source, tags):
    assert find(source) == tags


def test_a_marked_turn_shows_all_its_marks_in_order():
    tokenizer = byte_tokenizer(template("<think>", "</think>"))
    turns = MarkedTurns(ChatTemplate(tokenizer), SafeEncoder.of(tokenizer))
    text = turns.written(turns.message(thought=True, text=True, calls=2))
    assert text.split(turns.thought)[0] == "<|im_start|>assistant\n<think>"
    assert text.count(turns.argument) == 2
    assert text.index(turns.thought) < text.index(turns.text) < text.index(turns.argument)
