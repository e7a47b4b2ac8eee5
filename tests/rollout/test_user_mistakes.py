"""What a user passes by mistake is an error that says what was expected, what came, and what to do."""

from __future__ import annotations

import asyncio
import logging

import gymnasium
import pytest

import toolgym
from tests.actors import echo
from toolgym.envs import BadCallPolicy, TaskList, TaskSource, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import (
    EpisodeLimits,
    RunConfig,
    RunMetrics,
    Runner,
    SamplingParams,
    Trajectory,
    make_batch,
    open_engine,
    rollout,
    summarize,
    tiny_policy_path,
)
from toolgym.rollout.batch import save_batch
from toolgym.rollout.engines import SGLangServer, TransformersEngine
from toolgym.rollout.episode.observer import checked_observers
from toolgym.rollout.runner.base import checked_sinks
from toolgym.tools import ToolResult, tool
from toolgym.tools.errors import ConfigError, EngineError, UnknownArgumentError
from toolgym.tools.sandbox import LocalSandbox, RemoteSandbox

TASK = Task(({"role": "user", "content": "q"},), id="q")
ROW = {"prompt": [{"role": "user", "content": "q"}]}


def env():
    return ToolEnv([echo], [TASK])


class Rows(TaskSource):
    def sample(self, rng):
        return ROW


# ---------------------------------------------------------------------- engines


@pytest.mark.parametrize("make", [lambda: TransformersEngine(tiny_policy_path()), lambda: SGLangServer("http://a:1")])
async def test_an_engine_that_was_not_started_is_told_at_once(make, tokenizer, caplog):
    with pytest.raises(EngineError, match=r"await engine\.start\(\)"):
        await rollout(env, make(), [TASK] * 3, tokenizer=tokenizer)
    assert caplog.records == []


async def test_a_closed_engine_is_told_at_once(tokenizer, caplog):
    async with open_engine("tiny") as engine:
        pass
    with pytest.raises(EngineError, match="closed"):
        await rollout(env, engine, [TASK] * 3)
    assert sum(one.levelno >= logging.WARNING for one in caplog.records) <= 1


@pytest.mark.parametrize("engine", ["http://a:30000", "models/qwen", tiny_policy_path()])
async def test_a_path_where_an_engine_belongs_is_told_how_to_open_it(engine):
    with pytest.raises(ConfigError) as error:
        await rollout(env, engine, [TASK])
    assert f"`await open_engine({str(engine)!r})` gives one" in str(error.value)


async def test_an_opening_that_was_not_awaited_is_no_engine():
    with pytest.raises(ConfigError, match="engine must be an Engine .*await open_engine"):
        await rollout(env, open_engine("tiny"), [TASK])


# ---------------------------------------------------------------------- tasks


@pytest.mark.parametrize("tasks", [[ROW], [TASK, ROW], "tasks.jsonl", TASK, {"q": TASK}, 3, iter([ROW])])
async def test_what_are_no_tasks(scripted, tasks):
    for given in ({}, {"num_tasks": 2}):
        with pytest.raises(ConfigError, match="task"):
            await rollout(env, scripted(lambda *_: "done"), tasks, **given)


async def test_a_source_that_gives_no_tasks(scripted):
    with pytest.raises(ConfigError, match="Task.from_row"):
        await rollout(env, scripted(lambda *_: "done"), Rows(), num_tasks=2)
    with pytest.raises(ConfigError, match="Task.from_row"):
        await ToolEnv([], Rows()).reset()


@pytest.mark.parametrize("tasks", [[ROW], "tasks.jsonl", iter([TASK]), {"q": TASK}, 3])
def test_an_env_whose_tasks_are_none(tasks):
    with pytest.raises(ConfigError, match="Task"):
        ToolEnv([], tasks)


async def test_a_list_that_holds_something_else_too():
    env = ToolEnv([], [TASK, *[ROW] * 999])
    with pytest.raises(ConfigError, match="Task.from_row"):
        await env.reset(seed=0)


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
@pytest.mark.parametrize("tasks", [None, [TASK], TaskList([TASK])])
async def test_a_number_of_tasks_that_is_none(scripted, tasks, count):
    with pytest.raises(ConfigError, match="num_tasks must be a whole number, at least 1"):
        await rollout(env, scripted(lambda *_: "done"), tasks, num_tasks=count)


# ---------------------------------------------------------------------- names of arguments


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rollout(env, None, num_task=3), "rollout takes no argument 'num_task', did you mean 'num_tasks'?"),
        (lambda: Runner(env, None, confg=None), "Runner takes no argument 'confg', did you mean 'config'?"),
        (lambda: RunConfig(group_sise=3), "RunConfig takes no argument 'group_sise', did you mean 'group_size'?"),
        (lambda: RunConfig(trainingstep=3), "did you mean 'training_step'?"),
        (lambda: EpisodeLimits(engine_time_out=3), "did you mean 'engine_timeout'?"),
        (lambda: SamplingParams(max_tokens=3), "did you mean 'max_new_tokens'?"),
        (lambda: ToolEnv([], [TASK], max_turn=3), "ToolEnv takes no argument 'max_turn', did you mean 'max_turns'?"),
        (lambda: make_batch([], pad_token=3), "did you mean 'pad_token_id'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", max_turn=3), "did you mean 'max_turns'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", tool_confg={}), "did you mean 'tool_config'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", zzzzz=3), "CodeInterpreterEnv takes no argument 'zzzzz'."),
    ],
)
def test_a_misspelt_argument_names_the_nearest(call, said):
    with pytest.raises(UnknownArgumentError) as error:
        call()
    assert said in str(error.value)


def test_an_env_of_ones_own_names_the_nearest_too():
    def make_env(difficulty=1):
        return env()

    toolgym.register("Misspelt-v0", make_env, replace=True)
    with pytest.raises(UnknownArgumentError, match="make_env takes no argument 'dificulty', did you mean 'difficulty'"):
        toolgym.make("Misspelt-v0", dificulty=2)
    assert isinstance(toolgym.make("Misspelt-v0", difficulty=2), ToolEnv)


# ---------------------------------------------------------------------- kinds of arguments


def plain(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ToolEnv([plain], [TASK]), "a tool must be a BaseTool .*@toolgym.tool"),
        (lambda: ToolEnv(echo, [TASK]), "tools must be a list of tools"),
        (lambda: ToolEnv([], [TASK], max_turns="4"), "max_turns must be a whole number, at least 1, got '4'"),
        (lambda: ToolEnv([], [TASK], max_parallel_calls=2.5), "max_parallel_calls must be a whole number"),
        (lambda: ToolEnv([], [TASK], parser=3), "parser must be a parser's name or a function, got 3"),
        (lambda: ToolEnv([], [TASK], scorer=lambda: 1.0), "a scorer takes an Outcome, or a text and a Task"),
        (lambda: ToolEnv([], [TASK], scorer=lambda a, b, c: 1.0), "a scorer takes an Outcome, or a text and a Task"),
        (lambda: ToolEnv([], [TASK], scorer=1.0), "which cannot be called"),
        (lambda: RunConfig(group_size="4"), "group_size must be a whole number, at least 1, got '4'"),
        (lambda: RunConfig(max_concurrent=None), r"max_concurrent must be Adaptive\(\) or a whole number, at least 1"),
        (lambda: checked_observers(RunMetrics()), "observers must be a list of observers, got"),
        (lambda: checked_observers([3]), "an observer must be an EpisodeObserver, got 3"),
        (lambda: checked_sinks(RunMetrics()), "sinks must be a list of sinks, got"),
        (lambda: checked_sinks([3]), r"a sink must have a method `write\(trajectory\)`, got 3"),
        (lambda: RunConfig(seed="x"), "seed must be a whole number or None, got 'x'"),
        (lambda: RunConfig(sampling={}), "sampling must be of type SamplingParams"),
        (lambda: EpisodeLimits(engine_timeout="5"), "engine_timeout must be a positive number of seconds, got '5'"),
        (lambda: EpisodeLimits(max_prompt_tokens=1.5), "max_prompt_tokens must be a whole number"),
        (lambda: SamplingParams(max_new_tokens="5"), "max_new_tokens must be a whole number"),
        (lambda: SamplingParams(max_new_tokens=5, temperature="1"), "temperature must be a number"),
        (lambda: SamplingParams(max_new_tokens=5, seed="1"), "seed must be a whole number or None"),
        (lambda: SamplingParams(max_new_tokens=5, stop_token_ids=7), "stop_token_ids must be a tuple of token ids"),
        (lambda: SamplingParams(max_new_tokens=5, stop_token_ids=("x",)), "stop_token_ids must be a tuple"),
    ],
)
def test_an_argument_of_the_wrong_kind(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Task("q"), "messages must be a tuple of"),
        (lambda: Task(("q",)), "messages must be a tuple of"),
        (lambda: Task(TASK.messages, tools_kwargs=[1]), "tools_kwargs must map"),
        (lambda: Task.from_row("q"), "a task row must be a mapping, got 'q'"),
        (lambda: Task.from_row(None), "a task row must be a mapping, got None"),
        (lambda: TaskList([TASK]).take("3"), "count must be a whole number"),
        (lambda: Rows().take(-1), "count must be a whole number, at least 0, got -1"),
        (lambda: toolgym.register("Kwargs-v0", env, kwargs=[1]), "kwargs must map names to arguments"),
        (lambda: toolgym.from_config(None), "expected a tool file or a mapping"),
        (lambda: toolgym.make("CodeInterpreter-v0", tool_config="x"), "config of a CodeInterpreterTool must map"),
        (lambda: toolgym.Wrapper(None), "a Wrapper goes around a toolgym BaseEnv, got None"),
        (lambda: ToolResult(None), "the text of a tool's result must be a str, got None"),
        (lambda: ToolResult("a", "b"), "the reward of a tool's result must be a number, got 'b'"),
        (lambda: ToolResult("a", 1.0, [1]), "the metrics of a tool's result must map"),
        (lambda: make_batch("abc", pad_token_id=0), "expected a list of toolgym Trajectories, got 'a' in it"),
        (lambda: make_batch([TASK], pad_token_id=0), "expected a list of toolgym Trajectories, got Task"),
        (lambda: BadCallPolicy(penalty="x"), "penalty must be a number of at least 0, got 'x'"),
        (lambda: BadCallPolicy(max_penalty="x"), "max_penalty must be"),
        (lambda: BadCallPolicy(stop_after="x"), "stop_after must be"),
        (lambda: BadCallPolicy(counts=3), "counts must name kinds"),
        (lambda: BadCallPolicy(penalti=1.0), "did you mean 'penalty'"),
        (lambda: gymnasium.make_vec("CodeInterpreter-v0", num_envs="2"), "num_envs must be a whole number"),
        (lambda: RemoteSandbox("http://a:1", tokn="x"), "did you mean 'token'"),
        (lambda: asyncio.run(rollout(env, None, [TASK], out=3)), "out must be the name of a file, got 3"),
        (lambda: summarize(3), "expected a list of toolgym Trajectories, got 3"),
        (lambda: save_batch(3, "x"), "expected a Batch.* got 3"),
        (lambda: Trajectory.from_json(3), "expected a trajectory as a JSON object, got 3"),
        (lambda: TransformersEngine(None), "a model is a folder, a name on the hub or a module, got None"),
        (lambda: TransformersEngine("x", max_batch="3"), "max_batch must be a whole number"),
        (lambda: TransformersEngine("x", devise="cpu"), "did you mean 'device'"),
        (lambda: open_engine("tiny", devise="cpu"), "did you mean 'device'"),
        (lambda: LocalSandbox(prelod=["numpy"]), "did you mean 'preload'"),
        (lambda: LocalSandbox(preload="numpy"), "preload must be a list of modules, got 'numpy'"),
    ],
)
def test_a_value_of_the_wrong_kind(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


@pytest.mark.parametrize("seed", [-5, "a", 1.5, True])
async def test_a_seed_that_gymnasium_refuses_too(seed):
    async with env() as made:
        with pytest.raises(ConfigError, match="seed must be a whole number, at least 0, got"):
            await made.reset(seed=seed)
        assert (await made.reset(seed=0))[0]


@pytest.mark.parametrize("options", ["task", [TASK], 3])
async def test_options_that_are_no_mapping(options):
    async with env() as made:
        with pytest.raises(ConfigError, match="options must be a mapping"):
            await made.reset(options=options)


@pytest.mark.parametrize("seed", ["ab", 1.5, {1, 2}])
def test_seeds_of_a_vector_env_that_are_none(seed):
    envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=2)
    with pytest.raises(ConfigError, match="seed must be"):
        envs.reset(seed=seed)
    envs.close()


@pytest.mark.parametrize(
    ("raised", "read"),
    [
        (KeyError("atlantis"), "KeyError: there is no key 'atlantis'"),
        (KeyError(3), "KeyError: there is no key 3"),
        (KeyError("no town of that name"), "KeyError: no town of that name"),
        (ValueError(), "ValueError"),
        (ValueError("no"), "ValueError: no"),
    ],
)
async def test_what_a_tool_raises_is_plain_words_to_the_model(raised, read):
    @tool
    def population(town: str) -> int:
        """Tell a town's population."""
        raise raised

    call = '<tool_call>\n{"name": "population", "arguments": {"town": "x"}}\n</tool_call>'
    async with ToolEnv([population], [TASK]) as made:
        await made.reset()
        assert (await made.step(call)).obs[0]["content"] == f"[The tool 'population' failed: {read}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tools: [\n  a: b: c\n", "tools.yaml, line 2, column 7: not valid YAML: "),
        ("tools:\n\t- x\n", "tools.yaml, line 2, column 1: not valid YAML: "),
        ("tools: {a: 1, a: 2}\n", "tools.yaml, line 1, column 8: not valid YAML: a: is given twice"),
        ("tools: \x00\n", "tools.yaml: not valid YAML: "),
    ],
)
def test_a_yaml_error_names_the_file_and_the_line(tmp_path, text, said):
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        toolgym.from_config(tmp_path / "tools.yaml")
    assert said in str(error.value)
    assert "unicode string" not in str(error.value)


@pytest.mark.parametrize(
    "action",
    [
        3, None, [], {"role": "user", "content": "x"}, {"role": "assistant"}, b"x",
        {"role": "assistant", "content": "x", "tool_calls": 3},
        {"role": "assistant", "content": "x", "tool_calls": ["echo"]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": "echo"}]},
    ],
)  # fmt: skip
async def test_an_action_of_the_wrong_kind(action):
    async with env() as made:
        await made.reset()
        with pytest.raises(ConfigError, match="an action is a|tool_calls of a|a tool call of a"):
            await made.step(action)
