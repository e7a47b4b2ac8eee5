"""`TrajectoryRow` takes what is written, refuses what cannot be read, and its schema says the same."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.exports.row_model import TrajectoryRow, json_schema
from toolgym.rollout.trajectory import Failure, Peer, Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.tools.errors import ConfigError


def through(value):
    """The JSON of a trajectory, as a reader of the file has it."""
    return json.loads(json.dumps(value))


def accepts(value):
    row = TrajectoryRow.model_validate(value)
    assert through(row.model_dump(by_alias=True, exclude_unset=True)) == value
    return row


def test_it_takes_every_trajectory_of_the_demo_and_keeps_it_equal(demo):
    validator = jsonschema.Draft202012Validator(json_schema())
    for trajectory in demo:
        value = through(trajectory.to_json())
        accepts(value)
        validator.validate(value)


def test_it_takes_every_kind_of_trajectory(kinds):
    validator = jsonschema.Draft202012Validator(json_schema())
    for trajectory in kinds:
        value = through(trajectory.to_json())
        row = TrajectoryRow.model_validate(value)
        assert Trajectory.from_json(row.model_dump(by_alias=True, exclude_unset=True)).id == trajectory.id
        validator.validate(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=8)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)


@st.composite
def segments(draw):
    ids = draw(IDS)
    if not draw(st.booleans()):
        return Segment.env(ids)
    versions = [draw(st.sampled_from("ab")) for _ in ids]
    payloads = {"entropy": np.zeros(len(ids), np.float16)} if draw(st.booleans()) else {}
    return Segment.policy(ids, [draw(FLOATS) for _ in ids], versions, payloads)


RECORDS = st.builds(
    ToolCallRecord, TEXTS, TEXTS, st.none() | OBJECTS, TEXTS, TEXTS, FLOATS, FLOATS, st.booleans(), OBJECTS,
    st.integers(0, 3),
)  # fmt: skip
TURNS = st.builds(
    Turn, TEXTS, st.sampled_from(["stop", "length"]), st.integers(0, 9), st.integers(0, 9),
    tool_calls=st.lists(RECORDS, max_size=2).map(tuple), reward=st.none() | FLOATS,
    seed=st.none() | st.integers(0, 2**63 - 1), truncated=st.booleans(),
)  # fmt: skip
CALLS = OBJECTS.map(
    lambda arguments: {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
)
MESSAGES = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user"]), TEXTS),
    st.builds(lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls}, TEXTS,
              st.lists(CALLS, min_size=1, max_size=2)),
    st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "c", "name": ""}, TEXTS),
)  # fmt: skip
TRAJECTORIES = st.builds(
    Trajectory, id=TEXTS, env_id=TEXTS, task_id=TEXTS, source=TEXTS, group_id=TEXTS, task_index=st.integers(0, 9),
    sample_index=st.integers(0, 9), messages=st.lists(MESSAGES, max_size=3).map(tuple),
    tools=st.lists(OBJECTS, max_size=2).map(tuple),
    sequences=st.lists(
        st.builds(TokenSequence, IDS.map(np.array), st.lists(segments(), max_size=3).map(tuple), TEXTS), max_size=2
    ).map(tuple),
    reward=FLOATS, stop_reason=st.sampled_from(StopReason), turns=st.lists(TURNS, max_size=2).map(tuple),
    ground_truth=JSON, error=st.none() | st.builds(Failure, TEXTS, st.integers(0, 3)), sampling=OBJECTS,
    metrics=OBJECTS, prompt_text=TEXTS, response_text=TEXTS, started_at=FLOATS, seconds=FLOATS,
    training_step=st.integers(0, 9), validate=st.booleans(), role=TEXTS, parent=st.none() | TEXTS,
    branch_turn=st.none() | st.integers(0, 3), settings=st.dictionaries(TEXTS, TEXTS, max_size=2),
    peers=st.lists(st.builds(Peer, TEXTS, FLOATS), max_size=2).map(tuple),
)  # fmt: skip


@given(TRAJECTORIES)
def test_it_takes_exactly_what_any_trajectory_writes(trajectory):
    value = through(trajectory.to_json())
    accepts(value)
    jsonschema.Draft202012Validator(json_schema()).validate(value)


@given(TRAJECTORIES, st.data())
def test_it_refuses_all_that_cannot_be_read(trajectory, data):
    """A line in which a value is missing, of another name or of another type, wherever it stands."""
    value = through(trajectory.to_json())
    place, key = data.draw(st.sampled_from(_places(value)))
    kind = data.draw(st.sampled_from(["gone", "renamed", "other"]))
    old = place.pop(key)
    if kind == "renamed":
        place[f"{key}_"] = old
    elif kind == "other":
        place[key] = data.draw(JSON)
    try:
        Trajectory.from_json(value)
    except ConfigError:
        with pytest.raises(ValidationError):
            TrajectoryRow.model_validate(value)


def _places(value):
    """Every key of every object in a line, but for those that may hold anything."""
    places = []
    for key, item in value.items():
        places.append((value, key))
        if key in ("gts", "metrics", "sampling", "settings"):
            continue
        for inner in item if isinstance(item, list) else [item]:
            if isinstance(inner, dict):
                places += _places(inner)
    return places


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 3}, "format version 4, got 3"),
        ({"score": "1"}, "score"),
        ({"sample_index": 1.5}, "sample_index"),
        ({"validate": 0}, "validate"),
        ({"stop_reason": "bored"}, "bored"),
        ({"tools": ["{"]}, "JSONDecodeError"),
        ({"mood": "good"}, "mood"),
        ({"settings": {"a": 1}}, "settings"),
        ({"turns": [{}]}, "tool_calls"),
    ],
)
def test_an_error_says_which_field(demo, change, message):
    with pytest.raises(ValidationError, match=message):
        TrajectoryRow.model_validate({**through(demo[0].to_json()), **change})


def test_rules_that_no_type_can_say_hold_as_well(demo):
    value = through(dataclasses.replace(demo[0]).to_json())
    value["sequences"][0]["segments"][0]["logprobs"].pop()
    with pytest.raises(ValidationError, match="logprobs"):
        TrajectoryRow.model_validate(value)


def test_the_command_prints_the_schema(export):
    code, out, _ = export("--schema")
    assert (code, json.loads(out)) == (0, json_schema())
