"""What changes texts: results cut by tokens, observations rewritten, a format that is asked for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.result_text import cut_tokens
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import assistant
from toolgym.tools.parsers import ParsedTurn
from toolgym.wrappers import Compact, FormatPenalty, RewriteObservations, TruncateResults
from toolgym.wrappers.token_count import token_count

TEXT = "".join(f"Line {n}: naïve café, 東京, 👩‍🚀 and {n * 7919}.\n" for n in range(200))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(tiny_policy_path())


def parts(cut):
    """What remains of a text that was cut: its beginning, the number in the note, its end."""
    return re.fullmatch(r"(.*?) ?\[\.\.\. (\d+) tokens left out \.\.\.\] ?(.*)", cut, re.DOTALL).groups()


@pytest.mark.parametrize(("side", "shares"), [("left", (100, 0)), ("right", (0, 100)), ("middle", (50, 50))])
@pytest.mark.parametrize("kind", ["transformers", "tokenizers", "function"])
async def test_results_are_cut_by_tokens(counting, call, tokenizer, side, shares, kind):
    count = token_count(tokenizer)
    given = {"transformers": tokenizer, "tokenizers": tokenizer.backend_tokenizer, "function": count}[kind]
    async with TruncateResults(counting(), max_tokens=100, tokenizer=given, side=side) as env:
        await env.reset(seed=0)
        whole = f"1 {TEXT}".strip()
        beginning, left_out, end = parts((await env.step(call(1, TEXT))).obs[0]["content"])
        assert whole.startswith(beginning)
        assert whole.endswith(end)
        for kept, share in ((beginning, shares[0]), (end, shares[1])):
            assert count(kept) <= share
            assert count(kept) > share - 5 or not share
        assert int(left_out) == count(whole[len(beginning) : len(whole) - len(end)])
        assert (await env.step(call(1, "short"))).obs[0]["content"] == "2 short"


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@given(text=st.text(min_size=1), most=st.integers(1, 12))
@settings(deadline=None)
def test_no_character_is_split_and_none_invented(tokenizer, side, text, most):
    """Also where one character is several tokens."""
    text = text.encode("utf-8", "replace").decode()
    count = token_count(tokenizer)
    cut = cut_tokens(text, most, side, count)
    if count(text) <= most:
        assert cut == text
        return
    beginning, _, end = parts(cut)
    assert text.startswith(beginning)
    assert text.endswith(end)
    assert count(beginning) + count(end) <= most


async def test_a_long_result_is_cut_beside_the_event_loop(counting, call):
    async with TruncateResults(counting(), max_tokens=3, tokenizer=lambda text: len(text.split())) as env:
        await env.reset(seed=0)
        words = " ".join(["word"] * 6000)
        beginning, left_out, end = parts((await env.step(call(1, words))).obs[0]["content"])
        assert (beginning.split(), end.split(), left_out) == (["1", "word"], ["word"], "5998")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "one of max_chars and max_tokens"),
        ({"max_chars": 5, "max_tokens": 5, "tokenizer": len}, "one of max_chars and max_tokens"),
        ({"max_tokens": 5}, "go together"),
        ({"max_chars": 5, "tokenizer": len}, "go together"),
        ({"max_tokens": 0, "tokenizer": len}, "max_tokens"),
        ({"max_tokens": 5, "tokenizer": 5}, "tokenizer must be a tokenizer"),
    ],
)
def test_cuts_that_cannot_be(counting, arguments, said):
    with pytest.raises(ConfigError, match=said):
        TruncateResults(counting(), **arguments)


async def test_every_turn_is_asked_for_its_form(counting, call):
    async with FormatPenalty(counting(), r"^Task.*done$|^\s*$", penalty=0.5) as env:
        await env.reset(seed=0)
        result = await env.step(call(1))  # its content is empty: the call stands beside it
        assert (result.reward, result.info["metrics"]["bad_format"]) == (0.0, 0)
        result = await env.step("What?" + call(1))
        assert (result.reward, result.info["metrics"]["bad_format"]) == (-0.5, 1)
        twin = await env.fork()
        result = await twin.step("Task\nis done")
        assert (result.reward, result.info["metrics"]["bad_format"], result.info["metrics"]["reward/format"]) == (
            pytest.approx(0.02),
            1,
            -0.5,
        )
        await twin.close()
        result = await env.step("Nothing")
        assert result.info["metrics"]["reward/format"] == -1.0
        await env.reset()
        assert (await env.step("Task done")).info["metrics"]["bad_format"] == 0


@pytest.mark.parametrize("action", ["good", assistant("good"), ParsedTurn("good", "good", [], [])])
async def test_an_env_that_does_not_say_how_it_read_a_turn(action):
    class Silent(BaseEnv):
        async def reset(self, *, seed=None, options=None):
            return [{"role": "user", "content": "x"}], {}

        async def step(self, action):
            return StepResult([], 1.0, True, {})

        async def close(self):
            pass

    for form, reward in (("good", 1.0), ("bad", 0.0)):
        async with FormatPenalty(Silent(), form) as env:
            await env.reset()
            assert (await env.step(action)).reward == reward


@pytest.mark.parametrize(("form", "penalty"), [("(", 1.0), (None, 1.0), ("x", -1.0), ("x", float("inf")), ("x", True)])
def test_forms_that_cannot_be(counting, form, penalty):
    with pytest.raises(ConfigError):
        FormatPenalty(counting(), form, penalty)


async def test_messages_are_rewritten_and_the_env_goes_on_with_its_own(counting, call):
    def shout(messages):
        for message in messages:
            message["content"] += "!"
        return messages

    async with RewriteObservations(counting(), shout) as env:
        messages, info = await env.reset(seed=0)
        assert messages[0]["content"] == info["task"].messages[0]["content"] + "!"
        result = await env.step(call(1))
        assert result.obs[0]["content"] == "1!"
        assert env.messages[-1]["content"] == "1"
        assert (await env.step("done")).obs == []
    async with RewriteObservations(counting(), shout, prompt=False) as env:
        messages, info = await env.reset(seed=0)
        assert messages == list(info["task"].messages)


@pytest.mark.parametrize("made", [None, "text", [{"role": "user"}], ["text"]])
async def test_what_is_no_list_of_messages_is_the_functions_fault(counting, made):
    async with RewriteObservations(counting(), lambda messages: made) as env:
        with pytest.raises(ConfigError, match="rewrite must return a list of messages"):
            await env.reset()


def test_compaction_goes_around_and_not_inside(counting):
    inner = Compact(counting(), 100, tokenizer=len)
    for wrap in (lambda env: RewriteObservations(env, list), lambda env: Compact(env, 100, tokenizer=len)):
        with pytest.raises(ConfigError, match="only adds to a conversation"):
            wrap(inner)
    with pytest.raises(ConfigError, match="rewrite must be a function"):
        RewriteObservations(counting(), "upper")
