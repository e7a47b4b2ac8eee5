"""A reply goes out, and comes back as each agent sends it: the message that is read means the same, and has its ids."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.rollout.capture.wires.scripted import BY_NAME, ODD, TEXT, THOUGHT, as_sent, called, read, reply

TWO = called(ODD, '{"city": "Bern"}')
NO_TEXT = called(ODD, content="", number=2)
PLAIN = reply(content=" Done: hello. \n", number=3)


def request(wire, history):
    """A request with the items or messages of a history in it, between a question and the next one."""
    question = {"role": "user", "content": "weather?"}
    more = {"role": "user", "content": "go on"}
    return {"model": "policy", ("input" if wire == "responses" else "messages"): [question, *history, more]}


def came_back(wire, history):
    """The assistant's messages of a request."""
    return [message for message in read(wire, request(wire, history)).messages if message.role == "assistant"]


def dumped(arguments):
    """Arguments as a client writes them that parses them."""
    return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)


def answered(wire, answer, **body):
    return BY_NAME[wire].answer(read(wire, {**request(wire, []), **body}), answer)


# ---------------------------------------------------------------------------- chat


def chat_message(answer):
    return answered("chat", answer)["choices"][0]["message"]


def with_calls(message, change):
    calls = [
        {**call, "function": {**call["function"], "arguments": change(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, "tool_calls": calls} if calls else message


def codes_itself(answer):
    """mini-swe-agent by litellm: everything as it came, with a field of its own; no content where there is none."""
    message = {key: value for key, value in chat_message(answer).items() if value is not None}
    return {**message, "provider_specific_fields": {"refusal": None}}


def qwen_code(answer):
    message = with_calls(chat_message(answer), dumped)
    return {**message, "content": message["content"] or "", "reasoning_content": message["reasoning_content"].strip()}


def opencode(answer):
    message = with_calls(chat_message(answer), dumped)
    return {**message, "content": message["content"] or ""}


def pi(answer):
    return with_calls(chat_message(answer), dumped)


def open_hands(answer):
    message = with_calls(chat_message(answer), lambda arguments: json.dumps(json.loads(arguments)))
    del message["reasoning_content"], message["refusal"]
    text = message.pop("content")
    return {**message, "content": [{"type": "text", "text": text}]} if text else message


def openai_agents(answer):
    message = chat_message(answer)
    return {key: value for key, value in message.items() if key in ("role", "content", "tool_calls")}


def langchain(answer):
    return with_calls(openai_agents(answer), lambda arguments: json.dumps(json.loads(arguments)))


@pytest.mark.parametrize("answer", [TWO, NO_TEXT])
@pytest.mark.parametrize(
    ("agent", "thinks"),
    [
        (codes_itself, True),
        (qwen_code, True),
        (opencode, True),
        (pi, True),
        (open_hands, False),
        (openai_agents, False),
        (langchain, False),
    ],
)
def test_a_chat_turn_comes_back(agent, thinks, answer):
    (message,) = came_back("chat", [agent(answer)])
    ids = frozenset(call.id for call in answer.calls)
    wanted = as_sent(answer, ids=ids, reasoning=answer.reasoning if thinks else None)
    assert meaning(message) == meaning(wanted)


def meaning(message):
    """A message with its arguments parsed and its thinking stripped, which Qwen Code does."""
    calls = tuple(
        (call.id, call.name, json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments)
        for call in message.calls
    )
    return dataclasses.replace(message, calls=calls, reasoning=message.reasoning and message.reasoning.strip())


def test_arguments_that_an_agent_keeps_are_as_the_policy_wrote_them():
    (message,) = came_back("chat", [codes_itself(TWO)])
    assert [call.arguments for call in message.calls] == [call.arguments for call in TWO.calls]
    (message,) = came_back("responses", answered("responses", TWO)["output"])
    assert [call.arguments for call in message.calls] == [call.arguments for call in TWO.calls]


def test_a_flattened_call_stays_text():
    # smolagents: the call as a Python repr behind the text, its result as a user's message.
    calls = [{"id": call.id, "type": "function", "function": {"name": call.name}} for call in TWO.calls]
    flat = f"Let me look.\nCalling tools:\n{calls}"
    history = [
        {"role": "assistant", "content": [{"type": "text", "text": flat}]},
        {"role": "user", "content": [{"type": "text", "text": "Observation:\nsunny"}]},
    ]
    call = read("chat", request("chat", history))
    assert call.messages[1].content == flat
    assert call.messages[1].calls == ()
    assert call.messages[2].content == "Observation:\nsunny"


# ---------------------------------------------------------------------------- responses


def codex(answer):
    items = answered("responses", answer)["output"]
    return [{**item, "content": None} if item["type"] == "reasoning" else item for item in items]


def langchain_responses(answer):
    items = [dict(item) for item in answered("responses", answer)["output"]]
    for item in items:
        if item["type"] == "message":
            del item["status"]
    return items


def without_item_ids(answer):
    """An agent that drops the ids of items and their `type`, where it is a message."""
    return [
        {key: value for key, value in item.items() if key != "id" and value != "message"}
        for item in answered("responses", answer)["output"]
    ]


@pytest.mark.parametrize("answer", [TWO, NO_TEXT, PLAIN])
@pytest.mark.parametrize("agent", [codex, langchain_responses])
def test_a_turn_of_items_comes_back_with_all_its_ids(agent, answer):
    (message,) = came_back("responses", agent(answer))
    ids = {answer.id, *(call.id for call in answer.calls)}
    assert message == as_sent(answer, ids=frozenset(ids))


def test_a_turn_without_item_ids_is_found_by_its_thinking_or_its_calls():
    (message,) = came_back("responses", without_item_ids(TWO))
    assert message.ids == {TWO.id, *(call.id for call in TWO.calls)}


def pydantic_items(answer, opens="<think>", closes="</think>"):
    thought = f"{opens}\n{answer.reasoning}\n{closes}"
    items = [{"role": "assistant", "content": thought}] if answer.reasoning else []
    items += [{"role": "assistant", "content": answer.content}] if answer.content else []
    return items + [
        {"type": "function_call", "name": call.name, "arguments": dumped(call.arguments), "call_id": call.id}
        for call in answer.calls
    ]


@pytest.mark.parametrize("answer", [TWO, NO_TEXT, PLAIN])
def test_thinking_that_comes_as_a_message_is_folded_into_its_turn(answer):
    (message,) = came_back("responses", pydantic_items(answer))
    assert meaning(message) == meaning(as_sent(answer, ids=frozenset(call.id for call in answer.calls)))


@pytest.mark.parametrize(
    "tags", [("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>")]
)
def test_thinking_between_the_tags_of_other_models_is_folded_in(tags):
    (message,) = came_back("responses", pydantic_items(TWO, *tags))
    assert message.reasoning == TWO.reasoning


@pytest.mark.parametrize("content", ["<think>a</think> b", "<think>a", "a</think>", "<think>", "<thinking>a</think>"])
def test_a_message_with_more_than_thinking_is_an_answer(content):
    (message,) = came_back("responses", [{"role": "assistant", "content": content}])
    assert (message.content, message.reasoning) == (content, None)


def test_turns_without_anything_between_them_stay_apart():
    first, second = came_back("responses", [*codex(PLAIN), *codex(NO_TEXT)])
    assert (first.ids & {PLAIN.id}, second.ids & {NO_TEXT.id}) == ({PLAIN.id}, {NO_TEXT.id})
    items = [*pydantic_items(PLAIN), *pydantic_items(PLAIN)]
    assert [message.content for message in came_back("responses", items)] == [PLAIN.content] * 2


# ---------------------------------------------------------------------------- messages


def claude_code(answer, **body):
    content = answered("messages", answer, thinking={"type": "adaptive"}, **body)["content"]
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("answer", [TWO, NO_TEXT])
def test_a_turn_of_blocks_comes_back_with_all_its_ids(answer):
    (message,) = came_back("messages", [claude_code(answer)])
    wanted = as_sent(answer, ids=frozenset({answer.id, *(call.id for call in answer.calls)}))
    assert meaning(message) == meaning(wanted)


def test_a_turn_without_thinking_is_found_by_its_calls():
    content = answered("messages", TWO)["content"]
    (message,) = came_back("messages", [{"role": "assistant", "content": content}])
    assert message.reasoning is None
    assert message.ids == {call.id for call in TWO.calls}


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_every_mark_of_ours_is_short_and_harmless(wire):
    body = json.dumps(answered(wire, called(ODD, name="f"), thinking={"type": "enabled"}))
    assert TEXT.strip() in body
    assert THOUGHT.split("\n")[0] in body
    marks = [word for word in body.split('"') if TWO.id in word]
    assert marks
    assert all(len(mark) <= 64 and mark.replace("_", "").isalnum() for mark in marks)


# ---------------------------------------------------------------------------- broken arguments

BROKEN = '{"command": "echo hel'


def broken_chat(arguments):
    function = {"name": "get_weather", "arguments": arguments}
    return [{"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}]


def broken_messages(given):
    call = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": given}
    return [{"role": "assistant", "content": [call]}]


@pytest.mark.parametrize(
    ("wire", "history"),
    [
        ("chat", broken_chat(BROKEN)),  # Codex, openai-agents
        ("chat", broken_chat(json.dumps({"INVALID_JSON": BROKEN}))),  # pydantic-ai
        ("messages", broken_messages({"INVALID_JSON": BROKEN})),  # as this wire has given it
        ("messages", broken_messages({"__unparsedToolInput": {"raw": BROKEN, "len": len(BROKEN)}})),  # Claude Code
    ],
)
def test_broken_arguments_come_back_as_the_policy_wrote_them(wire, history):
    (message,) = came_back(wire, history)
    assert message.calls[0].arguments == BROKEN


@pytest.mark.parametrize(
    "given",
    [
        {"__unparsedToolInput": {"raw": BROKEN, "len": 5000}},  # cut: it is not what the policy wrote
        {"INVALID_JSON": BROKEN, "more": 1},
        {"INVALID_JSON": 5},
    ],
)
def test_arguments_that_only_look_wrapped_stay(given):
    (message,) = came_back("messages", broken_messages(given))
    assert message.calls[0].arguments == given
    (message,) = came_back("chat", broken_chat(json.dumps(given)))
    assert message.calls[0].arguments == json.dumps(given)


# ---------------------------------------------------------------------------- Codex's tools

CODEX_TOOLS = [
    {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object", "properties": {}}},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Agents that work for you.",
        "tools": [
            {"type": "function", "name": "spawn", "description": "Begin one.", "parameters": {"type": "object"}},
            {"type": "function", "name": "wait", "description": "Wait for one.", "parameters": {"type": "object"}},
        ],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
    },
    {"type": "web_search", "external_web_access": False},
]


def test_codexs_tools_are_offered_as_functions_or_named_as_left_out():
    call = read("responses", {"input": "go", "tools": CODEX_TOOLS, "tool_choice": "auto"})
    functions = [tool["function"] for tool in call.tools]
    assert [function["name"] for function in functions] == [
        "exec_command",
        "agents__spawn",
        "agents__wait",
        "apply_patch",
    ]
    assert functions[1]["description"] == "Agents that work for you.\n\nBegin one."
    assert functions[2]["description"] == "Wait for one."
    assert "*** Begin Patch" in functions[3]["parameters"]["properties"]["input"]["description"]
    assert functions[0] == {"name": "exec_command", "parameters": {"type": "object", "properties": {}}}
    assert call.left_out == ("tools.apply_patch.format", "tools.web_search")


def test_a_call_of_a_namespaces_tool_goes_out_with_its_namespace_and_comes_back_as_it_was():
    answer = called('{"task": "look"}', name="agents__spawn")
    items = answered("responses", answer, tools=CODEX_TOOLS)["output"]
    assert (items[-1]["namespace"], items[-1]["name"]) == ("agents", "spawn")
    (message,) = came_back("responses", items)
    assert message == as_sent(answer, ids=frozenset({answer.id, answer.calls[0].id}))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (json.dumps({"input": "*** Begin Patch\n"}), "*** Begin Patch\n"),
        (BROKEN, BROKEN),
        ('{"patch": "x"}', '{"patch": "x"}'),
    ],
)
def test_a_call_of_a_custom_tool_goes_out_as_its_text(arguments, text):
    answer = called(arguments, name="apply_patch")
    call = read("responses", {"input": "go", "tools": CODEX_TOOLS})
    items = BY_NAME["responses"].answer(call, answer)["output"]
    assert (items[-1]["type"], items[-1]["input"]) == ("custom_tool_call", text)
    events = b"".join(BY_NAME["responses"].events(call, answer)).decode()
    assert "response.custom_tool_call_input.delta" in events
    output = {"type": "custom_tool_call_output", "call_id": answer.calls[0].id, "output": "done"}
    messages = read("responses", request("responses", [*items, output])).messages
    came = messages[1].calls[0].arguments
    assert (came if isinstance(came, str) else json.dumps(came)) == arguments
    assert messages[1].ids == {answer.id, answer.calls[0].id}
    assert (messages[2].role, messages[2].content, messages[2].call_id) == ("tool", "done", answer.calls[0].id)
