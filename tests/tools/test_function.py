"""`@tool` from typed functions."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pickle
import threading
from typing import Literal

import cloudpickle
import pydantic
import pytest

from toolgym.tools import ToolResult, tool
from toolgym.tools.errors import ConfigError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(pydantic.BaseModel):
    x: float
    y: float = 0.0


@tool
def paint(where: list[Point], colour: Colour, times: int = 1, mode: Literal["fast", "slow"] = "fast") -> dict:
    """Paint some points.

    Paints them over, again and again.

    Args:
        where: the points
        colour: the colour to use
        times: how often
    """
    return {"painted": len(where) * times, "colour": colour.value, "mode": mode, "x": where[0].x}


async def run(function, **arguments):
    made = function.tool
    assert made.tool_schema.problems(arguments) == []
    instance = await made.create()
    result = await made.execute(instance, made.tool_schema.with_defaults(arguments))
    await made.release(instance)
    return result


def test_the_schema_holds_types_descriptions_enums_items_and_defaults():
    schema = paint.tool_schema
    assert schema.name == "paint"
    assert schema.description == "Paint some points.\n\nPaints them over, again and again."
    properties = schema.parameters["properties"]
    assert properties["where"]["type"] == "array"
    assert properties["where"]["description"] == "the points"
    assert properties["times"] == {"type": "integer", "default": 1, "description": "how often"}
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert schema.parameters["required"] == ["where", "colour"]
    assert schema.parameters["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema.parameters["$defs"]["Point"]["properties"]["y"] == {"type": "number", "default": 0.0}
    assert "title" not in str(schema.parameters)


async def test_arguments_arrive_as_the_types_that_the_function_asks_for():
    result = await run(paint, where=[{"x": 1}], colour="red", times=3)
    assert result == ('{"painted": 3, "colour": "red", "mode": "fast", "x": 1.0}', 0.0, {})


def test_the_schema_refuses_what_the_function_does_not_take():
    assert paint.tool_schema.problems({"where": [{"x": "one"}], "colour": "green", "size": 1}) != []
    assert len(paint.tool_schema.problems({"where": [{"x": "one"}], "colour": "green", "size": 1})) == 3


def test_it_is_still_a_function():
    assert paint([Point(x=2)], Colour.BLUE)["colour"] == "blue"
    assert paint.__name__ == "paint"
    assert list(inspect.signature(paint).parameters) == ["where", "colour", "times", "mode"]
    assert inspect.getdoc(paint).startswith("Paint some points.")


def test_it_goes_to_another_process_by_its_name_or_whole():
    assert pickle.loads(pickle.dumps(paint)) is paint

    @tool
    def shout(text: str) -> str:
        return text.upper()

    again = cloudpickle.loads(cloudpickle.dumps(shout))
    assert again("a") == "A"
    assert again.tool_schema == shout.tool_schema


async def test_one_function_and_a_method_become_several_tools():
    class Shop:
        def price(self, name: str) -> int:
            """Say what it costs."""
            return len(name)

    shop = Shop()
    first, second = tool(shop.price), tool(name="cost")(shop.price)
    assert [one.tool.name for one in (first, second)] == ["price", "cost"]
    assert [(await run(one, name="tea")).text for one in (first, second)] == ["3", "3"]


async def test_async_functions_run_on_the_loop_and_plain_ones_in_a_thread():
    @tool
    async def here() -> str:
        return threading.current_thread().name

    @tool
    def elsewhere() -> str:
        return threading.current_thread().name

    assert (await run(here)).text == threading.current_thread().name
    assert (await run(elsewhere)).text != threading.current_thread().name


async def test_a_tool_result_passes_through_with_reward_and_metrics():
    @tool(name="grade", description="Grade it.")
    def graded(answer: str) -> ToolResult:
        return ToolResult("fine", 0.5, {"length": len(answer)})

    assert (graded.tool.name, graded.tool_schema.description) == ("grade", "Grade it.")
    text, reward, metrics = await run(graded, answer="abc")
    assert (text, reward, metrics) == ("fine", 0.5, {"length": 3})


async def test_dataclasses_and_optional_arguments():
    @dataclasses.dataclass
    class Query:
        text: str
        limit: int = 3

    def search(query: Query, lang: str | None = None) -> str:
        return f"{query.text}/{query.limit}/{lang}"

    search.__annotations__ = {"query": Query, "lang": str | None, "return": str}
    made = tool(search)
    assert (await run(made, query={"text": "a"})).text == "a/3/None"


def test_a_parameter_without_a_type_is_the_authors_error():
    with pytest.raises(ConfigError, match="'x' needs a type hint"):

        @tool
        def untyped(x):
            return x


def test_star_arguments_are_refused():
    with pytest.raises(ConfigError, match="passable by name"):

        @tool
        def star(*args: int):
            return args


def test_results_have_no_shared_state():
    ToolResult("a").metrics["x"] = 1
    assert ToolResult("b").metrics == {}
