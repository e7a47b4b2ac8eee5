"""A run that is resumed: what is on disk is not played again, and the whole is as if one run had played all."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from dataclasses import replace

import pytest

from toolgym.envs import ArithmeticTasks, BadCallPolicy, TaskList, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import (
    EpisodeLimits,
    GroupPlan,
    RunConfig,
    Runner,
    RunOutput,
    SamplingParams,
    read_trajectories,
    rollout,
)
from toolgym.rollout.job import EpisodeKey
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.replay import first_difference
from toolgym.rollout.runner import Branching, GroupScheduler, at_turns
from toolgym.rollout.runner.resumed import EarlierRun, Resumed
from toolgym.rollout.tokens import KeepToolResults
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError
from toolgym.wrappers import TimeLimit

TASKS = [Task(({"role": "user", "content": f"task {number}"},), id=str(number)) for number in range(4)]
CONFIG = RunConfig(group_size=3, seed=5, max_concurrent=4, sampling=SamplingParams(max_new_tokens=50))


def env():
    return ToolEnv([], TASKS)


def by_seed(engine):
    """What the engine says depends on the prompt and the seed alone."""

    def script(prompt, request_id):
        engine.asked.append(request_id)
        return f"seed {engine.seen[request_id][1].seed}"

    engine.script, engine.asked = script, []
    return engine


def as_one(trajectories):
    """The trajectories as JSON, in their order, to be compared by `first_difference`."""
    return [one.to_json() for one in sorted(trajectories, key=lambda one: (one.task_index, one.sample_index))]


def assert_same(one, other):
    assert len(one) == len(other)
    assert [found for pair in zip(as_one(one), as_one(other), strict=True) if (found := first_difference(*pair))] == []


def cut(path, lines, torn=0):
    """Leave so many lines of a file, and so many bytes of the next."""
    found = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(found[:lines]) + b"".join(found[lines:])[:torn])


@pytest.fixture
def whole(scripted, tmp_path):
    """A run of 12 episodes without an interruption, and its file."""
    path = tmp_path / "t.jsonl"
    return asyncio.run(rollout(env, by_seed(scripted(None)), TASKS, config=CONFIG, out=path)), path


@pytest.mark.parametrize("lines", [0, 1, 5, 11])
def test_a_resumed_run_equals_one_that_was_not_interrupted(scripted, whole, lines):
    expected, path = whole
    cut(path, lines, torn=100)
    engine = by_seed(scripted(None))
    got = asyncio.run(rollout(env, engine, TASKS, config=CONFIG, out=path, resume=True))
    assert_same(got, expected)
    assert len(engine.asked) == 12 - lines
    assert len({one.group_id for one in got}) == 4
    assert sorted(as_one(read_trajectories(path)), key=json.dumps) == sorted(as_one(got), key=json.dumps)


def test_a_run_that_is_complete_plays_nothing(scripted, whole):
    expected, path = whole
    before = path.read_bytes()
    engine = by_seed(scripted(None))
    assert asyncio.run(rollout(env, engine, TASKS, config=CONFIG, out=path, resume=True)) == expected
    assert engine.asked == []
    assert path.read_bytes() == before


def test_a_run_has_a_journal_and_a_recording_also_when_it_is_resumed(scripted, whole, tmp_path):
    expected, _ = whole
    path, journal, record = (tmp_path / name for name in ("mine.jsonl", "turns.journal", "recording"))
    output = RunOutput(trajectories=path, journal=journal, record=record)
    assert_same(asyncio.run(rollout(env, by_seed(scripted(None)), TASKS, config=CONFIG, out=output)), expected)
    assert journal.is_file()
    assert len(Cassette.load(record).trajectories) == 12
    cut(path, 5)
    engine = by_seed(scripted(None))
    assert_same(asyncio.run(rollout(env, engine, TASKS, config=CONFIG, out=output, resume=True)), expected)
    assert len(Cassette.load(record).trajectories) == 12
    again = replace(output, trajectories=tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="a recording holds the tasks of its run"):
        asyncio.run(rollout(env, engine, iter(TASKS), config=CONFIG, out=again))


async def test_whole_groups_need_a_scheduler_that_gives_them(scripted):
    runner = Runner(env, by_seed(scripted(None)), config=CONFIG)
    with pytest.raises(ConfigError, match="a scheduler of whole groups"):
        await anext(runner.stream_groups(GroupScheduler(TASKS, CONFIG)))


def test_a_run_without_a_seed_goes_on_with_the_seed_it_had_drawn(scripted, tmp_path):
    path, source, config = tmp_path / "t.jsonl", ArithmeticTasks(), replace(CONFIG, seed=None)

    def resumed():
        call = rollout(env, by_seed(scripted(None)), source, num_tasks=3, config=config, out=path, resume=True)
        return asyncio.run(call)

    whole = resumed()  # there is none to go on with yet
    cut(path, 2)
    assert_same(resumed(), whole)


def test_a_source_hears_of_all_rewards_in_the_order_of_the_tasks(scripted, whole):
    _, path = whole

    class Watched(TaskList):
        heard = ()

        def observe(self, task, rewards):
            self.heard += ((task.id, len(rewards)),)

    cut(path, 7)
    source, earlier = Watched(TASKS), EarlierRun(path)
    scheduler = Resumed(
        GroupScheduler(TASKS, CONFIG, observe=source.observe, run_id=earlier.run_id), earlier.trajectories
    )

    async def run():
        keys = []
        while (job := await scheduler.next()) is not None:
            keys.append(job.key)
            played = next(one for one in whole[0] if (one.task_index, one.sample_index) == job.key)
            assert scheduler.finished(job, played) == [played]
        return keys

    keys = asyncio.run(run())
    assert len(keys) == 5
    assert {*keys, *earlier.trajectories} == {EpisodeKey(task, sample) for task in range(4) for sample in range(3)}
    assert source.heard == tuple((task.id, 3) for task in TASKS)


def test_a_scheduler_that_holds_a_group_back_gets_the_earlier_members_and_the_consumer_the_new_ones(whole):
    trajectories, _ = whole

    class WholeGroups(GroupScheduler):
        held = ()

        def finished(self, job, trajectory):
            self.held += (trajectory,)
            return self.held if len(self.held) == 3 else ()

    earlier = {EpisodeKey(0, number): [trajectories[number]] for number in (0, 2)}
    inside = WholeGroups(TASKS[:1], CONFIG)
    scheduler = Resumed(inside, earlier)

    async def run():
        job = await scheduler.next()
        assert job.key == EpisodeKey(0, 1)
        assert await scheduler.next() is None
        return scheduler.finished(job, trajectories[1])

    assert asyncio.run(run()) == [trajectories[1]]
    assert len(inside.held) == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasks": TASKS[1:]}, "the task"),
        ({"tasks": TASKS[:2]}, "a task_index below"),
        ({"config": replace(CONFIG, seed=6)}, "the sampling's seed 5, and the run to be resumed 6"),
        ({"config": replace(CONFIG, sampling=SamplingParams(max_new_tokens=51))}, "the sampling"),
        ({"config": replace(CONFIG, group_size=2)}, "a sample_index below"),
        ({"config": replace(CONFIG, training_step=1)}, "the training step"),
        ({"config": replace(CONFIG, validate=True)}, "validate"),
        ({"env": lambda: ToolEnv([], TASKS)}, "the env"),
        ({"tasks": [replace(task, ground_truth=1) for task in TASKS]}, "the ground truth"),
    ],
)
def test_a_run_with_other_arguments_is_refused_and_nothing_is_lost(scripted, whole, changed, said):
    _, path = whole
    cut(path, 9)
    before = path.read_bytes()
    given = {"env": env, "tasks": TASKS, "config": CONFIG} | changed
    with pytest.raises(ConfigError, match=f"of another run: .* has {said}"):
        asyncio.run(rollout(given["env"], by_seed(scripted(None)), given["tasks"], config=given["config"], out=path,
                            resume=True))  # fmt: skip
    assert path.read_bytes() == before


@tool
def look(x: int) -> str:
    """Look."""
    return str(x)


def worth(value):
    return lambda outcome: value


def shaped(tools=(), around=lambda inner: inner, **kwargs):
    """A function with the same name for each env that it makes."""

    def env():
        return around(ToolEnv(tools, TASKS, **kwargs))

    return env


def spoken(system):
    return [replace(task, messages=({"role": "system", "content": system}, *task.messages)) for task in TASKS]


def other_template(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.chat_template += "{#- changed #}"
    return other


def other_vocabulary(tokenizer):
    """Two words have each other's ids."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    words = parts["model"]["vocab"]
    words["t"], words["k"] = words["k"], words["t"]
    other = copy.deepcopy(tokenizer)
    other._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(parts))
    return other


def forget_settings(path):
    """Make of a file one of an older version, as far as a reader sees."""
    rows = [json.loads(line) | {"settings": {}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


OTHERWISE = {
    "the task's messages": {"tasks": spoken("Answer in French.")},
    "tools ": {"env": shaped(tools=[look])},
    "ToolEnv.max_turns '8', and the run to be resumed '1'": {"env": shaped(max_turns=1)},
    "ToolEnv.scorer": {"env": shaped(scorer=worth(1.0))},
    "ToolEnv.bad_calls": {"env": shaped(bad_calls=BadCallPolicy(penalty=0.5))},
    "the env's classes": {"env": shaped(around=lambda env: TimeLimit(env, 99.0))},
    "chat_template": {"tokenizer": other_template},
    "the first prompt, as tokens,": {"tokenizer": other_vocabulary},
    "template_kwargs": {"template_kwargs": {"enable_thinking": False}},
    "history 'append', and the run to be resumed 'template'": {"history": "template"},
    "on_truncated_turn": {"on_truncated_turn": "close"},
    "context": {"context": KeepToolResults(last=1)},
    "parser": {"parser": "qwen3_coder"},
    "limits.max_response_tokens 'null', and the run to be resumed '99'": {
        "limits": EpisodeLimits(max_response_tokens=99)
    },
}


def played_otherwise(scripted, path, env=None, tasks=TASKS, tokenizer=None, **changes):
    engine = by_seed(scripted(None))
    config = replace(CONFIG, **changes)
    given = tokenizer(engine.tokenizer) if tokenizer is not None else None
    env = env or shaped(scorer=worth(0.5))
    return asyncio.run(rollout(env, engine, tasks, tokenizer=given, config=config, out=path, resume=True))


@pytest.mark.parametrize("said", OTHERWISE)
def test_a_run_that_is_set_up_otherwise_is_refused_by_name(scripted, tmp_path, said):
    path = tmp_path / "t.jsonl"
    played_otherwise(scripted, path)
    cut(path, 4)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"of another run: .* has .*{said}"):
        played_otherwise(scripted, path, **OTHERWISE[said])
    assert path.read_bytes() == before


def test_what_says_only_how_a_run_is_played_may_change(scripted, tmp_path):
    path = tmp_path / "t.jsonl"
    whole = played_otherwise(scripted, path)
    cut(path, 4)
    limits = EpisodeLimits(engine_timeout=9.0, env_timeout=9.0, turn_timeout=9.0, episode_timeout=9.0, max_resumes=1)
    env = shaped(scorer=worth(0.5), tool_timeout=9.0, score_timeout=9.0)
    again = played_otherwise(
        scripted, path, env, limits=limits, max_concurrent=1, max_generations=2, max_tool_calls=3, refills=1
    )
    assert_same([replace(one, settings={}) for one in again], [replace(one, settings={}) for one in whole])
    assert {json.dumps(one.settings) for one in again[:3]} == {json.dumps(whole[0].settings)}


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ("the first prompt, as tokens,", "the first prompt, as tokens,"),
        (None, "ToolEnv.max_turns '8', and the run to be resumed '1'"),
    ],
)
def test_a_file_without_settings_is_compared_in_what_it_has(scripted, tmp_path, said, changed):
    path = tmp_path / "t.jsonl"
    played_otherwise(scripted, path)
    cut(path, 4)
    forget_settings(path)
    with pytest.raises(ConfigError, match=f"has {said}") if said else contextlib.nullcontext():
        played_otherwise(scripted, path, **OTHERWISE[changed])


def test_the_day_that_a_template_writes_is_that_of_the_run_that_began(scripted, tmp_path):
    def dated(tokenizer):
        other = copy.deepcopy(tokenizer)
        other.chat_template = "{{- strftime_now('%d %m %Y') }}" + other.chat_template
        return other

    path = tmp_path / "t.jsonl"
    played_otherwise(scripted, path, tokenizer=dated)
    cut(path, 2)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(played_otherwise(scripted, path, tokenizer=dated)) == 12
    path.write_text("".join(json.dumps(row | {"started_at": row["started_at"] - 4e7}) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="the first prompt, as tokens,"):  # it was written on another day
        played_otherwise(scripted, path, tokenizer=dated)


def test_a_file_of_two_runs_or_with_an_episode_twice_is_refused(scripted, whole, tmp_path):
    _, path = whole
    other = tmp_path / "other.jsonl"
    asyncio.run(rollout(env, by_seed(scripted(None)), TASKS, config=CONFIG, out=other))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[0])
    with pytest.raises(ConfigError, match="twice"):
        EarlierRun(path)
    path.write_bytes(lines[0] + other.read_bytes().splitlines(keepends=True)[11])
    with pytest.raises(ConfigError, match="trajectories of 2 runs"):
        EarlierRun(path)


def test_a_run_that_chooses_groups_chooses_the_same(scripted, tmp_path):
    """Groups that were dropped are not on disk: they are played again, and dropped again."""
    path, plan = (
        tmp_path / "t.jsonl",
        GroupPlan(groups=2, keep=lambda group: group[0].task_index % 2 == 1, in_order=True),
    )

    def run(resume):
        engine = by_seed(scripted(None))
        call = rollout(env, engine, TASKS, config=CONFIG, plan=plan, out=path, resume=resume)
        return asyncio.run(call), engine

    whole, _ = run(False)
    assert [one.task_index for one in whole] == [1, 1, 1, 3, 3, 3]
    for lines in (6, 4, 1):
        cut(path, lines)
        again, engine = run(True)
        assert_same(again, whole)
        assert len(list(read_trajectories(path))) == 6
        assert len(engine.asked) <= 12 - lines


def test_tasks_of_an_iterator_are_checked_as_they_come(scripted, whole):
    expected, path = whole
    cut(path, 5)
    again = asyncio.run(rollout(env, by_seed(scripted(None)), iter(TASKS), config=CONFIG, out=path, resume=True))
    assert_same(again, expected)
    with pytest.raises(ConfigError, match="has the task"):
        asyncio.run(rollout(env, scripted(None), reversed(TASKS), config=CONFIG, out=path, resume=True))


def test_a_validation_with_other_sampling_is_refused(scripted, tmp_path):
    path = tmp_path / "t.jsonl"

    def validated(temperature):
        sampling = replace(CONFIG.sampling, temperature=temperature)
        config = replace(CONFIG, validate=True, validation_sampling=sampling)
        return asyncio.run(rollout(env, by_seed(scripted(None)), TASKS, config=config, out=path, resume=True))

    assert len(validated(0.0)) == len(validated(0.0)) == 12
    with pytest.raises(ConfigError, match="the sampling's temperature 0.0, and the run to be resumed 0.5"):
        validated(0.5)


def test_a_run_that_branches_is_refused(scripted, tmp_path):
    config = replace(CONFIG, branching=Branching(at_turns(1)))
    with pytest.raises(ConfigError, match="episodes branch cannot be resumed"):
        asyncio.run(rollout(env, scripted(None), TASKS, config=config, out=tmp_path / "t.jsonl", resume=True))


def test_resume_needs_a_file_and_is_offered_where_there_is_one(scripted, whole):
    _, path = whole
    with pytest.raises(ConfigError, match="resume=True goes on with the run in the file out"):
        asyncio.run(rollout(env, scripted(None), TASKS, config=CONFIG, resume=True))
    with pytest.raises(ConfigError, match=r"go on with it \(resume=True\)"):
        asyncio.run(rollout(env, scripted(None), TASKS, config=CONFIG, out=path))
