from __future__ import annotations

import copy
import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from toolgym.envs.gym.spaces import ChatSpace, TextSpace
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, assistant, system, tool, user

CALL = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {"x": [1, None, {"y": "z"}]}}}

spaces = pytest.mark.parametrize("make", [TextSpace, ChatSpace])


@pytest.mark.parametrize("text", ["", "hello", "naïve 漢字 🙂", "\x00\x1b\n", "<tool_call>", np.str_("a"), "x" * 10000])
def test_any_text_is_in_the_text_space(text):
    assert text in TextSpace()


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"], "\ud800"])
def test_what_is_no_text_is_not_in_it(value):
    assert value not in TextSpace()


def test_lengths_bound_the_text_space():
    space = TextSpace(3, min_length=2)
    assert [text in space for text in ("a", "ab", "abc", "abcd")] == [False, True, True, False]
    assert {len(space.sample()) for _ in range(100)} == {2, 3}
    assert TextSpace(0).sample() == ""
    assert len(TextSpace(100, min_length=90).sample()) == 90


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (-1, 0), (3, -1), (2.5, 0), ("a", 0)])
def test_lengths_that_make_no_sense_are_refused(longest, shortest):
    with pytest.raises(ConfigError, match="min_length"):
        TextSpace(longest, min_length=shortest)


@pytest.mark.parametrize(
    "chat",
    [
        (),
        [],
        (system("s"), user("u"), assistant("a"), tool("t", tool_call_id="call_0", name="f")),
        ({"role": "assistant", "content": "", "tool_calls": [CALL]},),
        ({"role": "assistant", "content": "", "tool_calls": []},),
        ({"role": "tool", "content": "t"},),
    ],
)
def test_conversations_are_in_the_chat_space(chat):
    assert chat in ChatSpace()


@pytest.mark.parametrize(
    "chat",
    [
        None,
        "text",
        user("not in a tuple"),
        ("text",),
        ({"role": "user"},),
        ({"role": "user", "content": None},),
        ({"role": "robot", "content": "x"},),
        ({"role": ["user"], "content": "x"},),
        ({"role": "user", "content": "x", "tool_calls": []},),
        ({"role": "user", "content": "\ud800"},),
        ({"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": 3}]},),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]},),
        ({"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}]},),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"x": {1}}}}],
            },
        ),
        ({"role": "assistant", "content": "", "tool_call_id": "x"},),
        ({"role": "assistant", "content": "", "reasoning_content": None},),
        ({"role": "user", "content": "", "reasoning_content": "x"},),
        ({"role": "tool", "content": "t", "tool_call_id": 3},),
    ],
)
def test_what_is_no_conversation_is_not_in_it(chat):
    assert chat not in ChatSpace()


@pytest.mark.parametrize("extra", [{}, {"tool_calls": [CALL]}])
def test_reasoning_is_part_of_an_assistants_message(extra):
    assert ({"role": "assistant", "content": "", "reasoning_content": "so", **extra},) in ChatSpace()


def test_every_key_of_a_message_is_known_to_the_chat_space():
    samples = [message for seed in range(100) for message in ChatSpace(seed=seed).sample()]
    assert {key for message in samples for key in message} == set(Message.__annotations__)


def test_bounds_of_the_chat_space():
    space = ChatSpace(max_messages=1, max_length=2)
    assert (user("ab"),) in space
    assert (user("abc"),) not in space
    assert (user("a"), user("b")) not in space
    with pytest.raises(ConfigError, match="max_length"):
        ChatSpace(max_length=-1)


@spaces
def test_samples_are_members_reproducible_and_varied(make):
    one, other = make(), make()
    one.seed(3), other.seed(3)
    samples = [one.sample() for _ in range(200)]
    assert all(sample in one for sample in samples)
    assert samples == [other.sample() for _ in range(200)]
    other.seed(4)
    assert samples != [other.sample() for _ in range(200)]
    assert make(seed=3).sample() == samples[0]
    with pytest.raises(ConfigError, match="without arguments"):
        one.sample(mask=np.ones(3))


def test_samples_of_a_bounded_chat_space_are_members():
    space = ChatSpace(max_messages=2, max_length=5, seed=0)
    assert all(space.sample() in space for _ in range(100))


def test_chat_samples_have_every_role_and_calls():
    messages = [message for chat in [ChatSpace(seed=s).sample() for s in range(100)] for message in chat]
    assert {message["role"] for message in messages} == {"system", "user", "assistant", "tool"}
    assert any("tool_calls" in message for message in messages)


@spaces
def test_equal_copied_pickled_and_shown(make):
    space = make(seed=1)
    assert space == make(seed=2)
    assert space == copy.deepcopy(space) == pickle.loads(pickle.dumps(space))
    assert space != make(max_length=5)
    assert space != gymnasium.spaces.Text(5)
    assert eval(repr(make(max_length=5))) == make(max_length=5)
    assert not space.is_np_flattenable


def test_the_two_spaces_differ():
    assert TextSpace() != ChatSpace()


@spaces
def test_members_survive_json(make):
    space = make(seed=0)
    members = [space.sample() for _ in range(50)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(members)))) == members


@spaces
def test_gymnasiums_vector_functions_take_them(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space = make(seed=0)
        batched = batch_space(space, 3)
        batched.seed(0)
        members = batched.sample()
        assert members in batched
        assert len({str(member) for member in [*batched.sample(), *members]}) > 2
        assert tuple(iterate(batched, members)) == members
        empty = create_empty_array(space, 3)
        assert empty in batched
        assert concatenate(space, list(members), empty) == members
        assert batch_differing_spaces([make(), make(max_length=5)])[1] == make(max_length=5)


def test_an_empty_array_of_texts_keeps_the_shortest_length():
    space = TextSpace(5, min_length=2)
    assert create_empty_array(space, 2) in batch_space(space, 2)


def test_they_fit_into_gymnasiums_composite_spaces():
    space = gymnasium.spaces.Dict({"say": TextSpace(), "chat": ChatSpace()}, seed=0)
    member = space.sample()
    assert member in space
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([member])))) == [member]
