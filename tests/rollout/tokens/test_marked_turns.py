"""What is read off a turn of marked values. The templates imitate the kinds of real ones."""

from __future__ import annotations

import pytest

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import find_end_of_turn
from toolgym.rollout.tokens.marked_turns import MarkedTurns, ThinkingTags, find_thinking_tags
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.rollout.tokens.turn_reading import TurnReader
from toolgym.tools.errors import TemplateError
from toolgym.tools.parsers import get_parser

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
        ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), ("<|END_TEXT|>",)),
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
        ThinkingTags("<|content_thinking|>", "<|end_part|>", ("<|content_text|>",), ("<|end_part|>",), False),
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


ENDS = {
    "inside, and another token ends the turn": (
        template("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>say<|sep|>", "<|close|>say<|sep|>"),
        ("<|im_end|>",),
    ),
    "inside, between text and call": (
        template("", "").replace("<tool_call>", "<|im_end|>call\n").replace("</tool_call>", ""),
        None,
    ),
    "inside, behind the thinking": (template("<|think|>", "<|im_end|><|im_start|>assistant\n"), None),
    "behind each turn only": (template("<think>", "</think>"), ("<|im_end|>",)),
}


@pytest.mark.parametrize(("source", "ends"), ENDS.values(), ids=ENDS)
def test_no_stop_token_stands_inside_a_turn(source, ends):
    tokenizer = byte_tokenizer(source)
    tokenizer.eos_token = "<|im_end|>"
    if ends is None:
        with pytest.raises(TemplateError, match="also stands inside a turn"):
            ChatRenderer(tokenizer)
    else:
        assert ChatRenderer(tokenizer).facts.ends_of_turn == ends


def test_a_stop_token_of_the_model_that_stands_inside_a_turn_is_refused():
    tokenizer = byte_tokenizer(template("<|think|>", "<|closed|>"))
    tokenizer.eos_token = "<|closed|>"
    with pytest.raises(TemplateError, match=r"<\|closed\|>.*also stands inside a turn"):
        ChatRenderer(tokenizer)


READ = [
    ("hermes", "[THINK]", "[/THINK]", "[THINK]42?[/THINK]It is 41.", "42?", "It is 41."),
    ("hermes", "<mm:think>", "</mm:think>", "<mm:think>a</mm:think>b<mm:think>c</mm:think>d", "a\nc", "bd"),
    ("hermes", "<mm:think>", "</mm:think>", "a</mm:think>b", "a", "b"),
    ("hermes", "<mm:think>", "</mm:think>", "No <think> here.", None, "No <think> here."),
    ("mistral", "[THINK]", "[/THINK]", "[THINK]a[/THINK]b", "a", "b"),
    ("hermes", "<think>", "</think>", "<think>a</think>b", None, "<think>a</think>b"),
]


def reader(parser, opens, closes):
    return TurnReader(get_parser(parser), ThinkingTags(opens, closes), rendered=True)


@pytest.mark.parametrize(("parser", "opens", "closes", "text", "thought", "content"), READ)
def test_thinking_is_split_from_the_answer_by_the_models_tags(parser, opens, closes, text, thought, content):
    turn = reader(parser, opens, closes)(text, first_id=0, schemas={}, starts_open=False)
    assert (turn.text, turn.reasoning, turn.content) == (text, thought, content)
    assert "42" not in turn.without_thinking().text


CALL = '<tool_call>{"name": "f", "arguments": {"x": "<think>[THINK] tags"}}</tool_call>'


def test_a_call_inside_closed_thinking_is_not_run():
    turn = reader("hermes", "[THINK]", "[/THINK]")(
        f"[THINK]{CALL}[/THINK]Hm.", first_id=0, schemas={}, starts_open=False
    )
    assert (turn.calls, turn.errors, turn.content) == ([], [], "Hm.")


def test_an_error_names_the_models_own_tags():
    turn = reader("hermes", "[THINK]", "[/THINK]")(f"[THINK]{CALL}", first_id=0, schemas={}, starts_open=False)
    assert turn.open_thinking
    assert "[THINK]" in turn.errors[0].message
    assert "<think>" not in turn.errors[0].message
    assert turn.errors[0].raw == CALL


def test_tags_in_arguments_stay_as_they_are():
    turn = reader("hermes", "[THINK]", "[/THINK]")(f"[THINK]a[/THINK]{CALL}", first_id=0, schemas={}, starts_open=False)
    assert turn.calls[0].arguments == {"x": "<think>[THINK] tags"}


def test_a_turn_that_was_cut_in_its_thinking_is_closed_with_the_models_own_tag():
    renderer = ChatRenderer(byte_tokenizer(template("<mm:think>\n", "\n</mm:think>\n", prompt="<mm:think>\n")))
    assert renderer.opens_thinking
    assert renderer.parse_text("42").open_thinking
    assert renderer.decode(renderer.close_turn(renderer.tokenizer.encode("42"))) == "\n</mm:think>\n<|im_end|>"


def test_a_marked_turn_shows_all_its_marks_in_order():
    tokenizer = byte_tokenizer(template("<think>", "</think>"))
    turns = MarkedTurns(ChatTemplate(tokenizer), SafeEncoder.of(tokenizer))
    text = turns.written(turns.message(thought=True, text=True, calls=2))
    assert text.split(turns.thought)[0] == "<|im_start|>assistant\n<think>"
    assert text.count(turns.argument) == 2
    assert text.index(turns.thought) < text.index(turns.text) < text.index(turns.argument)
