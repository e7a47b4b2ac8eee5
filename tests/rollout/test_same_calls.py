"""The same text of a turn gives the same calls in training, in evaluation and by hand, for each env id."""

from __future__ import annotations

import contextlib
import json

import pytest
from aiohttp import web

import toolgym
from tests.rollout.engines.http_server import serving
from toolgym.envs import GymnasiumEnv
from toolgym.envs.ids import OWN_ENVS
from toolgym.rollout import RunConfig, SamplingParams, rollout, run_episode
from toolgym.rollout.endpoint import run
from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import CallProblem

IDS = sorted(id for id in OWN_ENVS if "/" not in id and id != "PlotReader-v0")
"""The families, whose ids have a namespace, need extras and are played in tests of their own, as is the one that shows
images."""

END = "#### 0"
VALUES = {"integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


def written(name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {text}}}\n</tool_call>'


def arguments_for(schema, text):
    """Arguments that fit a tool's schema."""
    given = {}
    for name, one in schema.parameters.get("properties", {}).items():
        if name in schema.parameters.get("required", ()):
            kind = one.get("type", "string")
            kind = kind[0] if isinstance(kind, list) else kind
            given[name] = one["enum"][0] if one.get("enum") else VALUES.get(kind, text)
    return given


def takes_anything(schema):
    return not schema.parameters.get("required") and schema.parameters.get("additionalProperties", True)


def turns_of(schemas):
    """Texts of turns, by what is particular about them; a server parses those that are well written alike."""
    first = schemas[:3]
    special = 'ä "quoted"\n\t\\ <b> & 日本'
    good = "".join(f"So:\n{written(one.name, arguments_for(one, special))}\n" for one in first)
    bad = [written("nosuch", {"x": 1})]
    for one in first:
        bad += [written(one.name, '{"x": '), written(one.name, {"no such": [1]})]
    ends_in_a_call = "\n".join(bad).removesuffix("\n</tool_call>")
    return {"no call": "I give up.", "well written": good or END, "badly written": ends_in_a_call}


class Watched:
    """Makes envs of an id, and keeps what became of the calls of each step."""

    def __init__(self, id):
        self.id, self.calls = id, []

    def __call__(self):
        env = toolgym.make(self.id)
        step = env.step

        async def watched(action):
            result = await step(action)
            self.calls.append([seen(record) for record in result.info.get("tool_calls", [])])
            return result

        env.step = watched
        return env


def seen(record):
    """A call as the env read it: what a tool answers may differ from run to run."""
    problem = record.status if record.status in {one.value for one in CallProblem} else None
    return record.name, record.arguments, problem


class Roads:
    """The ways for a text into an env; each returns what became of the calls of its first turn."""

    def __init__(self, scripted, id, task):
        self.scripted, self.id, self.task = scripted, id, task
        self.config = RunConfig(seed=0, sampling=SamplingParams(max_new_tokens=2000))

    def engine(self, text):
        said = iter([text])
        return self.scripted(lambda *_: next(said, END), context_length=100_000)

    async def training(self, text):
        made = Watched(self.id)
        [trajectory] = await rollout(made, self.engine(text), [self.task], config=self.config)
        assert not trajectory.failed, trajectory.error
        return made.calls[0]

    async def a_trainers_own_loop(self, text):
        made = Watched(self.id)
        trajectory = await run_episode(made, self.task, self.engine(text), config=self.config)
        assert not trajectory.failed, trajectory.error
        return made.calls[0]

    async def evaluation(self, text):
        """Behind a chat server, which parses the text itself."""
        said, made = iter([text]), Watched(self.id)

        async def answer(request):
            turn = get_parser("hermes")(next(said, END))
            calls = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
                for call in turn.calls
            ]  # fmt: skip
            message = {"role": "assistant", "content": turn.content, **({"tool_calls": calls} if calls else {})}
            return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

        async with serving({"POST /v1/chat/completions": answer}) as url:
            await run(self.task, base_url=f"{url}/v1", env=made, seed=0)
        return made.calls[0]

    async def by_hand(self, text):
        made = Watched(self.id)
        async with made() as env:
            await env.reset(seed=0, options={"task": self.task})
            await env.step(text)
        return made.calls[0]

    async def by_hand_in_gymnasium(self, text):
        made = Watched(self.id)
        with contextlib.closing(GymnasiumEnv(made())) as env:
            env.reset(seed=0, options={"task": self.task})
            env.step(text)
        return made.calls[0]


OUR_PARSER = ("training", "a_trainers_own_loop", "by_hand", "by_hand_in_gymnasium")


@pytest.mark.parametrize("id", IDS)
async def test_each_road_sees_the_same_calls(id, scripted):
    async with toolgym.make(id) as env:
        _, info = await env.reset(seed=0)
        schemas, goes_on = env.tool_schemas, getattr(env, "max_turns", 2) > 1
    roads = Roads(scripted, id, info["task"])
    for what, text in turns_of(schemas).items():
        names = OUR_PARSER if what == "badly written" else (*OUR_PARSER, "evaluation")
        found = {name: await getattr(roads, name)(text) for name in names}
        assert list(found.values()) == [found["by_hand"]] * len(names), (what, found)
        if what == "well written" and goes_on:
            assert [name for name, _, _ in found["by_hand"]] == [one.name for one in schemas[:3]]
        if what == "badly written" and goes_on and schemas:
            assert len(found["by_hand"]) == 1 + 2 * len(schemas[:3])
            assert sum(problem is None for _, _, problem in found["by_hand"]) == sum(map(takes_anything, schemas[:3]))
