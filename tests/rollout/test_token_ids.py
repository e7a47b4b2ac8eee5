"""Ids that are known to be ids: what grows is checked where it is new, and nowhere is it checked less."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from toolgym.rollout import SamplingParams
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.tools.errors import ConfigError


def test_it_holds_plain_numbers_and_knows_their_bounds():
    ids = TokenIds(np.array([7, 3, 9]))
    assert ids == (7, 3, 9)
    assert {type(one) for one in ids} == {int}
    assert (ids.least, ids.greatest) == (3, 9)
    assert ids.array.tolist() == [7, 3, 9]
    assert ids.array.dtype == np.int32
    assert not ids.array.flags.writeable


def test_it_grows_by_what_is_put_behind_it():
    ids = TokenIds([7, 3]).followed_by([1, 9])
    assert ids == (7, 3, 1, 9)
    assert isinstance(ids, TokenIds)
    assert (ids.least, ids.greatest) == (1, 9)
    for grown in (TokenIds().followed_by([5]), TokenIds([5]).followed_by([])):
        assert (grown, grown.least, grown.greatest) == ((5,), 5, 5)
    assert TokenIds().followed_by(()) == ()


def test_grown_ids_are_read_as_a_tuple_is():
    prompt = TokenIds(range(5))
    for ids in (TokenIds(), prompt, prompt.followed_by([7, 8]), prompt.followed_by([7, 8]).followed_by([9, 10])):
        same = (*ids,)
        assert (ids.as_tuple(), len(ids), hash(ids), bool(ids)) == (same, len(same), hash(same), bool(same))
        for start in (None, *range(-11, 12)):
            for stop in (None, *range(-11, 12)):
                for step in (None, 2, -1):
                    assert ids[start:stop:step] == same[start:stop:step]
        for at in range(-len(same), len(same)):
            assert ids[at] == same[at]
        for beyond in (len(same), -len(same) - 1):
            with pytest.raises(IndexError):
                _ = ids[beyond]
    assert prompt == tuple(range(5)), "growing changes nothing of what grew"
    assert prompt != [*prompt], "as a tuple is no list"


def test_it_tells_whether_it_begins_with_others():
    prompt = TokenIds([1, 2, 3])
    grown = prompt.followed_by([4, 5])
    for ids in (grown.followed_by([6]), TokenIds([1, 2, 3, 4, 5, 6])):
        assert ids.begins_with(prompt)
        assert ids.begins_with(grown)
        assert not ids.begins_with(prompt.followed_by([5]))
        assert not grown.begins_with(ids)


@pytest.mark.parametrize("wrong", [[1.0], ["1"], [None]])
def test_what_is_no_whole_number_is_refused_also_behind_others(wrong):
    with pytest.raises(ConfigError, match="integers"):
        TokenIds(wrong)
    with pytest.raises(ConfigError, match="integers"):
        TokenIds([1, 2]).followed_by(wrong)


def test_ids_that_no_array_holds_are_refused():
    with pytest.raises(ConfigError, match=r"2\*\*31"):
        _ = TokenIds([2**31]).array
    with pytest.raises(ConfigError, match="-1"):
        _ = TokenIds([-1]).array


def test_a_copy_of_another_process_is_the_same():
    ids = pickle.loads(pickle.dumps(TokenIds([7, 3]).followed_by([9])))
    assert (ids, ids.least, ids.greatest) == ((7, 3, 9), 3, 9)


async def test_an_engine_refuses_grown_ids_outside_of_its_vocabulary(scripted, tokenizer):
    engine = scripted(lambda prompt, request_id: "x")
    for wrong in (len(tokenizer), -1):
        with pytest.raises(ConfigError, match=f"token id {wrong} is outside the vocabulary"):
            await engine.generate(
                TokenIds([1]).followed_by([wrong, 2]), SamplingParams(max_new_tokens=1), request_id="r"
            )
