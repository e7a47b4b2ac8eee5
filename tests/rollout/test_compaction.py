"""`Compact` in a rollout: the policy writes a summary that is trained, and its context begins anew with it."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest

from tests.actors import echo
from tests.rollout.test_endpoint import gateway
from toolgym.envs import ToolEnv
from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, make_batch, run_episode
from toolgym.rollout.endpoint import run
from toolgym.rollout.tokens import ContextPolicy, KeepToolResults
from toolgym.tools.parsers import ParsedTurn
from toolgym.wrappers import Compact, TurnLimit

TASK = Task(({"role": "system", "content": "Say it."}, {"role": "user", "content": "question"}), id="q")
SUMMARY = "I have said much, and a is done."
ASK = "Summarise."
NOTE = f"[Yours:]\n{SUMMARY}"


def call(text):
    return f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


def says(*turns):
    return lambda prompt, request_id: turns[int(request_id.split("-")[1])]


def env(max_tokens=300, wrap=lambda made: made, **kwargs):
    made = ToolEnv([echo], [TASK], scorer=lambda outcome: float(outcome.final_text == "done"), **kwargs)
    return wrap(Compact(made, max_tokens, tokenizer=len, request=ASK, note="[Yours:]"))


LONG = "word " * 50
TURNS = (call("a"), call(LONG), SUMMARY, call("b"), "done")


async def play(engine, tokenizer, make=env, **config):
    config = RunConfig(**{"sampling": SamplingParams(max_new_tokens=200), **config})
    [one] = await Runner(make, engine, tokenizer=tokenizer, config=config).run([TASK])
    return one


@pytest.mark.parametrize("history", ["append", "template"])
async def test_the_context_begins_anew_and_the_summary_is_trained(scripted, tokenizer, exact, history):
    engine = scripted(says(*TURNS))
    one = await play(engine, tokenizer, history=history)
    exact(engine, one)  # each sequence is what the engine was sent and sampled
    assert (one.error, one.stop_reason, one.reward) == (None, StopReason.ANSWERED, 1.0)
    assert [sequence.start_reason for sequence in one.sequences] == ["start", "env"]
    assert [turn.sequence for turn in one.turns] == [0, 0, 0, 1, 1]
    first, second = one.sequences
    assert first.segments[-1].is_policy  # the summary: nothing was added behind it
    assert tokenizer.decode(first.segments[-1].token_ids) == f"{SUMMARY}<|im_end|>"
    prompt = [TASK.messages[0], {"role": "user", "content": f"question\n\n{NOTE}"}]
    assert tokenizer.decode(second.prompt_ids) == tokenizer.apply_chat_template(
        prompt, tools=list(one.tools), tokenize=False, add_generation_prompt=True
    )
    assert [message["role"] for message in one.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "user"),
        *("assistant", "user", "assistant", "tool", "assistant"),
    ]
    assert [one.messages[number]["content"] for number in (6, 7, 8)] == [ASK, SUMMARY, NOTE]
    assert one.metrics["compactions"] == 1
    assert (one.metrics["turn"], one.turns[2].reward, one.turns[2].tool_calls) == (4, 0.0, ())


async def test_the_batch_has_a_row_for_each_context_with_the_summary_in_its_mask(scripted, tokenizer):
    one = await play(scripted(says(*TURNS)), tokenizer)
    batch = make_batch([one], pad_token_id=0)
    masked = [tokenizer.decode(batch.responses[row][batch.response_mask[row] == 1]) for row in range(2)]
    assert [SUMMARY in text for text in masked] == [True, False]
    assert int(batch.response_mask.sum()) == one.policy_tokens


async def test_run_episode_plays_the_same(scripted, tokenizer):
    engine = scripted(says(*TURNS))
    theirs = await play(engine, tokenizer)
    mine = await run_episode(
        env, TASK, scripted(says(*TURNS)), config=RunConfig(sampling=SamplingParams(max_new_tokens=200))
    )
    assert mine.sequences == theirs.sequences


async def test_a_conversation_may_be_summarised_again_and_again(scripted, tokenizer, exact):
    turns = [call(LONG), "first", call(LONG), "second", call(LONG), "third", "done"]
    engine = scripted(says(*turns))
    one = await play(engine, tokenizer)
    exact(engine, one)
    assert (one.stop_reason, one.metrics["compactions"], len(one.sequences)) == (StopReason.ANSWERED, 3, 4)
    last = tokenizer.decode(one.sequences[-1].prompt_ids)
    assert "third" in last
    assert "second" not in last


async def test_calls_in_a_summary_are_not_run_and_thinking_is_not_kept(scripted, tokenizer, exact):
    summary = f"<think>Hm.</think>Half is done.{call('never')}"
    engine = scripted(says(call(LONG), summary, call("b"), "done"))
    one = await play(engine, tokenizer)
    exact(engine, one)
    assert [len(turn.tool_calls) for turn in one.turns] == [1, 0, 1, 0]
    prompt = tokenizer.decode(one.sequences[1].prompt_ids)
    assert prompt.count("Half is done.") == 1
    assert "never" not in prompt
    assert "Hm." not in prompt


async def test_thinking_that_the_prompt_opened_is_not_kept():
    async with env() as made:
        await made.reset()
        await made.step(call(LONG))
        text = "Let me see.</think>\nAll is well."
        result = await made.step(ParsedTurn(text, text, [], []))
        assert result.info["context"][-1]["content"].endswith("[Yours:]\nAll is well.")


async def test_a_turn_limit_around_it_counts_the_summary(scripted, tokenizer):
    make = partial(env, wrap=lambda made: TurnLimit(made, 3))
    one = await play(scripted(says(*TURNS)), tokenizer, make=make)
    assert (one.stop_reason, len(one.turns), len(one.sequences)) == (StopReason.MAX_TURNS, 3, 1)


async def test_context_policies_see_the_new_context(scripted, tokenizer, exact):
    seen = []

    class Watch(ContextPolicy):
        async def revise(self, messages, state):
            seen.append((len(messages), state.tokens))
            return messages

    engine = scripted(says(*TURNS))
    one = await play(engine, tokenizer, context=[Watch(), KeepToolResults(5)])
    exact(engine, one)
    assert [number for number, _ in seen] == [4, 7, 2, 4]
    assert seen[2][1] == len(one.sequences[1].prompt_ids)


async def test_a_new_context_has_a_budget_of_its_own(scripted, tokenizer):
    """What the first context used up does not count for the second, in which a turn must fit."""
    used = (await play(scripted(says(*TURNS)), tokenizer)).sequences[0]
    limits = EpisodeLimits(max_response_tokens=len(used.response_ids) + 1)
    one = await play(scripted(says(*TURNS)), tokenizer, limits=limits)
    assert (one.stop_reason, len(one.sequences)) == (StopReason.ANSWERED, 2)


@pytest.mark.parametrize("context", [[], "text", [{"role": "assistant", "content": "x"}], [{"role": "user"}]])
async def test_a_context_that_is_no_conversation_is_the_envs_fault(scripted, tokenizer, context):
    class Odd(BaseEnv):
        replaces_context = True

        async def reset(self, *, seed=None, options=None):
            return list(TASK.messages), {}

        async def step(self, action):
            return StepResult([], 0.0, False, {"context": context})

        async def close(self):
            pass

    one = await play(scripted(lambda *_: "hello"), tokenizer, make=Odd)
    assert one.stop_reason is StopReason.ENV_FAILED
    assert "StepInfo.context" in one.error.message


async def test_a_chat_address_gets_the_new_conversation():
    turns = iter(TURNS)

    def script(messages):
        text = next(turns)
        if not text.startswith("<tool_call>"):
            return text
        arguments = text.partition('"arguments": ')[2].partition("}\n")[0]
        made = {"id": f"c{len(messages)}", "type": "function", "function": {"name": "echo", "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [made]}

    async with gateway(script) as server:
        assert await run(TASK, base_url=server.url, env=env) == 1.0
    sent = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert sent[2] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    assert sent[3] == ["system", "user"]
    assert sent[4] == ["system", "user", "assistant", "tool"]
    assert server.bodies[3]["messages"][1]["content"] == f"question\n\n{NOTE}"


def test_a_caller_of_gymnasium_reads_the_new_context():
    compact = [partial(Compact, max_tokens=600, tokenizer=len)]
    made = gymnasium.make("CodeInterpreter-v0", wrappers=compact)
    try:
        prompt, _ = made.reset(seed=0)
        obs, *_ = made.step("<tool_call>" + "no JSON " * 80 + "</tool_call>")
        assert obs[-1]["role"] == "user"
        obs, _, terminated, truncated, info = made.step(SUMMARY)
        assert (terminated, truncated, len(obs)) == (False, False, 1)
        assert [message["role"] for message in info["context"]] == [message["role"] for message in prompt]
        assert info["context"][-1]["content"].endswith(SUMMARY)
        assert made.step("#### 1")[2]
    finally:
        made.close()


async def test_forks_summarise_on_their_own():
    async with env() as made:
        await made.reset()
        await made.step(call(LONG))
        async with await made.fork() as twin:
            result = await twin.step("of the twin")
            assert result.info["context"][-1]["content"].endswith("of the twin")
            assert not (await twin.step(call("b"))).done
        result = await made.step("of the origin")
        assert result.info["context"][-1]["content"].endswith("of the origin")
        result.info["context"][0]["content"] = "changed by its reader"
        await made.step(call(LONG))
        result = await made.step("again")
        assert result.info["context"][0] == TASK.messages[0]
        assert result.info["metrics"]["compactions"] == 2
