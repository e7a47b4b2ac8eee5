"""Templates that look into a task's first messages. What is right is what transformers renders of everything."""

from __future__ import annotations

import pytest

from toolgym.rollout.limits import HistoryMode
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.schema import ToolSchema

LOOK = ToolSchema("look", "Look it up.", {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]})
PROMPT = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if quiet %}<think></think>{% else %}<think>{% endif %}{% endif %}"
)
MESSAGE = (
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
)
BODY = "{% for m in messages %}" + MESSAGE + "{% endfor %}" + PROMPT

QUIET_BY = {
    "a pattern": "{% set quiet = (messages[0].content.split('#') | length) > 2 %}",
    "a number of messages": "{% set quiet = messages[0].role == 'system' and messages[1].role == 'system' %}",
    "a letter": "{% set quiet = messages[0].content[:1] == '#' %}",
    "a name": "{% set quiet = messages[0].name is defined %}",
}
PROMPTS = {
    "a pattern": [user("# One\n# Two")],
    "a number of messages": [system("Be brief."), system("Be kind."), user("Fox?")],
    "a letter": [user("# Fox?")],
    "a name": [{**user("Fox?"), "name": "Ann"}],
}
PATTERN = QUIET_BY["a pattern"]
CALM = [system("Be brief."), user("Fox?")]
RESULT = [tool("an animal", tool_call_id="call_0", name="look")]


def renderer_of(source, **kwargs):
    return ChatRenderer(byte_tokenizer(source), [LOOK], **kwargs)


def call(argument):
    function = {"name": "look", "arguments": {"x": argument}}
    return {**assistant(""), "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


def whole(renderer, messages):
    return renderer.tokenizer.apply_chat_template(
        messages, tools=renderer.tools, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("name", QUIET_BY)
def test_a_delta_that_depends_on_the_first_messages_is_that_of_the_whole_conversation(name):
    renderer = renderer_of(QUIET_BY[name] + BODY)
    for head, quiet in ((CALM, False), (PROMPTS[name], True)):
        renderer.prompt_ids(head)
        assert renderer.proof_of(head).looks_back == quiet
        turn = renderer.tokenizer.encode("fox<|im_end|>")
        for earlier in (head, [*head, call("hare"), *RESULT]):
            ids = renderer.extend(RESULT, turn, earlier=earlier)
            assert whole(renderer, [*earlier, call("fox"), *RESULT]).endswith(renderer.decode(ids[1:]))
            assert renderer.decode(ids).endswith("<think></think>") == quiet


def test_earlier_messages_are_needed_once_a_prompt_looks_back():
    renderer = renderer_of(PATTERN + BODY)
    assert renderer.extend(RESULT)
    renderer.prompt(PROMPTS["a pattern"])
    with pytest.raises(TemplateError, match="earlier=messages"):
        renderer.extend(RESULT)


def test_a_conversation_continues_from_what_its_prompt_showed():
    renderer = renderer_of(PATTERN + BODY)
    texts = {}
    for head in (CALM, PROMPTS["a pattern"]):
        conversation = Conversation(renderer, HistoryMode.APPEND, head)
        conversation.add_env_tokens(renderer.tokenizer.encode("Hm.</think>Fox.<|im_end|>"))
        conversation.add_turn()
        conversation.apply(conversation.extended_with([user("And a hare?")]), [user("And a hare?")])
        texts[head[0]["content"]] = renderer.decode(conversation.context)
    assert [text.endswith("<think></think>") for text in texts.values()] == [False, True]


def test_a_further_prompt_of_a_shape_is_looked_at_too():
    renderer = renderer_of(PATTERN + BODY)
    assert not renderer.proof_of([user("Fox?")]).looks_back
    assert renderer.proof_of([user("# Fox? #")]).looks_back
    assert not renderer.proof_of([user("Hare?")]).looks_back


def test_a_prompt_is_played_once():
    renderer = renderer_of(BODY)
    renderings = []
    render = renderer._template.render

    def counted(*args, **kwargs):
        renderings.append(args)
        return render(*args, **kwargs)

    renderer._template.render = counted
    counts = []
    for text in ("Fox?", "Fox?", "Hare?", "Dog?"):
        renderings.clear()
        renderer.prompt([system("Be brief."), user(text)])
        counts.append(len(renderings))
    assert counts[0] > 10
    assert counts[1:] == [1, 2, 2]


OTHER_TURN = (
    "{% set loud = messages[0].content[:1] == '#' %}{% for m in messages %}{% if loud and m.role == 'assistant' %}"
)
REFUSED = {
    "the parser does not read back": (
        OTHER_TURN + "<|im_start|>assistant\n{{ m.content }}{% for c in m.tool_calls or [] %}[[{{ c.function.name }} "
        "{{ c.function.arguments.x }}]]{% endfor %}<|im_end|>\n"
    ),
    "also stands inside a turn": (
        OTHER_TURN + "<|im_start|>assistant\n{{ m.reasoning_content or '' }}<|im_end|>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    ),
    "writes thinking as": (
        OTHER_TURN + "<|im_start|>assistant\n{% if m.reasoning_content %}((({{ m.reasoning_content }}))){% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
        "{% endfor %}<|im_end|>\n"
    ),
}
ELSE = "{% else %}" + MESSAGE + "{% endif %}{% endfor %}" + PROMPT


@pytest.mark.parametrize("why", REFUSED)
def test_a_prompt_whose_turns_are_written_otherwise_is_refused(why):
    renderer = renderer_of(REFUSED[why] + ELSE)
    assert renderer.prompt(CALM)
    with pytest.raises(TemplateError, match=f"after this prompt, .*{why}"):
        renderer.prompt_ids([user("# Fox?")])


def test_a_template_that_refuses_what_follows_a_prompt_says_so_when_it_comes_up():
    source = (
        "{% if messages[0].content[:1] == '#' and messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}"
    )
    renderer = renderer_of(source + BODY)
    head = [user("# Fox?")]
    renderer.prompt(head)
    with pytest.raises(TemplateError, match="too long"):
        renderer.extend(RESULT, earlier=head)


KEEPS = BODY
DROPS_AT_USER = (
    "{% set ns = namespace(left=0) %}{% for m in messages if m.role == 'user' %}{% set ns.left = loop.length %}"
    "{% endfor %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.left = ns.left - 1 %}{% endif %}"
    "{% if m.role == 'assistant' and ns.left > 0 %}<|im_start|>assistant\n{{ m.content }}<|im_end|>\n{% else %}"
    + MESSAGE + "{% endif %}{% endfor %}" + PROMPT
)  # fmt: skip
DROPS_ALWAYS = (
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}<|im_start|>assistant\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% else %}" + MESSAGE + "{% endif %}{% endfor %}" + PROMPT
)


@pytest.mark.parametrize(
    ("source", "dropped"), [(KEEPS, ()), (DROPS_AT_USER, ("user",)), (DROPS_ALWAYS, ("one result", "user"))]
)
def test_the_facts_say_where_thinking_is_dropped(source, dropped):
    assert renderer_of(source).facts.thinking_dropped == dropped
