"""The official clients of OpenAI and Anthropic against the bytes of each wire."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.rollout.capture.wires.scripted import ODD, TEXT, THOUGHT, called, reply, scripted
from toolgym.rollout.capture.agent_call import CallRefusedError
from toolgym.rollout.capture.wires.events import PIECE

QUESTION = [{"role": "user", "content": "weather?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
RESPONSES_TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
MESSAGES_TOOLS = [{"name": "get_weather", "input_schema": SCHEMA}]
THINKING = {"type": "enabled", "budget_tokens": 1024}

LONG = json.dumps({"city": "Zürich\u2028", "text": "x" * (3 * PIECE)}, ensure_ascii=False)
"""Arguments of several pieces, with a character that some readers of lines take for a line end."""


@pytest.fixture(scope="module", autouse=True)
def sdks():
    """Imports the SDKs, which takes seconds, only where these tests run."""
    global anthropic, openai
    import anthropic
    import openai


@contextlib.asynccontextmanager
async def clients(server):
    async with (
        server.serve() as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="key", http_client=openai.DefaultAsyncHttpxClient(verify=False)
        ) as chat,
        anthropic.AsyncAnthropic(
            base_url=url, api_key="key", http_client=anthropic.DefaultAsyncHttpxClient(verify=False)
        ) as messages,
    ):
        yield chat, messages


async def test_chat_gives_text_thinking_calls_and_true_usage():
    server = scripted(called(ODD, LONG))
    async with clients(server) as (client, _):
        done = await client.chat.completions.create(model="policy", messages=QUESTION, tools=CHAT_TOOLS)
    message = done.choices[0].message
    assert (message.content, message.reasoning_content) == (TEXT, THOUGHT)
    assert [call.function.arguments for call in message.tool_calls] == [ODD, LONG]
    assert done.choices[0].finish_reason == "tool_calls"
    assert (done.model, done.created) == ("policy", 1_700_000_000)
    usage = done.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (120, 30, 150)
    assert usage.prompt_tokens_details.cached_tokens == 100
    assert usage.completion_tokens_details.reasoning_tokens == 12


@pytest.mark.parametrize("heartbeats", [0, 2])
async def test_a_streamed_chat_is_the_same_in_pieces(heartbeats):
    answer = called(ODD, LONG)
    server = scripted(answer, heartbeats=heartbeats)
    asked = {"model": "policy", "messages": QUESTION, "tools": CHAT_TOOLS}
    asked["stream_options"] = {"include_usage": True}
    async with clients(server) as (client, _), client.chat.completions.stream(**asked) as stream:
        events = [event async for event in stream]
        done = await stream.get_final_completion()
    message = done.choices[0].message
    assert (message.content, message.reasoning_content) == (TEXT, THOUGHT)
    assert [call.id for call in message.tool_calls] == [call.id for call in answer.calls]
    assert [call.function.arguments for call in message.tool_calls] == [ODD, LONG]
    assert done.choices[0].finish_reason == "tool_calls"
    assert done.usage.completion_tokens_details.reasoning_tokens == 12
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta" and event.index == 1]
    assert len([piece for piece in pieces if piece.arguments_delta]) > 3


async def test_a_streamed_chat_has_usage_only_where_asked():
    server = scripted(reply(), reply())
    asked = {"model": "policy", "messages": QUESTION, "stream": True}
    async with clients(server) as (client, _):
        without = [chunk async for chunk in await client.chat.completions.create(**asked)]
        asked["stream_options"] = {"include_usage": True}
        with_usage = [chunk async for chunk in await client.chat.completions.create(**asked)]
    assert all(chunk.usage is None and chunk.choices for chunk in without)
    assert with_usage[-1].choices == []
    assert with_usage[-1].usage.total_tokens == 150


async def test_responses_give_items_and_true_usage():
    answer = called(ODD, LONG)
    server = scripted(answer)
    async with clients(server) as (client, _):
        done = await client.responses.create(model="policy", input="weather?", tools=RESPONSES_TOOLS)
    thought, text, first, second = done.output
    assert thought.summary[0].text == THOUGHT
    assert (text.content[0].text, done.output_text, done.status) == (TEXT, TEXT, "completed")
    assert [(call.call_id, call.arguments) for call in (first, second)] == [
        (answer.calls[0].id, ODD),
        (answer.calls[1].id, LONG),
    ]
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (120, 30, 150)
    assert done.usage.input_tokens_details.cached_tokens == 100
    assert done.usage.output_tokens_details.reasoning_tokens == 12
    assert max(len(item.id) for item in done.output) <= 64


@pytest.mark.parametrize("heartbeats", [0, 1, 3])
async def test_a_streamed_response_is_the_same_in_pieces(heartbeats):
    server = scripted(called(ODD, LONG), heartbeats=heartbeats)
    asked = {"model": "policy", "input": "weather?", "tools": RESPONSES_TOOLS}
    async with clients(server) as (client, _), client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        done = await stream.get_final_response()
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item.arguments for item in done.output[2:]] == [ODD, LONG]
    assert (done.output_text, done.status, done.usage.total_tokens) == (TEXT, "completed", 150)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.created") == 1
    snapshots = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
    assert snapshots[-1] == LONG
    assert len(snapshots) > 4


async def test_messages_give_blocks_and_true_usage():
    answer = called(ODD, LONG)
    server = scripted(answer)
    asked = {"model": "policy", "max_tokens": 2000, "messages": QUESTION, "tools": MESSAGES_TOOLS, "thinking": THINKING}
    async with clients(server) as (_, client):
        done = await client.messages.create(**asked)
    thought, text, first, second = done.content
    assert (thought.thinking, text.text, done.stop_reason) == (THOUGHT, TEXT, "tool_use")
    assert (first.id, first.input, second.input) == (answer.calls[0].id, json.loads(ODD), json.loads(LONG))
    usage = done.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (20, 100, 30)
    assert usage.output_tokens_details.thinking_tokens == 12
    assert len(first.id) <= 45


@pytest.mark.parametrize("heartbeats", [0, 2])
async def test_a_streamed_message_is_the_same_in_pieces(heartbeats):
    server = scripted(called(ODD, LONG), heartbeats=heartbeats)
    asked = {"model": "policy", "max_tokens": 2000, "messages": QUESTION, "tools": MESSAGES_TOOLS, "thinking": THINKING}
    async with clients(server) as (_, client), client.messages.stream(**asked) as stream:
        events = [event async for event in stream]
        done = await stream.get_final_message()
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (done.content[0].thinking, done.content[1].text) == (THOUGHT, TEXT)
    assert done.content[0].signature.endswith(called(ODD).id)
    assert [block.input for block in done.content[2:]] == [json.loads(ODD), json.loads(LONG)]
    assert (done.stop_reason, done.usage.input_tokens, done.usage.output_tokens) == ("tool_use", 20, 30)
    assert done.usage.output_tokens_details.thinking_tokens == 12
    assert len([event for event in events if event.type == "input_json"]) > 4
    # langchain takes all counts from this event, and others those of the prompt from the first.
    (last,) = [event for event in events if event.type == "message_delta"]
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens, last.usage.output_tokens) == (20, 100, 30)


async def test_thinking_is_a_block_only_if_the_agent_asks_for_it():
    server = scripted(called(ODD))
    async with clients(server) as (_, client):
        done = await client.messages.create(model="policy", max_tokens=9, messages=QUESTION, tools=MESSAGES_TOOLS)
    assert [block.type for block in done.content] == ["text", "tool_use"]


async def test_a_cut_turn_says_so_in_each_wire_streamed_and_not():
    cut = reply(finish="length")
    server = scripted(*[cut] * 6)
    asked = {"model": "policy", "messages": QUESTION}
    async with clients(server) as (chat, messages):
        done = await chat.chat.completions.create(**asked)
        assert done.choices[0].finish_reason == "length"
        chunks = [chunk async for chunk in await chat.chat.completions.create(**asked, stream=True)]
        assert chunks[-1].choices[0].finish_reason == "length"
        done = await chat.responses.create(model="policy", input="weather?")
        assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        async with chat.responses.stream(model="policy", input="weather?") as stream:
            done = await stream.get_final_response()
        assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (await messages.messages.create(**asked, max_tokens=9)).stop_reason == "max_tokens"
        async with messages.messages.stream(**asked, max_tokens=9) as stream:
            assert (await stream.get_final_message()).stop_reason == "max_tokens"


async def test_an_empty_turn_is_an_empty_text():
    server = scripted(*[reply(content="")] * 6)
    asked = {"model": "policy", "messages": QUESTION}
    async with clients(server) as (chat, messages):
        assert (await chat.chat.completions.create(**asked)).choices[0].message.content == ""
        async with chat.chat.completions.stream(**asked) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == ""
        assert (await chat.responses.create(model="policy", input="weather?")).output_text == ""
        async with chat.responses.stream(model="policy", input="weather?") as stream:
            assert (await stream.get_final_response()).output_text == ""
        assert (await messages.messages.create(**asked, max_tokens=9)).content[0].text == ""
        async with messages.messages.stream(**asked, max_tokens=9) as stream:
            assert await stream.get_final_text() == ""


@pytest.mark.parametrize("arguments", ['{"command": "echo hel', "no JSON", "[1]", "", '{"a": NaN}', '{"a": "\\ud800"}'])
async def test_broken_arguments_come_as_the_policy_wrote_them_and_are_never_repaired(arguments):
    server = scripted(*[called(arguments)] * 6)
    wrapped = {"INVALID_JSON": arguments}
    asked = {"model": "policy", "messages": QUESTION}
    async with clients(server) as (chat, messages):
        done = await chat.chat.completions.create(**asked, tools=CHAT_TOOLS)
        assert done.choices[0].message.tool_calls[0].function.arguments == arguments
        stream = await chat.chat.completions.create(**asked, tools=CHAT_TOOLS, stream=True)
        deltas = [chunk.choices[0].delta.tool_calls async for chunk in stream]
        assert "".join(delta[0].function.arguments for delta in deltas if delta) == arguments
        done = await chat.responses.create(model="policy", input="weather?", tools=RESPONSES_TOOLS)
        assert done.output[-1].arguments == arguments
        async with chat.responses.stream(model="policy", input="weather?", tools=RESPONSES_TOOLS) as stream:
            assert (await stream.get_final_response()).output[-1].arguments == arguments
        done = await messages.messages.create(**asked, max_tokens=9, tools=MESSAGES_TOOLS)
        assert done.content[-1].input == wrapped
        async with messages.messages.stream(**asked, max_tokens=9, tools=MESSAGES_TOOLS) as stream:
            assert (await stream.get_final_message()).content[-1].input == wrapped


@pytest.mark.parametrize("depth", [50, 5_000])
async def test_arguments_that_are_nested_deeply_break_no_client(depth):
    arguments = '{"a":' * depth + "1" + "}" * depth
    server = scripted(called(arguments))
    asked = {"model": "policy", "max_tokens": 9, "messages": QUESTION, "tools": MESSAGES_TOOLS}
    async with clients(server) as (_, client), client.messages.stream(**asked) as stream:
        written = (await stream.get_final_message()).content[-1].input
    assert written == (json.loads(arguments) if depth == 50 else {"INVALID_JSON": arguments})


@pytest.mark.parametrize(("status", "times"), [(400, 1), (410, 1), (404, 1)])
async def test_no_client_sends_a_refused_call_again(status, times):
    ended = CallRefusedError(status, "episode_ended", "the episode has ended")
    server = scripted(*[ended] * 20)
    asked = {"model": "policy", "messages": QUESTION}
    async with clients(server) as (chat, messages):
        for ask in (
            lambda: chat.chat.completions.create(**asked),
            lambda: chat.chat.completions.create(**asked, stream=True),
            lambda: chat.responses.create(model="policy", input="weather?"),
            lambda: messages.messages.create(**asked, max_tokens=9),
        ):
            before = server.requests
            with pytest.raises(
                (openai.APIStatusError, anthropic.APIStatusError), match="the episode has ended"
            ) as seen:
                await ask()
            assert seen.value.status_code == status
            assert server.requests - before == times
        assert seen.value.body["error"]["message"] == "the episode has ended"


async def test_openai_clients_read_the_code_of_a_refusal():
    server = scripted(CallRefusedError(400, "context_length_exceeded", "5000 tokens are too many"))
    async with clients(server) as (client, _):
        with pytest.raises(openai.BadRequestError) as seen:
            await client.chat.completions.create(model="policy", messages=QUESTION)
    assert seen.value.code == "context_length_exceeded"
    assert seen.value.type == "invalid_request_error"


async def test_a_context_that_is_too_long_is_told_to_anthropic_clients_in_the_words_they_look_for():
    server = scripted(CallRefusedError(400, "context_length_exceeded", "5000 tokens are too many"))
    async with clients(server) as (_, client):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5000 tokens are too many"):
            await client.messages.create(model="policy", max_tokens=9, messages=QUESTION)


async def test_an_error_after_a_heartbeat_is_raised_by_each_client():
    failure = CallRefusedError(500, "engine_failed", "the engine has died")
    server = scripted(*[failure] * 4, heartbeats=1)
    asked = {"model": "policy", "messages": QUESTION}
    async with clients(server) as (chat, messages):
        with pytest.raises(openai.APIError, match="the engine has died"):
            async with chat.chat.completions.stream(**asked) as stream:
                await stream.get_final_completion()
        with pytest.raises(openai.APIError, match="the engine has died"):
            async with chat.responses.stream(model="policy", input="weather?") as stream:
                await stream.get_final_response()
        stream = await chat.responses.create(model="policy", input="weather?", stream=True)
        with pytest.raises(openai.APIError, match="the engine has died"):
            [event async for event in stream]
        with pytest.raises(anthropic.APIStatusError, match="the engine has died"):
            async with messages.messages.stream(**asked, max_tokens=9) as stream:
                await stream.get_final_message()
