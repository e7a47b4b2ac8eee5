"""Templates that look for words in earlier messages. What is right is what transformers renders of everything."""

from __future__ import annotations

import pytest

from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.schema import ToolSchema

BODY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if s.n > 0 %}<think></think>{% else %}<think>{% endif %}{% endif %}"
)
LAST_WINS = (
    "{% set off = '/no_think' %}{% set s = namespace(n=0) %}{% for m in messages if m.role in ['system', 'user'] %}"
    "{% if off in m.content %}{% set s.n = 1 %}{% elif '/think' in m.content %}{% set s.n = 0 %}{% endif %}{% endfor %}"
)
IN_SYSTEM = "{% set s = namespace(n=1 if messages[0].role == 'system' and '/no_think' in messages[0].content else 0) %}"
COUNTS_ERRORS = (
    "{% set s = namespace(n=-2) %}{% for m in messages if m.role == 'tool' %}"
    "{% set low = m.content | lower %}{% if low.startswith('error:') or 'traceback' in low %}{% set s.n = s.n + 1 %}"
    "{% else %}{% set s.n = -2 %}{% endif %}{% endfor %}"
)
LISTED = (
    "{% set s = namespace(n=0) %}{% for word in ['quiet mode', 'silence'] %}"
    "{% for m in messages if word in m.content %}{% set s.n = 1 %}{% endfor %}{% endfor %}"
)
TOGETHER = (
    "{% set s = namespace(n=0) %}{% for m in messages %}"
    "{% if 'quiet mode' in m.content and 'night' in m.content and 'day' not in m.content %}{% set s.n = 1 %}{% endif %}"
    "{% endfor %}"
)
NESTED = (
    "{% set s = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% if 'quiet mode' in m.content %}"
    "{% if 'night' in m.content %}{% set s.n = 1 %}{% elif 'day' in m.content %}{% endif %}{% endif %}{% endfor %}"
)
TWO_ROLES = (
    "{% set s = namespace(n=0, a=false, b=false) %}{% for m in messages %}"
    "{% if m.role == 'system' and 'quiet mode' in m.content %}{% set s.a = true %}{% endif %}"
    "{% if m.role == 'user' and 'night' in m.content %}{% set s.b = true %}{% endif %}{% endfor %}"
    "{% if s.a and s.b %}{% set s.n = 1 %}{% endif %}"
)
IN_TURN = "{% set s = namespace(n=1 if 'quiet' in (messages | map(attribute='content') | list)[-2] else 0) %}"
CALM = "{% set s = namespace(n=0) %}{% for m in messages %}{% if 'x' in m.content %}{% endif %}{% endfor %}"
LENGTH = "{% set s = namespace(n=1 if messages[0].content | length > 2000 else 0) %}"


def call(argument):
    function = {"name": "look", "arguments": {"x": argument}}
    return {**assistant(""), "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


def cycles(*results):
    return [message for text in results for message in (call("fox"), tool(text, tool_call_id="call_0", name="look"))]


def check_delta(source, earlier, new):
    tokenizer = byte_tokenizer(source + BODY)
    renderer = ChatRenderer(tokenizer)
    turn = tokenizer.encode('<tool_call>{"x": "fox"}</tool_call><|im_end|>')
    ids = renderer.extend(new, turn, earlier=earlier)
    whole = tokenizer.apply_chat_template([*earlier, call("fox"), *new], tokenize=False, add_generation_prompt=True)
    assert whole.endswith(renderer.decode([*turn, *ids]))
    return whole


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (LAST_WINS, {"system": {"/no_think"}, "user": {"/no_think"}}),
        (IN_SYSTEM, {"system": {"/no_think"}}),
        (COUNTS_ERRORS, {"tool": {"error:", "traceback"}}),
        (LISTED, {role: {"quiet mode", "silence"} for role in ("system", "user", "assistant", "tool")}),
        (TOGETHER, {role: {"quiet mode", "night"} for role in ("system", "user", "assistant", "tool")}),
        (NESTED, {"user": {"quiet mode", "night"}}),
        (TWO_ROLES, {role: {"quiet mode", "night"} for role in ("system", "user", "assistant", "tool")}),
        (IN_TURN, {"assistant": {"quiet"}}),
        (CALM, {}),
    ],
)
def test_words_that_change_a_delta_are_found_with_their_roles(source, words):
    assert ChatRenderer(byte_tokenizer(source + BODY)).facts.switch_words == words


RESULT = [tool("an animal", tool_call_id="call_0", name="look")]


@pytest.mark.parametrize(
    ("source", "earlier", "off"),
    [
        (LAST_WINS, [system("Be brief. /no_think"), user("Fox?")], True),
        (LAST_WINS, [system("/no_think"), user("Fox? /think")], False),
        (LAST_WINS, [user("Fox?"), *cycles("/no_think")], False),
        (IN_SYSTEM, [system("Be brief. /no_think"), user("Fox?")], True),
        (IN_SYSTEM, [system("Be brief."), user("/no_think")], False),
        (LISTED, [user("Quiet mode? No: silence.")], True),
        (
            TOGETHER,
            [user("Fox?"), *cycles("Quiet mode is for the night, not the quiet mode", "quiet mode, night")],
            True,
        ),
        (TOGETHER, [user("quiet mode"), *cycles("night")], False),
        (NESTED, [user("quiet mode at night")], True),
        (TWO_ROLES, [system("quiet mode"), user("at night")], True),
        (TWO_ROLES, [system("quiet mode"), user("at noon")], False),
        (CALM, [system("x"), user("x")], False),
    ],
)
def test_the_switch_holds_behind_a_result(source, earlier, off):
    assert check_delta(source, earlier, RESULT).endswith("<think></think>") == off


@pytest.mark.parametrize("count", [1, 2, 3])
def test_errors_in_a_row_are_counted_with_the_earlier_ones(count):
    earlier = [user("Fox?"), *cycles(*["Traceback (most recent call last)"] * count)]
    new = [tool("Error: no fox", tool_call_id="call_0", name="look")]
    assert check_delta(COUNTS_ERRORS, earlier, new).endswith("<think></think>") == (count >= 2)


@pytest.mark.parametrize(("said", "off"), [("Be quiet!", True), ("Hello.", False)])
def test_a_word_in_the_turn_itself_counts(said, off):
    tokenizer = byte_tokenizer(IN_TURN + BODY)
    renderer = ChatRenderer(tokenizer)
    turn, new, earlier = tokenizer.encode(said + "<|im_end|>"), [user("And now?")], [user("Fox?")]
    text = renderer.decode([*turn, *renderer.extend(new, turn, earlier=earlier)])
    assert text.endswith("<think></think>") == off
    assert tokenizer.apply_chat_template(
        [*earlier, assistant(said), *new], tokenize=False, add_generation_prompt=True
    ).endswith(text)


@pytest.mark.parametrize("shown", ["/no_think", "Look it up."])
def test_a_word_in_the_description_of_a_tool_counts(shown):
    source = "{% set s = namespace(n=1 if tools and '/no_think' in tools | tojson else 0) %}"
    tools = [ToolSchema(name, text, {"type": "object", "properties": {}}) for name, text in (("a", "A."), ("b", shown))]
    renderer = ChatRenderer(byte_tokenizer(source + BODY), tools)
    assert renderer.decode(renderer.extend(RESULT, earlier=[user("Fox?")])).endswith("<think></think>") == (
        shown == "/no_think"
    )


def test_a_template_with_switch_words_needs_the_earlier_messages():
    renderer = ChatRenderer(byte_tokenizer(IN_SYSTEM + BODY))
    with pytest.raises(TemplateError, match="looks for words in earlier messages"):
        renderer.extend(RESULT)
    assert ChatRenderer(byte_tokenizer(CALM + BODY)).extend(RESULT)


def test_a_template_that_looks_at_the_length_of_messages_is_refused():
    facts = ChatRenderer(byte_tokenizer(LENGTH + BODY)).facts
    assert "length of earlier ones" in facts.unsupported["one result"]
