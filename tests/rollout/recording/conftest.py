"""One recorded run of the tiny policy, which the tests replay, cut and edit."""

from __future__ import annotations

import asyncio
import json

import pytest

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, Runner, SamplingParams, tiny_policy_path
from toolgym.rollout.engines import TransformersEngine
from toolgym.rollout.recording import recorded


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    """A run of the tiny policy with the real engine and the real sandbox, unseeded: its file and its trajectories."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    # The metrics of the tool, its run time for one, cannot be had again by chance.
    config = RunConfig(group_size=3, max_concurrent=8, sampling=SamplingParams(max_new_tokens=96))
    tasks = ArithmeticTasks(split="test").take(6, seed=0)

    async def record():
        async with TransformersEngine(tiny_policy_path()) as engine:
            runner = Runner("CodeInterpreter-v0", engine, config=config)
            with recorded(runner, tasks, path, tokenizer_source="tiny") as recording_runner:
                return await recording_runner.run(tasks)

    return path, asyncio.run(record())


@pytest.fixture(scope="session")
def bare():
    """Makes a trajectory's JSON without its random ids and the wall times."""

    def make(trajectory):
        value = trajectory.to_json()
        for name in ("id", "group_id", "started_at", "seconds", "settings"):
            del value[name]
        for turn in value["turns"]:
            del turn["engine_seconds"], turn["env_seconds"]
            for record in turn["tool_calls"]:
                del record["seconds"]
        return json.dumps(value)

    return make


def find(lines, *texts):
    return next(place for place, line in enumerate(lines) if all(text in line for text in texts))


def swap(lines, place, old, new):
    assert old in lines[place]
    return [*lines[:place], lines[place].replace(old, new, 1), *lines[place + 1 :]]


EDITS = {
    "a reply": lambda lines: swap(lines, find(lines, '"generate"'), '"cached_tokens":', '"cached_tokens":1'),
    "a result": lambda lines: swap(lines, find(lines, '"execute"', '"text":"'), '"text":"', '"text":"9'),
    "a trajectory": lambda lines: swap(lines, find(lines, '"kind":"trajectory"'), '"score":', '"score":1'),
    "a removed line": lambda lines: [*lines[:9], *lines[10:]],
    "two lines swapped": lambda lines: [*lines[:9], lines[10], lines[9], *lines[11:]],
    "a blank": lambda lines: swap(lines, 5, '{"kind"', '{ "kind"'),
    "the header": lambda lines: swap(lines, 0, '"library":"', '"library":"1'),
}


def pytest_generate_tests(metafunc):
    if "edit" in metafunc.fixturenames:
        metafunc.parametrize("edit", EDITS)


@pytest.fixture
def edited(tmp_path):
    """Makes a copy of a recording with its lines changed, digests left as they are."""

    def make(path, edit):
        copy = tmp_path / "edited.jsonl"
        copy.write_text("\n".join(EDITS[edit](path.read_text().split("\n"))))
        return copy

    return make
