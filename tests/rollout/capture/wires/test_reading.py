"""Requests of the shapes that agents send, read; and those that no turn can answer, refused by the field's name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.capture.wires.scripted import BY_NAME, read
from toolgym.rollout.capture.agent_call import AgentMessage, CallRefusedError
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.capture.wires.messages import BILLING
from toolgym.rollout.capture.wires.unreadable import without_surrogates

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
OFFERED = {"type": "function", "function": {"name": "bash", "description": "Run it.", "parameters": SCHEMA}}

NAMED = ("messages.name", "messages.audio")
FAILED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}]}


def bodies():
    """A smallest request of each wire."""
    return {"chat": {"messages": [USER]}, "responses": {"input": "hi"}, "messages": {"messages": [USER]}}


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_the_smallest_request_asks_for_a_turn_and_nothing_else(wire):
    call = read(wire, bodies()[wire])
    assert (call.wire, call.messages, call.tools) == (wire, (AgentMessage("user", "hi"),), ())
    assert (call.model, call.max_tokens, dict(call.sampling), call.stream, call.left_out) == ("", None, {}, False, ())


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("chat", {"tools": [{**OFFERED, "function": {**OFFERED["function"], "strict": True}}]}),
        ("responses", {"tools": [{"type": "function", "strict": True, **OFFERED["function"]}]}),
        (
            "messages",
            {
                "tools": [
                    {
                        "name": "bash",
                        "description": "Run it.",
                        "input_schema": SCHEMA,
                        "cache_control": {"type": "ephemeral"},
                    }
                ]
            },
        ),
    ],
)
def test_tools_have_one_shape_and_only_that_which_a_model_reads(wire, body):
    assert read(wire, {**bodies()[wire], **body}).tools == (OFFERED,)


@pytest.mark.parametrize(
    ("wire", "body", "tokens"),
    [
        ("chat", {"max_tokens": 8000, "stop": ["a", ""], "seed": 3, "stream": True, "temperature": 0}, 8000),
        (
            "chat",
            {"max_completion_tokens": 9, "max_tokens": 8, "stop": "a", "seed": 3, "stream": True, "temperature": 0},
            9,
        ),
        ("responses", {"max_output_tokens": 7, "stop": "a", "seed": 3, "stream": True, "temperature": 0.0}, 7),
        (
            "messages",
            {"max_tokens": 32000, "stop_sequences": ["a"], "seed": 3, "stream": True, "temperature": 0},
            32000,
        ),
    ],
)
def test_sampling_is_read_under_every_wires_names(wire, body, tokens):
    call = read(wire, {**bodies()[wire], **body})
    assert call.max_tokens == tokens
    assert dict(call.sampling) == {"temperature": 0, "stop": ("a",), "seed": 3}
    assert call.stream


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("chat", {"store": False, "prompt_cache_key": "k", "n": 1}),
        ("chat", {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True}),
        ("chat", {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "logit_bias": {}}),
        ("responses", {"store": True, "include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"}}),
        ("responses", {"text": {"format": {"type": "text"}}, "reasoning": {"summary": "auto"}}),
        (
            "messages",
            {"metadata": {"user_id": "u"}, "context_management": {"edits": []}, "thinking": {"type": "adaptive"}},
        ),
        ("messages", {"output_config": {}, "tool_choice": {"type": "auto"}, "mcp_servers": []}),
    ],
)
def test_fields_that_ask_for_nothing_are_overlooked(wire, body):
    assert read(wire, {**bodies()[wire], **body}).left_out == ()


@pytest.mark.parametrize(
    ("wire", "body", "names"),
    [
        ("chat", {"tool_choice": "required", "tools": [OFFERED]}, ("tool_choice",)),  # smolagents, always
        ("chat", {"tool_choice": "none", "parallel_tool_calls": False}, ("parallel_tool_calls",)),
        ("chat", {"presence_penalty": 1.0, "logprobs": True}, ("presence_penalty",)),
        ("chat", {"reasoning_effort": "high", "min_p": 0.1}, ("reasoning_effort", "min_p")),
        ("chat", {"new_knob": 1, "verbosity": "low"}, ("new_knob", "verbosity")),
        ("chat", {"messages": [{**USER, "name": "Ann"}, {"role": "assistant", "audio": {"id": "a"}}]}, NAMED),
        ("chat", {"tools": [{**OFFERED, "function": {"name": "f", "strict": True}}]}, ("tools.strict",)),
        ("responses", {"truncation": "auto", "text": {"verbosity": "low"}}, ("truncation", "text.verbosity")),
        ("responses", {"input": [USER, {"type": "reasoning", "encrypted_content": "gAAA"}]}, ("encrypted_content",)),
        ("messages", {"mcp_servers": [{"url": "https://x"}], "container": "c"}, ("mcp_servers", "container")),
        ("messages", {"context_management": {"edits": [{}]}}, ("context_management.edits",)),
        ("messages", {"output_config": {"effort": "high"}}, ("output_config.effort",)),
        ("messages", {"messages": [FAILED]}, ("tool_result.is_error",)),
        (
            "responses",
            {"tool_choice": "required", "parallel_tool_calls": False},
            ("tool_choice", "parallel_tool_calls"),
        ),
        (
            "responses",
            {"tools": [{"type": "web_search"}, {"type": "file_search"}]},
            ("tools.web_search", "tools.file_search"),
        ),
        (
            "messages",
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            ("tools.web_search_20250305",),
        ),
        (
            "messages",
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            ("tool_choice.disable_parallel_tool_use", "tool_choice"),
        ),
        # Claude Code's title: a side call in a format, before the first call of the main agent.
        (
            "messages",
            {
                "system": [{"type": "text", "text": f"{BILLING} x"}],
                "output_config": {"format": {"type": "json_schema"}},
            },
            ("output_config.format",),
        ),
    ],
)
def test_fields_that_ask_for_more_than_a_turn_gets_are_named(wire, body, names):
    assert read(wire, {**bodies()[wire], **body}).left_out == names


@pytest.mark.parametrize(
    ("wire", "body", "text"),
    [
        ("chat", {"n": 0}, "n must be a whole number from 1 to 128, got 0"),
        ("chat", {"n": "many"}, "n must be a whole number from 1 to 128, got 'many'"),
        ("responses", {"n": 2}, "n: this wire has one answer to a request"),
        ("chat", {"top_logprobs": 5}, "top_logprobs: the engine tells the log-probabilities of sampled tokens only"),
        ("chat", {"continue_final_message": True}, "continue_final_message: this gateway begins a turn of its own"),
        ("chat", {"add_generation_prompt": False}, "add_generation_prompt: this gateway begins a turn of its own"),
        ("chat", {"documents": [{"text": "x"}]}, "documents: this gateway renders the prompt itself"),
        ("chat", {"best_of": 3}, "best_of: this gateway drops no answer"),
        ("chat", {"conversation_id": "c"}, "conversation_id: this gateway does not know this field, which may carry"),
        ("messages", {"thread": {"type": "create"}}, "thread: this server keeps no threads"),
        ("messages", {"previous_message_id": "m"}, "previous_message_id: this gateway does not know this field"),
        (
            "chat",
            {"response_format": {"type": "json_schema"}},
            "response_format: .* without a grammar",
        ),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"guided_regex": "a+"}, "guided_regex: this gateway samples without a grammar"),
        ("chat", {"modalities": ["text", "audio"]}, "modalities: this server answers with texts only"),
        ("chat", {"functions": [{"name": "f"}]}, "functions: this is the old name of `tools`"),
        ("chat", {"messages": []}, "messages must be a list of at least one message"),
        ("chat", {"messages": None}, "messages must be a list of at least one message, got nothing"),
        ("chat", {"messages": "hi"}, "messages must be a list, got 'hi'"),
        ("chat", {"messages": ["hi"]}, r"messages\[0\] must be an object, got 'hi'"),
        ("chat", {"messages": [{"role": "robot"}]}, r"messages\[0\].role must be system, .* got 'robot'"),
        ("chat", {"messages": [{"role": ["user"]}]}, r"messages\[0\].role must be system"),
        ("chat", {"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content must be a text or a list"),
        ("chat", {"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].tool_call_id must be a text"),
        ("chat", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, r"tools\[0\].type"),
        ("chat", {"tools": [{"type": "function", "function": {"name": ""}}]}, r"tools\[0\].function.name must be"),
        ("chat", {"max_tokens": 0}, "max_tokens must be a number of tokens, at least 1, got 0"),
        ("chat", {"max_tokens": True}, "max_tokens must be"),
        ("chat", {"temperature": "hot"}, "temperature must be a number from 0 to 100, got 'hot'"),
        ("chat", {"temperature": -1}, "temperature must be a number from 0 to 100, got -1"),
        ("chat", {"temperature": float("nan")}, "temperature must be a number from 0 to 100, got nan"),
        ("chat", {"seed": 1.5}, "seed must be a whole number"),
        ("chat", {"stop": [1]}, "stop must be a text or a list of texts"),
        ("chat", {"stream": "yes"}, "stream must be true or false, got 'yes'"),
        ("chat", {"stream_options": 5}, "stream_options must be an object"),
        ("responses", {"input": None}, "input must be a text or a list of at least one item, got nothing"),
        ("responses", {"input": []}, "input must be"),
        ("responses", {"input": [{"type": "item_reference", "id": "rs_1"}]}, r"input\[0\]: this server keeps no items"),
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format: this server samples without",
        ),
        ("responses", {"previous_response_id": "resp_1"}, "there is no response 'resp_1' in this session"),
        ("responses", {"previous_response_id": 5}, "previous_response_id must be a text, got 5"),
        ("responses", {"conversation": "conv_1"}, "conversation: this server keeps none"),
        ("responses", {"background": True}, "background: this server answers at once only"),
        (
            "responses",
            {"tools": [{"type": "local_shell"}]},
            r"tools\[0\]: a tool of type 'local_shell' brings no schema",
        ),
        ("messages", {"messages": []}, "messages must be a list of at least one message"),
        (
            "messages",
            {"messages": [USER, {"role": "assistant", "content": "{"}]},
            r"messages: the last one must not be the assistant's: .* \(prefill\)",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "tool_use_id must be a text",
        ),
        (
            "messages",
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            "a tool of type 'bash_20250124' brings no schema",
        ),
        (
            "messages",
            {"tools": [{"name": "x", "input_schema": SCHEMA}], "output_config": {"format": {"type": "json_schema"}}},
            "output_config.format: this server samples without a grammar",
        ),
    ],
)
def test_a_request_that_no_turn_can_answer_is_refused_by_its_fields_name(wire, body, text):
    with pytest.raises(CallRefusedError, match=text) as refused:
        read(wire, {**bodies()[wire], **body})
    assert refused.value.status == 400
    assert "\n" not in str(refused.value)
    assert str(refused.value) in json.dumps(BY_NAME[wire].refusal(refused.value), ensure_ascii=False)


def test_a_previous_response_is_overlooked_if_the_history_is_there():
    history = [USER, {"role": "assistant", "content": "ho"}, USER]
    assert len(read("responses", {"input": history, "previous_response_id": "resp_1"}).messages) == 3


# ---------------------------------------------------------------------------- contents


@pytest.mark.parametrize(
    "content", ["a\nb", [{"type": "text", "text": "a\nb"}], [{"type": "text", "text": "a"}, {"text": "b"}]]
)
def test_a_text_and_its_parts_are_the_same(content):
    assert read("chat", {"messages": [{"role": "user", "content": content}]}).messages[0].content == "a\nb"
    assert read("messages", {"messages": [{"role": "user", "content": content}]}).messages[0].content == "a\nb"


@pytest.mark.parametrize("content", [None, "", []])
def test_contents_that_say_nothing_are_the_same(content):
    message = {"role": "assistant", "content": content}
    assert read("chat", {"messages": [message]}).messages == (AgentMessage("assistant", ""),)
    assert read("chat", {"messages": [{"role": "assistant"}]}).messages == (AgentMessage("assistant", ""),)


def test_a_developer_is_a_system():
    # pi, Codex
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    assert read("chat", {"messages": messages}).messages[0] == AgentMessage("system", "Be brief.")
    parts = [{"type": "input_text", "text": "Be brief."}, {"type": "input_text", "text": "Be kind."}]
    items = [{"type": "message", "id": "msg_5", "role": "developer", "content": parts}]
    call = read("responses", {"instructions": "You code.", "input": items})
    assert call.messages == (AgentMessage("system", "You code."), AgentMessage("system", "Be brief.\nBe kind."))


def test_the_billing_line_of_claude_code_is_left_out_and_cache_marks_are_overlooked():
    def asked(billed, marked):
        mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{billed}; cc_entrypoint=sdk-cli;"}
        system = [line, {"type": "text", "text": "You code."}, {"type": "text", "text": "Be brief.", **mark}]
        return read(
            "messages",
            {"system": system, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}]},
        )

    assert asked("f89", True).messages == asked("d55", False).messages
    assert asked("f89", True).messages[0] == AgentMessage("system", "You code.\nBe brief.")
    only = [{"type": "text", "text": "x-anthropic-billing-header: a"}]
    assert read("messages", {"system": only, "messages": [USER]}).messages == (AgentMessage("user", "hi"),)


def test_a_late_system_message_stays_at_its_place():
    messages = [USER, {"role": "system", "content": "Agents: none."}]
    call = read("messages", {"system": "You code.", "messages": messages})
    assert [message.role for message in call.messages] == ["system", "user", "system"]


def test_tool_results_and_the_texts_between_them_keep_their_order():
    calls = [{"type": "tool_use", "id": id, "name": "bash", "input": {}} for id in ("a", "b")]
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": "second"},
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "first"}], "is_error": True},
        {"type": "text", "text": "Go on."},
        {"type": "text", "text": "Please."},
    ]
    messages = [USER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    assert read("messages", {"messages": messages}).messages[2:] == (
        AgentMessage("tool", "second", call_id="b"),
        AgentMessage("tool", "first", call_id="a"),
        AgentMessage("user", "Go on.\nPlease."),
    )


def test_results_come_in_the_order_of_the_request_on_every_wire():
    items = [
        USER,
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "second"}]},
        {"type": "function_call_output", "call_id": "a", "output": "first"},
    ]
    call = read("responses", {"input": items})
    assert [message.call_id for message in call.messages] == ["", "", "b", "a"]
    assert [message.content for message in call.messages[2:]] == ["second", "first"]


def test_thinking_of_another_model_is_left_out_of_a_turn():
    blocks = [{"type": "redacted_thinking", "data": "xx"}, {"type": "text", "text": "ho"}]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    assert read("messages", {"messages": messages}).messages[1] == AgentMessage("assistant", "ho")


def test_what_an_agent_cannot_say_again_is_named_where_it_is_new():
    memory, blocks = RequestMemory(), [{"type": "redacted_thinking", "data": "xx"}, {"type": "text", "text": "ho"}]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    assert BY_NAME["messages"].read({"messages": messages}, memory).left_out == ("redacted_thinking",)
    assert BY_NAME["messages"].read({"messages": [*messages, USER]}, memory).left_out == ()


def test_a_refusal_is_the_text_of_its_turn():
    turn = {"role": "assistant", "content": None, "refusal": "No."}
    assert read("chat", {"messages": [turn, USER]}).messages[0] == AgentMessage("assistant", "No.")


def test_an_image_in_a_tools_result_is_kept_or_noted():
    # Codex's view_image
    output = {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "data:"}]}
    call = read("responses", {"input": [output]})
    assert (call.messages[0].content, call.left_out) == ("[image omitted: 0 bytes]", ("content.image",))
    output["output"][0]["image_url"] = IMAGE["image_url"]["url"]
    [message] = read("responses", {"input": [output]}).messages
    assert message.images == (IMAGE["image_url"]["url"],)


PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x" * 2000}


@pytest.mark.parametrize(
    ("block", "text", "omitted"),
    [
        ({"type": "document", "source": PDF}, "[document omitted: application/pdf, 12 kB]", True),
        ({"type": "document", "title": "a.pdf", "source": PDF}, "[document omitted: a.pdf, application/pdf, 12 kB]", 1),
        ({"type": "document", "source": {"type": "file", "file_id": "f_1"}}, "[document omitted: f_1]", True),
        ({"type": "document", "source": {"type": "text", "data": "Plain."}}, "Plain.", False),
        ({"type": "document", "source": {"type": "content", "content": "Plain."}}, "Plain.", False),
        ({"type": "tool_reference", "tool_name": "Read"}, "[tool: Read]", False),
        (
            {
                "type": "search_result",
                "source": "https://x.org",
                "title": "T",
                "content": [{"type": "text", "text": "t"}],
            },
            "T, https://x.org\nt",
            False,
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}},
            "[image omitted: https://x.org/a.png]",
            1,
        ),
        (
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            "[server_tool_use omitted: web_search]",
            1,
        ),
        (
            {"type": "file", "file": {"filename": "a\nb.txt", "file_data": "AAAA"}},
            "[file omitted: a b.txt, 3 bytes]",
            True,
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "[audio omitted: wav, 3 bytes]",
            True,
        ),
        (
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            "[video_url omitted: video/mp4, 3 bytes]",
            1,
        ),
        ({"type": "x" * 99, "title": "t" * 200}, f"[part omitted: {'t' * 97}...]", True),
        ({"type": ["list"]}, "[part omitted]", True),
    ],
)
@pytest.mark.parametrize("place", ["chat user", "chat tool", "messages user", "messages result", "responses user"])
def test_a_block_that_cannot_be_read_becomes_a_note(place, block, text, omitted):
    wire, _, role = place.partition(" ")
    parts = [{"type": "text", "text": "Here:"}, block]
    if role == "result":
        content = [{"type": "tool_result", "tool_use_id": "a", "content": parts}]
        messages = [{"role": "user", "content": content}]
    else:
        messages = [{"role": role, "content": parts, "tool_call_id": "a"}]
    call = read(wire, {"input" if wire == "responses" else "messages": messages})
    assert call.messages[-1].content == f"Here:\n{text}"
    assert len(call.left_out) == omitted


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "web_search_call", "id": "ws_1"}, AgentMessage("assistant", "[web_search_call omitted]")),
        (
            {"type": "computer_call_output", "call_id": "c", "output": {}},
            AgentMessage("user", "[computer_call_output omitted] (c)"),
        ),
        (
            {"type": "local_shell_call_output", "output": "a"},
            AgentMessage("user", "[local_shell_call_output omitted]\na"),
        ),
    ],
)
def test_an_item_that_cannot_be_read_becomes_a_note(item, message):
    call = read("responses", {"input": [USER, item]})
    assert (call.messages[1], call.left_out) == (message, (f"input.{item['type']}",))


def test_an_image_in_a_system_prompt_becomes_a_note():
    call = read("chat", {"messages": [{"role": "system", "content": [IMAGE]}, USER]})
    assert call.messages[0].content.startswith("[image omitted: image/png, ")


def test_the_code_point_that_stands_for_an_image_is_replaced_in_texts():
    assert read("chat", {"messages": [{"role": "user", "content": "a\ufdd0b"}]}).messages[0].content == "a\ufffdb"


def test_lone_surrogates_are_replaced_in_keys_and_values():
    value = {"a\ud800": ["\udfff", {"b": "x\ud83d\ude00"}], "n": 1}
    assert without_surrogates(value) == {"a\ufffd": ["\ufffd", {"b": "x\ufffd\ufffd"}], "n": 1}
    assert without_surrogates("😀") == "😀"


# ---------------------------------------------------------------------------- anything at all

WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "system",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "function",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "reasoning",
        "message",
        "namespace",
        "custom",
        "auto",
        "{}",
        "[",
    ]
)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "id",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "name",
        "arguments",
        "input",
        "function",
        "tool_calls",
        "summary",
        "thinking",
        "signature",
        "output",
        "is_error",
        "format",
        "tools",
        "parameters",
        "input_schema",
        "description",
        "namespace",
        "reasoning_content",
        "INVALID_JSON",
        "__unparsedToolInput",
    ]
)
FIELDS = st.sampled_from(
    [
        "messages",
        "input",
        "tools",
        "tool_choice",
        "system",
        "instructions",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_sequences",
        "text",
        "thinking",
        "output_config",
        "n",
        "response_format",
        "modalities",
        "model",
        "previous_response_id",
        "parallel_tool_calls",
        "logit_bias",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(wire=st.sampled_from(sorted(BY_NAME)), body=st.dictionaries(FIELDS, JSON, max_size=4))
def test_a_request_is_read_or_refused_whatever_it_holds(wire, body):
    try:
        messages = read(wire, {**bodies()[wire], **body}).messages
    except CallRefusedError as error:
        refused = error
    else:
        assert messages
        assert all(isinstance(message.content, str) for message in messages)
        return
    assert refused.status == 400
    assert "\n" not in str(refused)
