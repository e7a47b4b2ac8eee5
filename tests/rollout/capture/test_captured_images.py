"""Images of agents: over each wire the same ids, and an image that changes forks."""

from __future__ import annotations

import aiohttp
import pytest

from tests.rollout import tiny_vlm
from tests.rollout.test_images import PROCESSOR, picture, whole
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.capture import CaptureRules, agent_env
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.message import image_data, images_of, text_part

BLUE, GREEN = (picture(color, size)["image_url"]["url"] for color, size in (("blue", (64, 48)), ("green", (96, 64))))
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


def parts(wire, *contents):
    """Texts and data URLs as a wire has them."""
    return [part(wire, each) for each in contents]


def part(wire, content):
    if not content.startswith("data:"):
        return {"type": "input_text" if wire == "responses" else "text", "text": content}
    if wire == "chat":
        return {"type": "image_url", "image_url": {"url": content, "detail": "low"}}
    if wire == "responses":
        return {"type": "input_image", "image_url": content, "detail": "auto"}
    media_type, data = image_data(content)
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


class Agent:
    """Asks for one turn after the other, with its whole history, in the words of one wire."""

    def __init__(self, wire, base_url, api_key):
        self.wire, self.url, self.messages = wire, base_url + PATHS[wire], []
        self.headers = {"Authorization": f"Bearer {api_key}"}

    async def ask(self, content):
        self.messages.append({"role": "user", "content": content})
        body = {"model": "m", "input" if self.wire == "responses" else "messages": self.messages, "max_tokens": 60}
        if self.wire == "responses":
            del body["max_tokens"]
        async with aiohttp.ClientSession(headers=self.headers) as http, http.post(self.url, json=body) as response:
            answer = await response.json()
        if response.status == 200:
            if self.wire == "responses":
                self.messages += answer["output"]
            else:
                message = answer["choices"][0]["message"] if self.wire == "chat" else answer
                self.messages.append({"role": "assistant", "content": message["content"]})
        return response.status, answer


async def play(agent, turns, *, takes_images=True):
    engine = tiny_vlm.TinyVlm(PROCESSOR, turns)
    engine._takes_images = takes_images
    config = RunConfig(sampling=SamplingParams(max_new_tokens=60), processor=PROCESSOR)
    task = Task(({"role": "user", "content": "q"},))
    env = agent_env(agent, rules=CaptureRules(untrained=()))
    [trajectory] = await Runner(env, engine, config=config).run([task])
    assert trajectory.error is None, trajectory.error
    return trajectory, engine


@pytest.mark.parametrize("wire", PATHS)
async def test_images_come_through_each_wire_at_their_places(wire):
    async def plays(task, *, base_url, api_key):
        agent = Agent(wire, base_url, api_key)
        assert (await agent.ask(parts(wire, "What is", BLUE, "?")))[0] == 200
        assert (await agent.ask(parts(wire, "And", "this:", GREEN)))[0] == 200

    trajectory, engine = await play(plays, ["Blue.", "Green."])
    [sequence] = trajectory.sequences
    assert sequence.images == engine.requests[-1].images
    assert [image.url for image in sequence.images] == [BLUE, GREEN]
    assert trajectory.messages[0]["content"] == [text_part("What is"), picture("blue"), text_part("?")]
    assert trajectory.messages[2]["content"] == [text_part("And\nthis:"), picture("green", (96, 64))]
    renderer = ChatRenderer(PROCESSOR.processor.tokenizer, processor=PROCESSOR)
    assert list(engine.requests[-1].prompt_ids) == whole(trajectory.messages[:-1], renderer)


async def test_an_image_that_changes_is_another_conversation():
    async def plays(task, *, base_url, api_key):
        agent = Agent("chat", base_url, api_key)
        await agent.ask(parts("chat", "What is this?", BLUE))
        agent.messages[0] = {"role": "user", "content": parts("chat", "What is this?", GREEN)}
        await agent.ask("Sure?")

    trajectory, _ = await play(plays, ["Blue.", "Yes."])
    assert [sequence.start_reason for sequence in trajectory.sequences] == ["start", "rewrite"]
    assert [[image.url for image in sequence.images] for sequence in trajectory.sequences] == [[BLUE], [GREEN]]
    assert [images_of(message["content"]) for message in trajectory.messages][:1] == [[BLUE]]


async def test_a_conversation_with_images_is_put_together_again():
    async def plays(task, *, base_url, api_key):
        agent = Agent("chat", base_url, api_key)
        await agent.ask(parts("chat", BLUE))
        first = [*agent.messages]
        await agent.ask(parts("chat", "And?", GREEN))
        await agent.ask("More?")
        agent.messages = first
        await agent.ask("Again?")

    trajectory, engine = await play(plays, ["Blue.", "Green.", "No.", "Yes."])
    assert [sequence.start_reason for sequence in trajectory.sequences] == ["start", "fork"]
    assert [len(sequence.images) for sequence in trajectory.sequences] == [2, 1]
    assert [len(request.images) for request in engine.requests] == [1, 2, 2, 1]


@pytest.mark.parametrize("wire", PATHS)
async def test_an_image_elsewhere_is_not_fetched_and_becomes_a_note(wire):
    address = "https://example.org/a.png"
    sent = {
        "chat": {"type": "image_url", "image_url": {"url": address}},
        "responses": {"type": "input_image", "image_url": address},
        "messages": {"type": "image", "source": {"type": "url", "url": address}},
    }

    async def plays(task, *, base_url, api_key):
        agent = Agent(wire, base_url, api_key)
        assert (await agent.ask([sent[wire]]))[0] == 200
        assert (await agent.ask("a \ufdd0 b"))[0] == 200

    trajectory, _ = await play(plays, ["Yes.", "No."])
    contents = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert contents == [f"[image omitted: {address}]", "a \ufffd b"]
    assert trajectory.metrics["calls_ignored_content.image"] == 1
    assert len(trajectory.sequences) == 1


@pytest.mark.parametrize("takes_images", [False, True])
async def test_an_image_that_the_model_cannot_see_becomes_a_note(takes_images):
    """Without eyes, or because the data is not an image; the other image of the message stays."""
    broken = "data:image/png;base64,AAAA"

    async def plays(task, *, base_url, api_key):
        agent = Agent("chat", base_url, api_key)
        assert (await agent.ask(parts("chat", "What is", broken, "and", BLUE)))[0] == 200
        assert (await agent.ask("And now?"))[0] == 200

    trajectory, engine = await play(plays, ["Yes.", "No."], takes_images=takes_images)
    assert [len(request.images) for request in engine.requests] == [int(takes_images)] * 2
    assert trajectory.metrics["calls_ignored_content.image"] == 2 - takes_images
    assert len(trajectory.sequences) == 1
    content = trajectory.messages[0]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    assert text.startswith("What is\n[image omitted: image/png, 3 bytes]\nand")
