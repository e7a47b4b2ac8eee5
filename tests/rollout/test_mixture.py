"""Runs over several envs: each group in one of them, the same again after a stop, figures of each."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest

from tests.actors import echo
from toolgym.envs import LearningSignal, Mixture, Task, TaskList, ToolEnv
from toolgym.rollout import (
    RolloutQueue,
    RunConfig,
    RunMetrics,
    Runner,
    RunOutput,
    SamplingParams,
    mixture,
    replay,
    rollout,
    run_episode,
    summarize,
)
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.recorder import recorded
from toolgym.rollout.runner import EnvFactory
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError, UnknownNameError


def some(name, count=6):
    return TaskList([Task(({"role": "user", "content": f"{name} {n}"},), id=f"{name}.{n}") for n in range(count)])


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def right(outcome):
    return float(outcome.final_text.startswith("yes"))


class Envs:
    """Makes envs of one kind, and counts those that are open."""

    def __init__(self, name, tools):
        self.__name__, self._tools, self.made, self.open = name, tools, 0, set()

    def __call__(self):
        envs = self

        class Env(ToolEnv):
            async def close(self):
                await super().close()
                envs.open.discard(id(self))

        env = Env(list(self._tools), some(self.__name__), scorer=right)
        self.made += 1
        self.open.add(id(env))
        return env


def both(**weights):
    """A mixture of two envs whose tools differ, and both of them."""
    envs = Envs("loud", [shout]), Envs("quiet", [echo])
    return mixture(envs, weights=weights or None), *envs


def config(**kwargs):
    return RunConfig(**{"seed": 4, "group_size": 2, "sampling": SamplingParams(max_new_tokens=40), **kwargs})


def by_seed(engine):
    engine.script = lambda prompt, request_id: "yes" if engine.seen[request_id][1].seed % 2 else "no"
    return engine


def facts(trajectories):
    return [(each.env_id, each.task_id, each.sample_index, each.reward) for each in trajectories]


async def test_groups_never_mix_envs_and_each_env_has_its_tools_and_is_closed(scripted):
    env, loud, quiet = both(loud=2, quiet=1)
    metrics = RunMetrics()
    played = await rollout(env, by_seed(scripted(None)), num_tasks=12, config=config(), observers=[metrics])
    assert Counter(each.env_id for each in played) == {"loud": 16, "quiet": 8}
    for _, group in groupby(played, lambda each: each.group_id):
        [(env_id, source)] = {(each.env_id, each.task_id.partition(".")[0]) for each in group}
        assert env_id == source
    for each in played:
        assert [schema["function"]["name"] for schema in each.tools] == [
            {"loud": "shout", "quiet": "echo"}[each.env_id]
        ]
    assert min(loud.made, quiet.made) >= 1
    assert (loud.open, quiet.open) == (set(), set())
    figures = summarize(played)
    assert figures["envs/loud/episodes"] == figures["sources/loud/episodes"] == 16
    live = metrics.metrics("")
    assert live["envs/quiet/reward"] == live["sources/quiet/reward"] == figures["envs/quiet/reward"]


async def test_a_run_that_was_killed_goes_on_with_the_same_tasks_in_the_same_envs(scripted, tmp_path):
    path = tmp_path / "run.jsonl"
    whole = await rollout(both(loud=2, quiet=1)[0], by_seed(scripted(None)), num_tasks=9, config=config(), out=path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
    engine = by_seed(scripted(None))
    again = await rollout(both(loud=2, quiet=1)[0], engine, num_tasks=9, config=config(), out=path, resume=True)
    assert facts(again) == facts(whole)
    assert len(engine.seen) == 18 - 7
    with pytest.raises(ConfigError, match="is of another run: .* the task"):
        await rollout(both(quiet=1, loud=9)[0], engine, num_tasks=9, config=config(), out=path, resume=True)
    named = mixture([Envs("loud", [echo]), Envs("quiet", [echo])], weights={"loud": 2, "quiet": 1})
    with pytest.raises(ConfigError, match="is of another run: .* tools"):
        await rollout(named, engine, num_tasks=9, config=config(), out=path, resume=True)


async def test_weights_that_change_between_steps_hold_for_the_later_ones(scripted):
    env, *_ = both()
    source, engine = await env.tasks(), by_seed(scripted(None))
    shares = []
    for step in range(3):
        played = await rollout(env, engine, source, num_tasks=4, config=config(training_step=step))
        shares.append(Counter(each.env_id for each in played))
        source.set_weights({"loud": 0, "quiet": 1})
    assert shares == [{"loud": 4, "quiet": 4}, {"quiet": 8}, {"quiet": 8}]
    assert source.metrics()["mixture/loud/groups"] == 2
    assert source.steps[0] != source.steps[1]


async def test_a_queue_draws_from_a_mixture_without_end_and_weights_follow_what_teaches(scripted):
    env, *_ = both(loud=1, quiet=1)
    source = await env.tasks()
    source.set_weights(LearningSignal(window=4, least=0.05))
    engine = scripted(
        lambda prompt, request_id: f"{'yes' if 'loud' in prompt or engine.seen[request_id][1].seed % 2 else 'no'}"
    )
    runner = Runner(env, engine, config=config(group_size=6))
    shares = []
    async with RolloutQueue(runner, source, batch_size=4, max_staleness=0) as queue:
        for step in range(12):
            shares.append(Counter(each.env_id for each in await anext(queue)))
            engine.version = f"version {step}"
            queue.publish(engine.version)
        figures = queue.metrics()
    assert shares[0] == {"loud": 12, "quiet": 12}
    assert sum(each["quiet"] for each in shares[-4:]) >= 72  # of 96: all of loud solve all
    assert figures["mixture/quiet/signal"] > figures["mixture/loud/signal"] == 0
    assert figures["mixture/quiet/groups"] + figures["mixture/loud/groups"] >= 48


async def test_one_episode_is_played_in_the_env_of_its_task(scripted):
    env, loud, quiet = both()
    for task in (await env.tasks()).take(4, seed=0):
        made = quiet.made
        trajectory = await run_episode(env, task, scripted(lambda *_: "yes"))
        assert (trajectory.env_id, trajectory.reward) == (task.extra_info["env_id"], 1.0)
        assert quiet.made - made == (trajectory.env_id == "quiet")
    assert (loud.open, quiet.open) == (set(), set())


async def test_tasks_of_ones_own_name_their_env(scripted):
    env, *_ = both()
    own = Mixture({"loud": some("one"), "quiet": some("two")}, of_envs=True).take(4, seed=0)
    played = await Runner(env, scripted(lambda *_: "yes"), config=config()).run(own)
    assert {(each.env_id, each.source) for each in played} == {("loud", "loud"), ("quiet", "quiet")}
    for row in ({"env_id": "quiet"}, {"extra_info": {"env_id": "quiet"}}):
        task = Task.from_row({"prompt": [{"role": "user", "content": "?"}], **row})
        assert env.member(task).env_id == "quiet"
    with pytest.raises(ConfigError, match=r"task 'x\.0' must name an env of the mixture in extra_info\.env_id, one of"):
        await Runner(env, scripted(lambda *_: "yes"), config=config()).run(list(some("x")))


async def test_ids_in_one_text_are_a_mixture_with_weights_and_arguments_by_id():
    env = EnvFactory.of("SingleTurn-v0=3, CodeInterpreter-v0", {"CodeInterpreter-v0": {"max_turns": 7}})
    assert (env.env_id, dict(env.weights)) == (
        "SingleTurn-v0,CodeInterpreter-v0",
        {"SingleTurn-v0": 3.0, "CodeInterpreter-v0": 1.0},
    )
    made = env.members["CodeInterpreter-v0"]()
    assert made.max_turns == 7
    await made.close()
    with pytest.raises(ConfigError, match="is a mixture, whose env depends on the task"):
        env()


@pytest.mark.parametrize(
    ("envs", "options", "error", "text"),
    [
        ("SingleTurn-v0", {}, ConfigError, "takes several envs in a list"),
        ([], {}, ConfigError, "takes several envs"),
        (["SingleTurn-v0", "SingleTurn-v0"], {}, ConfigError, "a name of its own"),
        (["SingleTurn-v1", "Math-v0"], {}, UnknownNameError, "did you mean 'SingleTurn-v0'"),
        ({"SingleTurn-v0": -1, "Math-v0": 2}, {}, ConfigError, "the weight of 'SingleTurn-v0' must be a number"),
        ({"SingleTurn-v0": 1}, {"weights": {"SingleTurn-v0": 1}}, ConfigError, "weights are given twice"),
        (["SingleTurn-v0", "Math-v0"], {"weights": {"Math-v0": 1}}, ConfigError, "the weight of 'SingleTurn-v0'"),
        (["SingleTurn-v0", "Math-v0"], {"env_kwargs": {"Maths-v0": {}}}, UnknownNameError, "did you mean 'Math-v0'"),
    ],
)
def test_a_mixture_that_cannot_be_is_an_error_at_once(envs, options, error, text):
    with pytest.raises(error, match=text):
        mixture(envs, **options)


@pytest.mark.parametrize("text", ["SingleTurn-v0=x,Math-v0", "SingleTurn-v0,,Math-v0", "Math-v0,Math-v0=2"])
def test_a_text_of_ids_that_cannot_be_read_is_an_error(text):
    with pytest.raises(ConfigError, match="expected envs"):
        EnvFactory.of(text)


def asks_a_tool(prompt, request_id):
    """A call of the tool that the prompt shows, and then an answer."""
    name = "shout" if '"shout"' in prompt else "echo"
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{"text": "{name}"}}}}\n</tool_call>'
    return "yes" if "<tool_response>" in prompt else call


async def test_a_recorded_mixture_is_replayed_in_the_envs_of_its_tasks(scripted, tokenizer, tmp_path):
    called = []

    @tool(name="shout")
    def counted(text: str) -> str:
        """Say it louder, and be counted."""
        called.append(text)
        return text.upper()

    env, path = mixture([Envs("loud", [counted]), Envs("quiet", [echo])]), tmp_path / "run.jsonl"
    output = RunOutput(trajectories=tmp_path / "0.jsonl", record=path)
    sampling = SamplingParams(max_new_tokens=96)
    played = await rollout(env, scripted(asks_a_tool), num_tasks=4, config=config(sampling=sampling), out=output)
    assert {(each.env_id, each.messages[-2]["content"]) for each in played} == {("loud", "SHOUT"), ("quiet", "echo")}
    assert len(called) == 4
    schemas = Cassette.load(path).tools
    assert {name: [each["function"]["name"] for each in tools] for name, tools in schemas.items()} == {
        "loud": ["shout"], "quiet": ["echo"],
    }  # fmt: skip
    result = await replay(path, tokenizer, env=env)
    assert (result.equal, result.compared, result.misses, len(called)) == (True, 8, [], 4)
    assert facts(result.trajectories) == facts(played)


async def test_a_recorded_mixture_of_ids_needs_no_env_to_replay_it(scripted, tokenizer, tmp_path):
    """Of three envs one has no task in the run."""
    call = '<tool_call>\n{"name": "calc_gsm8k_reward", "arguments": {"answer": "42"}}\n</tool_call>'
    engine = scripted(lambda prompt, _: call if "calc_gsm8k" in prompt and "_response>" not in prompt else "#### 42")
    path, ids = tmp_path / "run.jsonl", ["SingleTurn-v0", "Math-v0", "GSM8K-v0"]
    row = {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "42"}}
    tasks = [Task.from_row({**row, "extra_info": {"env_id": name}}) for name in (*ids[::2], ids[0])]
    options = config(sampling=SamplingParams(max_new_tokens=96))
    runner = Runner(",".join(ids), engine, env_kwargs={"GSM8K-v0": {"max_turns": 2}}, config=options)
    with recorded(runner, tasks, path) as recording:
        played = await recording.run(tasks)
    assert [(each.env_id, each.reward, len(each.tool_calls)) for each in played[::2]] == [
        ("SingleTurn-v0", 1.0, 0), ("GSM8K-v0", 1.0, 1), ("SingleTurn-v0", 1.0, 0),
    ]  # fmt: skip
    run = Cassette.load(path).run
    assert (run["members"], run["env_kwargs"]["GSM8K-v0"]) == (ids, {"max_turns": 2})
    result = await replay(path, tokenizer)
    assert (result.equal, result.compared, result.misses) == (True, 6, [])


async def test_a_replay_takes_no_other_env_for_that_of_a_recorded_mixture(scripted, tokenizer, tmp_path):
    path = tmp_path / "run.jsonl"
    runner = Runner(both()[0], scripted(lambda *_: "yes"), config=config())
    with recorded(runner, tasks := (await both()[0].tasks()).take(2, seed=0), path) as recording:
        await recording.run(tasks)
    with pytest.raises(ConfigError, match="made its envs with a mixture of loud, quiet: pass it as env="):
        await replay(path, tokenizer)
    for env in (Envs("loud", [shout]), mixture([Envs("loud", [shout])])):
        with pytest.raises(ConfigError, match="played in a mixture of loud, quiet, and env=... is"):
            await replay(path, tokenizer, env=env)
