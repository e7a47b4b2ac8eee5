"""Long texts from tools and tasks: they hold up no other episode, and what cannot fit is not encoded."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.tokens import CutToolResults, KeepToolResults, Summarize
from toolgym.rollout.tokens.safe_encoder import LONG, SafeEncoder
from toolgym.tools import tool
from toolgym.tools.message import user

CALL = '<tool_call>\n{"name": "fetch", "arguments": {}}\n</tool_call>'
TASK = Task([user("q")], id="q")


def turns(*texts):
    return lambda prompt, request_id: texts[int(request_id.split("-")[1])]


async def play(engine, tokenizer, text, task=TASK, **config):
    """An episode whose only tool returns a text."""

    @tool
    async def fetch() -> str:
        """Fetch a page."""
        return text

    config = {"sampling": SamplingParams(max_new_tokens=120), **config}
    made = lambda: ToolEnv([fetch], [task], max_result_chars=None)  # noqa: E731
    [one] = await Runner(made, engine, tokenizer=tokenizer, config=RunConfig(**config)).run([task])
    return one


@pytest.fixture
def encoded(monkeypatch):
    """How many characters each text has that is encoded."""
    sizes = []
    whole = SafeEncoder._encoding

    def spy(self, text, **options):
        sizes.append(len(text))
        return whole(self, text, **options)

    monkeypatch.setattr(SafeEncoder, "_encoding", spy)
    return sizes


@pytest.mark.parametrize(
    ("history", "context"), [("append", []), ("template", []), ("append", [CutToolResults(1000)])], ids=str
)
async def test_a_long_result_is_encoded_while_the_event_loop_goes_on(
    scripted, tokenizer, exact, history, context, monkeypatch
):
    text = "".join(f"{number:x} is a word, " for number in range(10_000))
    tokens = len(SafeEncoder.of(tokenizer).encode(text))
    turned, meanwhile, whole = 0, [], SafeEncoder._encoding

    async def turn():
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0.001)

    def spy(self, text, **options):
        before, encoding = turned, whole(self, text, **options)
        if len(text) >= LONG:
            meanwhile.append(turned - before)
        return encoding

    monkeypatch.setattr(SafeEncoder, "_encoding", spy)
    engine = scripted(turns(CALL, "done"), context_length=10_000_000)
    turning = asyncio.create_task(turn())
    one = await play(engine, tokenizer, text, history=history, context=context)
    turning.cancel()
    assert one.stop_reason is StopReason.ANSWERED
    assert bool(context) == (len(one.prompt_ids) + len(one.response_ids) < tokens)
    exact(engine, one)
    assert meanwhile
    assert min(meanwhile) > 2, "the event loop stood still while a text was encoded"


async def test_a_result_that_cannot_fit_is_not_encoded(scripted, tokenizer, exact, encoded):
    engine = scripted(turns(CALL))
    one = await play(engine, tokenizer, "a page " * 300_000)
    exact(engine, one)
    assert one.stop_reason is StopReason.BUDGET
    assert max(encoded) < LONG
    assert [message["role"] for message in one.messages] == ["user", "assistant"]


@pytest.mark.parametrize("history", ["append", "template"])
async def test_it_ends_the_episode_as_one_that_is_encoded_and_does_not_fit(scripted, tokenizer, monkeypatch, history):
    ends = []
    for _ in range(2):
        one = await play(scripted(turns(CALL)), tokenizer, "a page " * 20_000, history=history)
        ends.append((one.stop_reason, one.error, one.messages, one.prompt_ids.tolist(), one.response_ids.tolist()))
        monkeypatch.setattr(SafeEncoder, "_least", lambda self, text: 0)
    assert ends[0] == ends[1]


async def test_a_context_policy_that_shortens_the_conversation_is_asked_first(scripted, tokenizer, exact):
    async def shorten(messages):
        return [user("q"), user(f"the page has {len(messages[-1]['content'])} characters")]

    text = "a page " * 20_000
    engine = scripted(turns(CALL, "done"))
    one = await play(engine, tokenizer, text, context=[KeepToolResults(1), Summarize(shorten)])
    exact(engine, one)
    assert one.stop_reason is StopReason.ANSWERED
    assert "the page has 140000 characters" in one.prompt_text


async def test_a_result_that_is_cut_first_fits(scripted, tokenizer, exact):
    engine = scripted(turns(CALL, "done"))
    one = await play(engine, tokenizer, "a page " * 20_000, context=[CutToolResults(100)])
    exact(engine, one)
    assert one.stop_reason is StopReason.ANSWERED


async def test_a_task_that_cannot_fit_is_refused_and_not_encoded(scripted, tokenizer, encoded):
    task = Task([user("a page " * 300_000)], id="long")
    one = await play(scripted(turns("done")), tokenizer, "", task=task)
    assert one.stop_reason is StopReason.PROMPT_REFUSED
    assert "the prompt has at least " in one.error.message
    assert max(encoded) < LONG
