"""Operations of the official SDKs against the gateway: served, or refused with the exception that the SDK has."""

from __future__ import annotations

import pytest

from toolgym.rollout.capture import CaptureServer

pydantic = pytest.importorskip("pydantic")

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
SAID = "Fine. STOP Not this."


class Answer(pydantic.BaseModel):
    number: int


async def drained(stream):
    return [event async for event in stream]


async def helped(manager):
    async with manager as stream:
        return [event async for event in stream]


async def chat(client, **fields):
    return await client.chat.completions.create(model="policy", messages=HI, **fields)


async def respond(client, **fields):
    return await client.responses.create(**{"model": "policy", "input": "hi", **fields})


async def message(client, **fields):
    return await client.messages.create(**{"model": "policy", "max_tokens": 64, "messages": HI, **fields})


async def continued(client):
    first = await respond(client)
    return await respond(client, input="and now?", previous_response_id=first.id)


async def retrieved(client):
    first = await respond(client)
    return await client.responses.retrieve(first.id)


SERVED = {
    "chat": (lambda o, a: chat(o), lambda r: r.choices[0].message.content == SAID and r._request_id),
    "chat, stream": (lambda o, a: stream_of(chat(o, stream=True)), lambda r: r[-1].choices[0].finish_reason == "stop"),
    "chat, usage": (
        lambda o, a: stream_of(chat(o, stream=True, stream_options={"include_usage": True})),
        lambda r: r[-1].usage.completion_tokens > 0,
    ),
    "chat, tools": (lambda o, a: chat(o, tools=[TOOL]), lambda r: r.choices[0].finish_reason == "stop"),
    "chat, no tool wanted": (
        lambda o, a: chat(o, tools=[TOOL], tool_choice="none"),
        lambda r: not r.choices[0].message.tool_calls,
    ),
    "chat, stop": (lambda o, a: chat(o, stop="STOP"), lambda r: r.choices[0].message.content == "Fine. "),
    "chat, n": (lambda o, a: chat(o, n=3), lambda r: [choice.index for choice in r.choices] == [0, 1, 2]),
    "chat, n, stream": (
        lambda o, a: stream_of(chat(o, n=2, stream=True)),
        lambda r: {choice.index for chunk in r for choice in chunk.choices} == {0, 1},
    ),
    "chat, logprobs": (
        lambda o, a: chat(o, logprobs=True),
        lambda r: "".join(token.token for token in r.choices[0].logprobs.content).startswith("Fine."),
    ),
    "chat, seed": (lambda o, a: chat(o, seed=3, temperature=0.5, user="u"), lambda r: r.choices),
    "chat, helper": (
        lambda o, a: helped(o.chat.completions.stream(model="policy", messages=HI)),
        lambda r: any(event.type == "content.done" for event in r),
    ),
    "models": (lambda o, a: o.models.list(), lambda r: [model.id for model in r.data] == ["policy"]),
    "models, one": (lambda o, a: o.models.retrieve("policy"), lambda r: r.id == "policy"),
    "models, one with a slash": (lambda o, a: o.models.retrieve("org/policy"), lambda r: r.id == "org/policy"),
    "responses": (lambda o, a: respond(o), lambda r: r.output_text == SAID),
    "responses, stream": (
        lambda o, a: stream_of(respond(o, stream=True)),
        lambda r: r[-1].type == "response.completed",
    ),
    "responses, previous": (lambda o, a: continued(o), lambda r: r.usage.input_tokens > 10),
    "responses, logprobs": (
        lambda o, a: respond(o, include=["message.output_text.logprobs"]),
        lambda r: r.output[0].content[0].logprobs[0].logprob < 0,
    ),
    "responses, tokens": (
        lambda o, a: o.responses.input_tokens.count(model="policy", input="hi"),
        lambda r: r.input_tokens > 0,
    ),
    "messages": (lambda o, a: message(a), lambda r: r.content[0].text == SAID and r.stop_reason == "end_turn"),
    "messages, stream": (lambda o, a: stream_of(message(a, stream=True)), lambda r: r[-1].type == "message_stop"),
    "messages, stop": (
        lambda o, a: message(a, stop_sequences=["STOP"]),
        lambda r: (r.stop_reason, r.stop_sequence, r.content[0].text) == ("stop_sequence", "STOP", "Fine. "),
    ),
    "messages, tokens": (
        lambda o, a: a.messages.count_tokens(model="policy", messages=HI),
        lambda r: r.input_tokens > 0,
    ),
    "anthropic models": (lambda o, a: a.models.list(), lambda r: r.data[0].id == "policy"),
    "anthropic model": (lambda o, a: a.models.retrieve("policy"), lambda r: r.id == "policy"),
}

REFUSED = {
    "chat, format": (lambda o, a: chat(o, response_format={"type": "json_object"}), 400, "response_format"),
    "chat, parse": (
        lambda o, a: o.chat.completions.parse(model="policy", messages=HI, response_format=Answer),
        400,
        "response_format",
    ),
    "chat, top_logprobs": (lambda o, a: chat(o, logprobs=True, top_logprobs=2), 400, "top_logprobs"),
    "responses, parse": (
        lambda o, a: o.responses.parse(model="policy", input="hi", text_format=Answer),
        400,
        "text.format",
    ),
    "responses, unknown previous": (
        lambda o, a: respond(o, previous_response_id="resp_x"),
        400,
        "previous_response_id",
    ),
    "responses, conversation": (lambda o, a: respond(o, conversation="conv_1"), 400, "conversation"),
    "responses, background": (lambda o, a: respond(o, background=True), 400, "background"),
    "responses, retrieve": (lambda o, a: retrieved(o), 404, None),
    "completions": (lambda o, a: o.completions.create(model="policy", prompt="hi"), 404, None),
    "embeddings": (lambda o, a: o.embeddings.create(model="policy", input="hi"), 404, None),
    "conversations": (lambda o, a: o.conversations.create(), 404, None),
    "files": (lambda o, a: o.files.list(), 404, None),
    "moderations": (lambda o, a: o.moderations.create(input="hi"), 404, None),
    "batches": (lambda o, a: o.batches.list(), 404, None),
}

REFUSED_BY_ANTHROPIC = {
    "prefill": (lambda a: message(a, messages=[*HI, {"role": "assistant", "content": "{"}]), 400, "prefill"),
    "format": (
        lambda a: message(a, extra_body={"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
        400,
        "output_config.format",
    ),
    "thread": (lambda a: message(a, extra_body={"thread": {"type": "create"}}), 400, "thread"),
    "batches": (lambda a: a.messages.batches.list(), 404, "not GET"),
}


async def stream_of(awaitable):
    return await drained(await awaitable)


@pytest.fixture(scope="module")
def openai():
    """The SDK, which only the process that plays these tests imports: that takes a second."""
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def anthropic():
    """The SDK, which only the process that plays these tests imports: that takes four seconds."""
    return pytest.importorskip("anthropic")


@pytest.fixture
async def clients(scripted, openai, anthropic):
    engine = scripted(lambda text, request_id: SAID)
    async with CaptureServer(engine) as server:
        session = await server.open("t")
        async with (
            openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.key, max_retries=0) as ours,
            anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.key, max_retries=0) as theirs,
        ):
            yield ours, theirs


async def test_operations_that_are_served(clients):
    wrong = {}
    for name, (operate, holds) in SERVED.items():
        try:
            result = await operate(*clients)
            if not holds(result):
                wrong[name] = repr(result)[:300]
        except Exception as error:
            wrong[name] = repr(error)[:300]
    assert wrong == {}


async def test_operations_that_openais_client_sees_refused(clients, openai):
    wrong = {}
    expected = {400: openai.BadRequestError, 404: openai.NotFoundError}
    for name, (operate, status, param) in REFUSED.items():
        try:
            wrong[name] = repr(await operate(*clients))[:200]
        except openai.APIStatusError as error:
            kinds = {400: "invalid_request_error", 404: "not_found_error"}
            shown = (type(error), error.status_code, error.param, error.type, bool(error.code), bool(error.request_id))
            if shown != (expected[status], status, param, kinds[status], True, True):
                wrong[name] = shown
    assert wrong == {}


async def test_operations_that_anthropics_client_sees_refused(clients, anthropic):
    for operate, status, text in REFUSED_BY_ANTHROPIC.values():
        with pytest.raises(anthropic.APIStatusError, match=text) as refused:
            await operate(clients[1])
        assert refused.value.status_code == status
        assert isinstance(refused.value, anthropic.BadRequestError if status == 400 else anthropic.NotFoundError)
        assert refused.value.body["type"] == "error"
        assert refused.value.request_id
