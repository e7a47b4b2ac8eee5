"""Full JSON Schema survives, and what is wrong with arguments is said in words that a model can act on."""

from __future__ import annotations

import json
import pickle

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema, check_call

NESTED = {
    "type": "function",
    "function": {
        "name": "plan",
        "description": "Plan a trip.",
        "parameters": {
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "city": {"type": "string"},
                            "nights": {"type": "integer", "minimum": 1, "default": 2},
                            "mode": {"enum": ["train", "bus"], "default": "train"},
                        },
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
                "budget": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            },
            "required": ["stops"],
        },
        "strict": False,
    },
}


def schema() -> ToolSchema:
    return ToolSchema.from_openai(NESTED)


def test_nothing_is_stripped_on_the_way_through():
    assert schema().to_openai() == NESTED


def test_to_openai_is_a_copy():
    first = schema()
    first.to_openai()["function"]["parameters"]["properties"].clear()
    assert first.to_openai() == NESTED


def test_schemas_have_one_json_text_whatever_the_order_of_their_keys():
    turned = json.loads(json.dumps(NESTED, sort_keys=True))
    assert ToolSchema.from_openai(turned).canonical_json == schema().canonical_json
    assert json.loads(schema().canonical_json) == NESTED
    assert ToolSchema("f", "a").canonical_json != ToolSchema("f", "b").canonical_json


def test_good_arguments_have_no_problems_and_get_defaults_at_every_depth():
    one = schema()
    assert one.problems({"stops": [{"city": "Bern"}]}) == []
    filled = one.with_defaults({"stops": [{"city": "Bern", "nights": 5}, {"city": "Rome"}]})
    assert filled == {
        "stops": [{"city": "Bern", "nights": 5, "mode": "train"}, {"city": "Rome", "nights": 2, "mode": "train"}],
        "budget": None,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "Missing required argument 'stops'."),
        ({"stops": "Bern"}, "Argument 'stops' must be of type array, got string \"Bern\"."),
        ({"stops": [{"nights": 1}]}, "Missing required argument 'stops[0].city'."),
        ({"stops": [{"city": "B", "nights": "two"}]}, "Argument 'stops[0].nights' must be of type integer, got string"),
        ({"stops": [{"city": "B", "mode": "plane"}]}, 'must be one of "train", "bus", got "plane".'),
        ({"stops": [{"city": "B", "hotel": 1}]}, "Unexpected argument 'stops[0].hotel'; allowed: 'city'"),
        ({"stops": []}, "Argument 'stops' is not valid"),
        ({"stops": [{"city": "B"}], "budget": "much"}, "Argument 'budget' must be of type number or null, got string"),
        ({"stops": [{"city": "B", "nights": True}]}, "got boolean true"),
    ],
)
def test_problems_name_the_argument_and_what_is_right(arguments, said):
    problems = schema().problems(arguments)
    assert len(problems) == 1
    assert said in problems[0]


def test_all_problems_are_told_at_once():
    assert len(schema().problems({"stops": [{"nights": "x", "mode": "y"}]})) == 3


def test_check_call_answers_with_a_call_or_an_error():
    schemas = {"plan": schema()}
    good = check_call(ToolCall("call_0", "plan", {"stops": [{"city": "Bern"}]}), schemas)
    assert isinstance(good, ToolCall)
    assert good.arguments["budget"] is None
    unknown = check_call(ToolCall("call_1", "plam", {}, 3), schemas)
    assert isinstance(unknown, ToolCallError)
    assert unknown.problem is CallProblem.UNKNOWN_TOOL
    assert unknown.message == "Unknown tool 'plam', did you mean 'plan'? Available tools: plan."
    assert (unknown.id, unknown.index) == ("call_1", 3)
    far = check_call(ToolCall("call_1", "zzz", {}), schemas)
    assert isinstance(far, ToolCallError)
    assert far.message == "Unknown tool 'zzz'. Available tools: plan."
    wrong = check_call(ToolCall("call_2", "plan", {}), schemas)
    assert isinstance(wrong, ToolCallError)
    assert wrong.problem is CallProblem.WRONG_ARGUMENTS


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"function": {"description": "no name"}},
        {"name": ""},
        {"name": "x", "parameters": {"type": "string"}},
        {"name": "x", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}},
    ],
)
def test_a_bad_schema_is_the_users_error(value):
    with pytest.raises(ConfigError):
        ToolSchema.from_openai(value)


def test_a_schema_that_has_checked_arguments_can_be_pickled():
    """What is cached stays behind: jsonschema's validator, which a nested schema needs, cannot be pickled."""
    schema = ToolSchema("f", parameters={"type": "object", "properties": {"x": {"type": "array", "minItems": 1}}})
    assert schema.problems({"x": []})
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert copy.problems({"x": []}) == schema.problems({"x": []})
