"""`tool_class`: an env as a class of tools, as trainers that own the loop take it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import pickle
import threading
import time
from typing import Literal

import pytest

import toolgym
from toolgym.envs import ToolEnv, tool_class
from toolgym.envs.as_tools.signature import signature_of
from toolgym.envs.as_tools.tool_class import finish_all
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools import BaseTool, ToolResult, ToolSchema, tool
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError, UnknownNameError

ROW = {"prompt": [{"role": "user", "content": "6*7?"}], "reward_model": {"ground_truth": "42"}}
TASK = Task(({"role": "user", "content": "go"},), id="go")


@tool
def greet(name: str, times: int, warmly: bool) -> str:
    """Greet a person.

    Args:
        name: of the person
        times: how often
        warmly: or not
    """
    return name * times


class Counting(BaseTool):
    """Counts its calls, and which of its instances are open."""

    def __init__(self):
        super().__init__(
            {},
            ToolSchema(
                "count", "Count up.", {"type": "object", "properties": {"by": {"type": "integer", "default": 1}}}
            ),
        )
        self.open, self.released, self.total = set(), 0, {}

    async def create(self, instance_id=None, **kwargs):
        made = await super().create(instance_id)
        self.open.add(made)
        self.total[made] = 0
        return made

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["by"] == 13:
            raise ValueError("unlucky")
        if parameters["by"] == 500:
            raise SandboxError("no host")
        self.total[instance_id] += parameters["by"]
        return ToolResult(str(self.total[instance_id]), reward=0.5)

    async def calc_reward(self, instance_id, **kwargs):
        return float(self.total[instance_id])

    async def release(self, instance_id, **kwargs):
        self.open.discard(instance_id)
        self.released += 1


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def Counted(counting):
    return tool_class(lambda: ToolEnv([counting], [TASK], max_turns=5))


def test_the_code_interpreter_solves_a_task():
    Interpreter = tool_class("CodeInterpreter-v0", max_turns=4)
    with Interpreter() as env:
        assert env.reset(**ROW) is None
        assert env.code_interpreter("x = 6") == "[The program printed nothing]"
        assert env.code_interpreter(code="print(x * 7)") == "42"
        assert env.get_reward("So it is\n#### 42") == 1.0
        env.reset(**ROW)
        assert "NameError" in env.code_interpreter("print(x)")
        assert env.get_reward("#### 41") == 0.0


def test_the_schema_that_transformers_reads_from_a_method_is_the_tools_own():
    from transformers.utils import get_json_schema

    for made in (toolgym.make("CodeInterpreter-v0"), ToolEnv([greet], [TASK])):
        env = tool_class(lambda made=made: made)()
        for schema in made.tool_schemas:
            own = schema.to_openai()
            own["function"]["parameters"].pop("additionalProperties", None)  # no signature says it
            assert get_json_schema(getattr(env, schema.name)) == own
        env.close()


def test_the_prompt_shows_the_code_interpreter_to_the_letter_as_our_own_does():
    from transformers.utils import get_json_schema

    made = tool_class("CodeInterpreter-v0")
    [schema] = toolgym.make("CodeInterpreter-v0").tool_schemas
    assert json.dumps(get_json_schema(made().code_interpreter)) == json.dumps(schema.to_openai())


PROPERTIES = {
    "text": ({"type": "string", "description": "a text"}, str),
    "count": ({"type": "integer", "description": "d"}, int),
    "share": ({"type": "number", "description": "d"}, float),
    "sure": ({"type": "boolean", "description": "d"}, bool),
    "names": ({"type": "array", "items": {"type": "string"}, "description": "d"}, list[str]),
    "grid": (
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "description": "d"},
        list[list[int]],
    ),
    "table": ({"type": "object", "additionalProperties": {"type": "number"}, "description": "d"}, dict[str, float]),
    "unit": ({"type": "string", "enum": ["km", "mile"], "description": "d"}, Literal["km", "mile"]),
    "either": ({"type": ["integer", "string"], "description": "d"}, int | str),
    "anything": ({"description": "d"}, object),
}


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("required", [True, False])
def test_a_property_comes_back_as_it_was(name, required):
    from transformers.utils import get_json_schema

    given, hint = PROPERTIES[name]
    parameters = {"type": "object", "properties": {name: given}, **({"required": [name]} if required else {})}
    made = tool_class(lambda: ToolEnv([Plain(ToolSchema("act", "Act now.", parameters))], [TASK]))
    read = get_json_schema(made().act)["function"]
    assert read["parameters"] == parameters
    if hint is not object:
        assert inspect.signature(made.act).parameters[name].annotation == hint


class Plain(BaseTool):
    def __init__(self, schema):
        super().__init__({}, schema)

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResult(repr(parameters))


def test_what_a_type_hint_cannot_say_stands_in_the_description():
    schema = ToolSchema(
        "act",
        "Act.\n\nArgs: none of these.",
        {
            "type": "object",
            "properties": {
                "level": {"type": "integer", "minimum": 1, "description": "how\n  much"},
                "place": {"$ref": "#/$defs/Place"},
                "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            },
            "required": ["place"],
            "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}},
        },
    )
    made = signature_of(schema)
    assert str(made.signature) == "(self, place: dict, level: int = None, maybe: int | None = None) -> str"
    assert 'level: how much (JSON Schema: {"minimum": 1})' in made.doc
    assert '(JSON Schema: {"properties": {"x": {"type": "number"}}})' in made.doc
    assert "Args - none of these." in made.doc


def test_what_the_model_does_wrong_is_text_that_it_reads(Counted):
    env = Counted()
    env.reset(**ROW)
    assert "Wrong arguments" in env.count(by="many")
    assert "Wrong arguments" in env.count(by=1.5)
    with pytest.raises(TypeError, match="takes 1 arguments"):
        env.count(1, 2)


def test_what_a_tool_does_wrong_is_text_that_the_model_reads(Counted):
    env = Counted()
    env.reset(**ROW)
    assert "unlucky" in env.count(by=13)
    assert "not available now" in env.count(by=500)
    assert env.count(by=2) == "2"
    assert env.get_reward("done") == 2.5


def test_an_instance_is_reset_many_times_and_releases_what_the_episode_had(Counted, counting):
    one, other = Counted(), Counted()
    one.reset(**ROW)
    other.reset(**ROW)
    assert (one.count(), other.count(by=7), one.count(by=2)) == ("1", "7", "3")
    assert len(counting.open) == 2
    one.reset(**ROW)
    assert (counting.released, len(counting.open), one.count()) == (1, 2, "1")
    one.close()
    one.close()
    assert (counting.released, len(counting.open)) == (2, 1)
    del other
    wait_until(lambda: not counting.open)


def wait_until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_left_of_a_class_that_is_forgotten(counting):
    def play():
        env = tool_class(lambda: ToolEnv([counting], [TASK]))()
        env.reset(**ROW)
        assert env.count() == "1"

    before = threading.active_count()
    play()
    wait_until(lambda: not counting.open and threading.active_count() <= before)


def test_a_call_after_the_end_says_so(Counted):
    env = Counted()
    env.reset(**ROW)
    for number in range(4):
        assert env.count() == str(number + 1)
    assert env.count() == "[The call was not run: the episode is over, max_turns]"
    assert env.count() == "[The call was not run: the episode is over, max_turns]"
    assert env.get_reward("late") == 2.0 + 4.0


def test_the_env_draws_a_task_where_the_row_has_none():
    env = tool_class("CodeInterpreter-v0")()
    first = env.reset(seed=3)
    assert first.startswith("Compute with the tool.")
    assert env.reset(seed=3, prompt=[{"role": "user", "content": ""}]) == first != env.reset(seed=4)
    env.close()


def test_a_row_that_is_no_task_is_an_error(Counted):
    env = Counted()
    with pytest.raises(ConfigError, match="prompt"):
        env.reset(prompt="What is 6*7?")
    with pytest.raises(ConfigError, match="toolgym_task"):
        env.reset(toolgym_task="{")
    with pytest.raises(EpisodeError, match="before reset"):
        env.get_reward("x")


class Broken(ToolEnv):
    def respond(self, turn):
        raise EpisodeFailedError(StopReason.ENV_FAILED, "no disk")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1"])
def test_a_reward_that_is_no_finite_number_is_a_failure(reward, caplog):
    class Odd(ToolEnv):
        async def step(self, action):
            return (await super().step(action))._replace(reward=reward)

    with tool_class(lambda: Odd([greet], [TASK]))() as env:
        env.reset()
        assert "not available now" in env.greet("a", 1, True)
        assert env.get_reward("bye") is None
        assert ("finite" in env.failure) or ("number" in env.failure)


def test_an_episode_that_the_infrastructure_broke_has_no_reward(counting, caplog):
    env = tool_class(lambda: Broken([counting], [TASK]))()
    env.reset(**ROW)
    assert env.get_reward("#### 1") is None
    assert "no disk" in env.failure
    assert "no disk" in caplog.text
    env.reset(**ROW)
    assert env.failure is None


def test_a_reward_without_the_answer_is_warned_of_once(Counted, caplog):
    for _ in range(2):
        env = Counted()
        env.reset(**ROW)
        assert env.get_reward() == 0.0
    ours = [record for record in caplog.records if record.name.startswith("toolgym.envs")]
    assert [record.levelno for record in ours] == [logging.WARNING]


def test_an_answer_tool_hands_in_the_answer():
    made = tool_class("CodeInterpreter-v0", answer_tool="submit", own_reward=False)
    assert made.get_reward is None
    with made() as env:
        env.reset(**ROW)
        assert env.submit(answer="#### 42") == "[Your answer was taken]"
        assert "over already" in env.submit("#### 43")
        assert env.finish("ignored") == 1.0


def test_only_tools_are_public_functions():
    made = tool_class("CodeInterpreter-v0")
    names = [name for name, _ in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")]
    assert sorted(names) == ["code_interpreter", "get_reward", "reset"]


@pytest.mark.parametrize("name", ["reset", "get_reward", "close", "finish", "failure"])
def test_a_tool_with_a_name_of_the_class_is_an_error(name):
    plain = Plain(ToolSchema(name))
    with pytest.raises(ConfigError, match=f"a tool is called '{name}', which every class of tools has"):
        tool_class(lambda: ToolEnv([plain], [TASK]))


def test_other_mistakes_are_errors():
    with pytest.raises(ConfigError, match="cannot be the name of a public method"):
        tool_class(lambda: ToolEnv([Plain(ToolSchema("read-file"))], [TASK]))
    odd = ToolSchema("act", "Act.", {"type": "object", "properties": {"class": {"type": "string"}}})
    with pytest.raises(ConfigError, match="parameter 'class'"):
        tool_class(lambda: ToolEnv([Plain(odd)], [TASK]))
    with pytest.raises(ConfigError, match="two tools"):
        tool_class("CodeInterpreter-v0", answer_tool="code_interpreter")
    with pytest.raises(UnknownNameError, match="did you mean"):
        tool_class("CodeInterpretr-v0")
    with pytest.raises(ConfigError, match="keyword arguments"):
        tool_class(lambda: None, max_turns=3)
    with pytest.raises(ConfigError, match="expected an env id"):
        tool_class(7)


def test_a_class_goes_to_another_process():
    made = tool_class("CodeInterpreter-v0", max_turns=3)
    again = pickle.loads(pickle.dumps(made))
    assert again is not made
    assert str(inspect.signature(again.code_interpreter)) == str(inspect.signature(made.code_interpreter))


async def test_calls_from_threads_of_async_code_run_side_by_side(Counted):
    envs = [Counted() for _ in range(4)]

    def play(env):
        env.reset(**ROW)
        return env.count(by=2), env.get_reward("x")

    assert await asyncio.gather(*(asyncio.to_thread(play, env) for env in envs)) == [("2", 2.5)] * 4
    envs[0].reset(**ROW)
    assert envs[0].count() == "1"  # also on the event loop itself, which waits


def test_what_the_caller_cut_is_scored_with_what_is_there():
    seen = []

    def scored():
        return ToolEnv([greet], [TASK], scorer=lambda outcome: float(seen.append(outcome) is None))

    made = tool_class(scored)
    with made() as cut, made() as without_room, made() as whole:
        for env in (cut, without_room, whole):
            env.reset(seed=0)
            env.greet("a", 1, False)
        assert finish_all([cut, without_room, whole], ["half a", None, "done"], [False, True, True]) == [1.0] * 3
        assert finish_all([cut], ["half a"], [False]) == [1.0]  # it is over
    ends = {(one.stop_reason, one.final_text, one.turns) for one in seen}
    assert ends == {("length", "", 2), ("budget", "", 1), ("answered", "done", 2)}
