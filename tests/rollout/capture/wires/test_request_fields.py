"""The tables of fields: complete for the official SDKs, and what the rules of a session change."""

from __future__ import annotations

import typing

import pytest

from tests.rollout.capture.wires.scripted import BY_NAME
from toolgym.rollout.capture.agent_call import AgentMessage, CallRefusedError
from toolgym.rollout.capture.request_fields import TABLES, Treatment, treatment_of
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.tools.errors import ConfigError

USER = {"role": "user", "content": "hi"}
BODIES = {"chat": {"messages": [USER]}, "responses": {"input": "hi"}, "messages": {"messages": [USER]}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMATS = [
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
    ("messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ("messages", {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
]


def read(wire, body, **rules):
    return BY_NAME[wire].read({**BODIES[wire], **body}, RequestMemory(), CaptureRules(**rules))


def names_of(*kinds):
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


@pytest.mark.parametrize("wire", TABLES)
def test_every_field_of_the_official_clients_is_in_the_table(wire):
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    from anthropic.types import beta, message_create_params
    from openai.types.chat import completion_create_params
    from openai.types.responses import response_create_params

    names = {
        "chat": lambda: completion_create_params.CompletionCreateParamsBase.__annotations__,
        "responses": lambda: response_create_params.ResponseCreateParamsBase.__annotations__,
        "messages": lambda: {
            **message_create_params.MessageCreateParamsBase.__annotations__,
            **beta.message_create_params.MessageCreateParamsBase.__annotations__,
        },
    }[wire]()
    assert set(names) - set(TABLES[wire]) == set()


@pytest.mark.parametrize(
    ("name", "treatment"),
    [
        ("thread_id", Treatment.REFUSED),
        ("parent_message", Treatment.REFUSED),
        ("reset_state", Treatment.REFUSED),
        ("previous_turn", Treatment.REFUSED),
        ("sampler_mode", Treatment.COUNTED),
        ("provider_options", Treatment.COUNTED),
        ("session_id", Treatment.HARMLESS),
    ],
)
def test_an_unknown_field_whose_name_speaks_of_context_is_refused(name, treatment):
    assert treatment_of(TABLES["chat"], name).treatment is treatment


def test_the_refusal_names_the_field_for_clients():
    with pytest.raises(CallRefusedError) as refused:
        read("chat", {"continue_final_message": True})
    body = BY_NAME["chat"].refusal(refused.value)
    assert (body["error"]["code"], body["error"]["param"]) == ("unsupported_parameter", "continue_final_message")


def test_a_thread_is_refused_as_anthropics_client_expects_it():
    with pytest.raises(CallRefusedError) as refused:
        read("messages", {"thread": {"type": "continue", "previous_message_id": "msg_1"}})
    error = BY_NAME["messages"].refusal(refused.value)["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}


@pytest.mark.parametrize(
    ("wire", "body", "name"),
    [
        ("chat", {"continue_final_message": True}, "continue_final_message"),
        ("chat", {"stop": ["x"]}, "stop"),
        ("chat", {"n": 3}, "n"),
        ("messages", {"thread": {"type": "create"}}, "thread"),
        ("messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ],
)
def test_a_session_may_ignore_a_field(wire, body, name):
    call = read(wire, body, ignored=(name,))
    assert call.left_out == (name,)
    assert (call.choices, call.sampling, call.grammar) == (1, {}, None)


def test_a_session_may_refuse_a_field_that_is_otherwise_ignored():
    with pytest.raises(CallRefusedError, match="tool_choice: the rules of this session refuse it"):
        read("chat", {"tool_choice": "required"}, refused=("tool_choice",))
    assert read("chat", {"tool_choice": "none"}, refused=("tool_choice",)).plain


@pytest.mark.parametrize(("wire", "body"), FORMATS)
def test_a_format_is_refused_ignored_or_followed_as_the_session_says(wire, body):
    with pytest.raises(CallRefusedError, match="samples without a grammar; ask for the format in the prompt, or"):
        read(wire, body)
    ignored = read(wire, body, formats="ignore")
    assert (ignored.grammar, len(ignored.left_out)) == (None, 1)
    kind, text = read(wire, body, formats="follow").grammar
    assert (kind, text) == ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')


def test_formats_that_no_grammar_stands_for_are_refused_by_name():
    for value, text in (({"type": "poem"}, r"response_format.type must be text"), ({"type": "json_schema"}, "schema")):
        with pytest.raises(CallRefusedError, match=text):
            read("chat", {"response_format": value}, formats="follow")
    assert read("chat", {"response_format": {"type": "json_object"}}, formats="follow").grammar[0] == "json_schema"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"ignored": ("stopp",)}, "ignored names an unknown request field 'stopp'.*'stop'"),
        ({"refused": ("nothing",)}, "refused names an unknown request field 'nothing'"),
        ({"formats": "maybe"}, "formats must be one of refuse, follow, ignore, got 'maybe'"),
    ],
)
def test_wrong_rules_are_named(rules, text):
    with pytest.raises(ConfigError, match=text):
        CaptureRules(**rules)


@pytest.mark.parametrize(("wire", "choice"), [("chat", "none"), ("responses", "none"), ("messages", {"type": "none"})])
def test_no_tool_is_wanted(wire, choice):
    call = read(wire, {"tool_choice": choice})
    assert (call.plain, call.left_out) == (True, ())


def test_a_response_of_the_session_stands_for_the_history_before_it():
    memory = RequestMemory()
    history = (AgentMessage("user", "hi"), AgentMessage("assistant", "ho"))
    memory.keep_conversation("resp_1", history)
    body = {"input": "and now?", "instructions": "You code.", "previous_response_id": "resp_1"}
    messages = BY_NAME["responses"].read(body, memory).messages
    assert messages == (AgentMessage("system", "You code."), *history, AgentMessage("user", "and now?"))


def test_the_page_has_the_tables_of_the_code():
    from scripts import request_fields

    page = request_fields.PAGE.read_text()
    assert request_fields.with_tables(page) == page, "run scripts/request_fields.py --write"
