"""Arguments are checked against schemas of every draft, within a bounded amount of work."""

from __future__ import annotations

import time

import pytest

from toolgym.tools import json_schema
from toolgym.tools.errors import ConfigError
from toolgym.tools.json_schema import ArgumentChecker, matches_pattern
from toolgym.tools.schema import ToolSchema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def of_property(schema, **others):
    return {"type": "object", "properties": {"value": schema}, **others}


def problems(schema, value, *, external=False, **others):
    return ArgumentChecker(of_property(schema, **others), external=external).problems({"value": value})


@pytest.mark.parametrize(
    ("schema", "good", "bad", "others"),
    [
        (
            {"type": "array", "items": [{"type": "number"}, {"type": "string"}]},
            [1, "a"],
            ["a", 1],
            {"$schema": DRAFT_7},
        ),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 1, 0, {"$schema": DRAFT_4}),
        ({"type": "array", "prefixItems": [{"type": "number"}], "items": False}, [1], [1, 2], {}),
        ({"type": "string", "pattern": r"^\p{L}+$"}, "Zoë", "a1", {}),
        ({"type": "string", "pattern": r"^(?<year>\d{4})$"}, "2024", "24", {}),
        ({"type": "object", "patternProperties": {r"^\p{Lu}": {"type": "integer"}}}, {"Ä": 1}, {"Ä": "x"}, {}),
        ({"type": "array", "uniqueItems": True}, [1, True, "1", {"a": 1}], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], {}),
        ({"$ref": "#/$defs/day"}, 3, 9, {"$defs": {"day": {"type": "integer", "maximum": 7}}}),
    ],
)
def test_a_valid_schema_of_any_draft_is_followed(schema, good, bad, others):
    for external in (False, True):
        assert problems(schema, good, external=external, **others) == []
        assert problems(schema, bad, external=external, **others)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "("}, "regex"),
        ({"$ref": "#/$defs/missing"}, "leads nowhere"),
        ({"type": "any"}, "properties/value/type"),
        ({"type": "array", "items": [{"type": "number"}]}, "properties/value/items"),
    ],
)
def test_an_invalid_schema_is_an_error_of_its_author_and_accepted_of_others(schema, reason):
    with pytest.raises(ConfigError, match=reason):
        ToolSchema("f", parameters=of_property(schema))
    assert ToolSchema("f", parameters=of_property(schema), external=True).problems({"value": [1]}) == []


def test_a_draft_is_found_for_an_external_schema_that_does_not_name_it():
    pair = {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}
    assert problems(pair, ["a", "b"], external=True)
    assert problems({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 0, external=True)


def test_a_remote_reference_is_not_fetched():
    schema = of_property({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(ConfigError, match="leads nowhere"):
        ArgumentChecker(schema)
    assert ArgumentChecker(schema, external=True).problems({"value": 1}) == []


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"value": value}
    return value


BRANCHES = [{"type": "object", "properties": {"value": {"$ref": "#/$defs/n"}}, "required": [key]} for key in "xyz"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of_property({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"anyOf": BRANCHES}}}), nested(60)),
        (of_property({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"oneOf": BRANCHES}}}), nested(900)),
        (of_property({"type": "array", "uniqueItems": True}), [{"n": number} for number in range(100_000)]),
        (of_property({"type": "string", "pattern": "^(a|a)*(b|b)*$"}), "a" * 2000 + "c"),
        (of_property({"type": "array", "items": {"pattern": "^(a|aa)+$"}}), ["a" * 60 + "c"] * 1000),
        (of_property({"type": "array", "items": {"type": "object", "minProperties": 1}}), [{}] * 200_000),
    ],
    ids=["alternatives", "depth", "unique", "pattern", "patterns", "objects"],
)
def test_arguments_that_take_long_to_check_are_refused_and_do_not_hold_the_loop(schema, value):
    checker = ArgumentChecker(schema)
    checker.problems({})
    began = time.process_time()
    assert checker.problems({"value": value})
    assert time.process_time() - began < 5.0  # unbounded, each takes minutes


def test_long_lists_of_plain_values_are_accepted():
    assert problems({"type": "array", "items": {"type": "integer"}}, [7] * 300_000) == []
    (sentence,) = problems({"type": "array", "items": {"type": "integer"}}, [*[7] * 10_000, "x"])
    assert "value[10000]" in sentence


def test_the_model_reads_a_bounded_number_of_short_sentences():
    sentences = problems({"type": "array", "items": {"type": "integer"}}, ["x" * 10_000] * 5000)
    assert len(sentences) == json_schema.MAX_ERRORS
    assert sum(map(len, sentences)) < 10_000
    closed = ArgumentChecker({"type": "object", "properties": {}, "additionalProperties": False})
    assert len(closed.problems({str(number): 1 for number in range(5000)})) == json_schema.MAX_ERRORS


def test_a_pattern_that_cannot_be_compiled_matches_everything():
    assert matches_pattern("(", "text") is True
    assert matches_pattern(r"^\p{L}$", "é") is True


def test_external_schemas_may_have_any_type_and_null_keywords():
    for parameters in ({}, {"type": ["object", "null"], "properties": {}}, {"type": "OBJECT"}, {"properties": None}):
        schema = ToolSchema("f", parameters=parameters, external=True)
        assert schema.problems({"a": 1}) == []
        assert schema.with_defaults({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match="type 'object'"):
        ToolSchema("f", parameters={"type": "array"})
