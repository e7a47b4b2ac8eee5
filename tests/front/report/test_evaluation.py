"""`evaluate`: the figures of a training run's validation, by estimators and scorers that others wrote."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from toolgym.envs import TaskList, ToolEnv
from toolgym.envs.library.nim import NimEnv
from toolgym.envs.tasks.task import Task
from toolgym.report.evaluation import as_validation, count_finished, eval_sets, evaluate
from toolgym.report.report import compare
from toolgym.rollout import RunConfig, SamplingParams, read_trajectories, rollout, summarize
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.trajectory.failures import RunFailedError
from toolgym.tools.errors import ConfigError

TOKENIZER = load_tokenizer(tiny_policy_path())
SHORT = SamplingParams(max_new_tokens=40)


def tasks(count=6, **columns):
    return [
        Task(({"role": "user", "content": f"question {n}?"},), ground_truth="yes", source="questions", id=str(n),
             row={"extra_info": {name: value(n) for name, value in columns.items()}})
        for n in range(count)
    ]  # fmt: skip


def env_of(listed, name="Questions"):
    def right(outcome):
        return float(outcome.final_text == outcome.task.ground_truth)

    return EnvFactory(name, lambda: ToolEnv([], listed, scorer=right))


class Policy(CallableEngine):
    """Says what a function of the prompt's text and the sampling parameters returns; keeps what it was asked."""

    def __init__(self, say):
        super().__init__(self.answer, tokenizer=TOKENIZER, context_length=4096)
        self.say, self.asked = say, []

    async def answer(self, request):
        text = TOKENIZER.decode(request.prompt_ids)
        self.asked.append((text, request.params))
        await asyncio.sleep(0)
        ids = TOKENIZER.encode(self.say(text, request.params), add_special_tokens=False)
        ids = [*ids, TOKENIZER.eos_token_id][: request.params.max_new_tokens]
        return ids, [-0.5] * len(ids), "stop" if ids[-1] == TOKENIZER.eos_token_id else "length"


def by_chance(text, params):
    """Right answers, more often to questions of high numbers."""
    return "yes" if params.seed % 7 <= int(re.search(r"question (\d+)", text)[1]) else "no"


def same_tokens(trajectories):
    return {(t.task_id, t.sample_index): (t.response_ids.tolist(), t.reward, t.validate, t.training_step)
            for t in trajectories}  # fmt: skip


async def test_the_episodes_and_figures_are_those_of_a_training_runs_validation(tmp_path):
    source = TaskList(tasks(30, level=lambda n: n % 2))
    training = RunConfig(
        group_size=3, seed=5, training_step=4, sampling=SHORT, validation_sampling=replace(SHORT, temperature=0.25)
    )
    validation = await rollout(env_of(source), Policy(by_chance), num_tasks=8, config=replace(training, validate=True))
    policy = Policy(by_chance)
    result = await evaluate(env_of(source), policy, num_tasks=8, config=training, out=tmp_path / "out")
    assert {params.temperature for _, params in policy.asked} == {0.25}
    played = list(read_trajectories(tmp_path / "out" / "Questions.jsonl"))
    assert same_tokens(played) == same_tokens(validation)
    figures, whole = summarize(validation), result.report.whole
    assert 0 < figures["success/mean"] < 1
    timeless = {name for name in figures if "seconds" not in name} & whole.figures.keys()
    assert {"reward/mean", "reward/std", "success/mean", "failed/rate", "turns/mean", "tokens/policy"} <= timeless
    assert {name: whole.figures[name] for name in timeless} == pytest.approx({n: figures[n] for n in timeless})
    assert whole.estimates["pass@1"].value == pytest.approx(figures["success/mean"])
    assert (whole.estimates["reward"].tasks, whole.figures["episodes"]) == (8, 24)
    assert {trajectory.level for trajectory in played} == {"0", "1"}


def published_pass_at_k(n, c, k):
    """The estimator of HumanEval, in the form of a product as it is published."""
    return 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))


def counted_pass_hat_k(outcomes, k):
    """The chance that k of the outcomes are all right, by going through all choices."""
    return fmean(all(chosen) for chosen in itertools.combinations(outcomes, k))


async def test_pass_at_k_is_humanevals_and_pass_hat_k_a_count_of_all_choices(tmp_path):
    config = RunConfig(group_size=6, sampling=SHORT)
    result = await evaluate(env_of(tasks(7)), Policy(by_chance), ks=[1, 2, 3, 5, 6], config=config, out=tmp_path)
    outcomes = {}
    for trajectory in read_trajectories(tmp_path / "Questions.jsonl"):
        outcomes.setdefault(trajectory.task_id, []).append(trajectory.reward == 1)
    right = {task: sum(each) for task, each in outcomes.items()}
    assert len(set(right.values())) > 3
    for k in (1, 2, 3, 5, 6):
        at = fmean(published_pass_at_k(6, count, k) for count in right.values())
        hat = fmean(counted_pass_hat_k(each, k) for each in outcomes.values())
        estimates = result.report.whole.estimates
        assert (estimates[f"pass@{k}"].value, estimates[f"pass^{k}"].value) == pytest.approx((at, hat))
        assert (estimates[f"pass@{k}"].tasks, estimates[f"pass@{k}"].samples) == (7, 7)


async def test_fewer_episodes_than_k_are_refused_before_any_is_played():
    policy = Policy(by_chance)
    with pytest.raises(ConfigError, match=r"pass@4 cannot .* n = 2 for k = 4: play 4 or more"):
        await evaluate(env_of(tasks()), policy, ks=[1, 4], config=RunConfig(group_size=2))
    assert policy.asked == []


async def test_what_broke_off_is_counted_apart_and_leaves_no_pass_rate_of_fewer_episodes():
    def say(text, params):
        number = int(re.search(r"question (\d+)", text)[1])
        if number == 0:
            raise OSError("the engine is gone")
        return "no " * 60 if number == 1 else "yes"

    result = await evaluate(env_of(tasks(4)), Policy(say), config=RunConfig(group_size=2, sampling=SHORT))
    figures, estimates = result.report.whole.figures, result.report.whole.estimates
    counts = [figures[f"episodes{end}"] for end in ("", "/counted", "/at_limit", "/broken_off")]
    assert counts == [8, 6, 2, 2]
    assert {stop.reason: stop.episodes for stop in result.report.whole.stops} == {
        "answered": 4, "length": 2, "engine_failed": 2,
    }  # fmt: skip
    assert estimates["success"].value == pytest.approx(2 / 3)
    assert (estimates["pass@2"].value, estimates["pass@2"].tasks) == (pytest.approx(2 / 3), 3)


async def test_envs_sources_and_levels_have_figures_of_their_own():
    config = RunConfig(group_size=4, sampling=SHORT)
    levelled = tasks(6, difficulty=lambda n: ["easy", 9, 10][n % 3])
    envs = [env_of(levelled, "A"), (env_of(tasks(1), "B/plain"), [replace(task, source="") for task in tasks(5)])]
    result = await evaluate(envs, Policy(by_chance), config=config)
    names = {by: [part.name for part in parts] for by, parts in result.parts.items()}
    assert names == {"env": ["A", "B/plain"], "source": ["B/plain", "questions"], "level": ["none", "9", "10", "easy"]}
    for number, env in enumerate(envs):
        alone = await evaluate([env], Policy(by_chance), config=config)
        assert result.parts["env"][number].estimates == alone.report.whole.estimates
    sizes = [part.figures["episodes"] for part in result.parts["level"]]
    assert (sizes, result.report.whole.figures["tasks"]) == ([20, 8, 8, 8], 11)
    assert result.to_json()["parts"].keys() == {"env", "source", "level"}


async def test_a_task_that_two_envs_share_is_one_task_with_the_episodes_of_each():
    config = RunConfig(group_size=2, sampling=SHORT)
    shared = tasks(4)
    result = await evaluate([env_of(shared, "A"), env_of(shared, "B")], Policy(by_chance), config=config)
    estimate = result.report.whole.estimates["pass@2"]
    assert (estimate.samples, estimate.tasks, estimate.left_out) == (8, 4, 0)


async def test_an_evaluation_that_was_cancelled_goes_on_and_plays_nothing_twice(tmp_path):
    config = RunConfig(group_size=3, sampling=SHORT, max_concurrent=2)
    envs = [env_of(tasks(4), "A"), env_of(tasks(3), "B")]
    whole = await evaluate(envs, Policy(by_chance), config=config, out=tmp_path / "whole")
    first, out = Policy(by_chance), tmp_path / "out"
    playing = asyncio.create_task(evaluate(envs, first, config=config, out=out))
    while len(first.asked) < 15:  # within the second env
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    with pytest.raises(ConfigError, match=r"results of an earlier run \(A.jsonl, B.jsonl\): go on with it"):
        await evaluate(envs, first, config=config, out=out)
    with pytest.raises(ConfigError, match=r"trajectories that are of none of these envs \(B.jsonl\)"):
        await evaluate(envs[:1], first, config=config, out=out, resume=True)
    colder = replace(config, sampling=replace(SHORT, temperature=0.5))
    with pytest.raises(ConfigError, match="the sampling's temperature 1.0, and the run to be resumed 0.5"):
        await evaluate(envs, first, config=colder, out=out, resume=True)
    second = Policy(by_chance)
    result = await evaluate(envs, second, config=config, out=out, resume=True)
    assert len(second.asked) < 21 - 12
    assert {path.name for path in out.iterdir()} == {"A.jsonl", "B.jsonl"}
    assert result.report.whole.estimates == whole.report.whole.estimates
    assert compare(whole.report, result.report)["reward"].value == 0.0


async def test_an_env_of_which_nothing_was_played_is_played_when_the_engine_answers_again(tmp_path):
    def say(text, params):
        if down:
            raise OSError("the engine is gone")
        return "yes"

    config, envs, down = RunConfig(group_size=2, sampling=SHORT), [env_of(tasks(2), "A"), env_of(tasks(2), "B")], False
    await evaluate(envs[:1], Policy(say), config=config, out=tmp_path)
    down = True
    with pytest.raises(RunFailedError, match="all 4 episodes failed .* the engine is gone"):
        await evaluate(envs, Policy(say), config=config, out=tmp_path, resume=True)
    down, policy = False, Policy(say)
    result = await evaluate(envs, policy, config=config, out=tmp_path, resume=True)
    assert (len(policy.asked), result.report.whole.figures["episodes/counted"]) == (4, 8)


async def test_an_episode_of_which_a_role_is_missing_counts_as_not_played(tmp_path):
    config, env = RunConfig(group_size=2, sampling=SHORT), EnvFactory("Nim", lambda: NimEnv(piles=[3, 5]))
    await evaluate(env, Policy(lambda *_: "1"), config=config, out=tmp_path)
    sets = await eval_sets(env, None, as_validation(config))
    assert count_finished(tmp_path, sets, resume=True) == 4
    path = tmp_path / "Nim.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    assert count_finished(tmp_path, sets, resume=True) == 2


@pytest.mark.parametrize(
    ("envs", "why"),
    [
        ([], "expected an env to evaluate on"),
        ([env_of(tasks()), env_of(tasks())], "two envs would write the file 'Questions.jsonl'"),
        ([(env_of(tasks()), iter(tasks()))], "a list or a source of tasks"),
    ],
)
async def test_what_cannot_be_evaluated_is_said(envs, why):
    with pytest.raises(ConfigError, match=why):
        await evaluate(envs, Policy(by_chance))


async def test_a_source_is_drawn_from_once_and_no_task_twice(tmp_path):
    policy = Policy(by_chance)
    result = await evaluate(env_of(tasks(5)), policy, num_tasks=50, config=RunConfig(sampling=SHORT))
    assert (result.report.whole.figures["tasks"], len(policy.asked)) == (5, 5)


async def test_the_mean_reward_is_what_reasoning_gyms_own_scorer_gives(tmp_path):
    reasoning_gym = pytest.importorskip("reasoning_gym")
    dataset = reasoning_gym.create_dataset("chain_sum", seed=3, size=40)
    answers = {entry["question"]: entry for entry in dataset}

    def say(text, params):
        [entry] = [entry for question, entry in answers.items() if question in text]
        answer = [entry["answer"], f"about {entry['answer']}", "0"][params.seed % 3]
        return f"I think <answer>{answer}</answer>"

    env = EnvFactory.of("ReasoningGym/chain_sum-v0", {"seed": 3, "size": 40})
    result = await evaluate(
        env, Policy(say), num_tasks=12, config=RunConfig(group_size=3, sampling=SHORT), out=tmp_path
    )
    scores = {}
    for trajectory in read_trajectories(tmp_path / "ReasoningGym_chain_sum-v0.jsonl"):
        answer = re.search("<answer>(.*)</answer>", trajectory.messages[-1]["content"])[1]
        entry = answers[trajectory.messages[-2]["content"]]
        scores.setdefault(entry["question"], []).append(dataset.score_answer(answer, entry))
    each = [score for of_task in scores.values() for score in of_task]
    assert (len(scores), len(each), len(set(each)) > 2) == (12, 36, True)
    estimates = result.report.whole.estimates
    assert estimates["reward"].value == pytest.approx(fmean(each))
    right = [sum(score == 1 for score in of_task) for of_task in scores.values()]
    assert estimates["pass@2"].value == pytest.approx(fmean(published_pass_at_k(3, count, 2) for count in right))
    assert math.isclose(estimates["pass^1"].value, fmean(score == 1 for score in each))


class Versioned(Policy):
    """A policy whose weights change after some answers."""

    def __init__(self, version="100", change_after=None):
        super().__init__(lambda text, params: "yes")
        self._weight_version, self._left = version, change_after

    async def answer(self, request):
        reply = await super().answer(request)
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._weight_version = "200"
        return reply


async def test_an_evaluation_says_which_weights_it_measured():
    async with Versioned() as engine:
        result = await evaluate(env_of(tasks(3)), engine)
    assert result.weight_versions == {"100": 3}
    assert not result.report.notes


async def test_an_evaluation_says_that_the_weights_changed(caplog):
    async with Versioned(change_after=2) as engine:
        result = await evaluate(env_of(tasks(4)), engine, config=RunConfig(max_concurrent=1))
    assert sorted(result.weight_versions) == ["100", "200"]
    assert "weights changed during the evaluation" in caplog.text
    assert any("2 versions of the weights" in note for note in result.report.notes)
    assert result.to_json()["weight_versions"] == result.weight_versions


async def test_an_evaluation_is_not_resumed_with_other_weights(tmp_path):
    async with Versioned("100") as engine:
        await evaluate(env_of(tasks(3)), engine, out=tmp_path / "out")
    [path] = (tmp_path / "out").glob("*.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    async with Versioned("200") as engine:
        with pytest.raises(ConfigError, match="2 episodes of version '100', and the engine now has version '200'"):
            await evaluate(env_of(tasks(3)), engine, out=tmp_path / "out", resume=True)
    async with Versioned("100") as engine:
        result = await evaluate(env_of(tasks(3)), engine, out=tmp_path / "out", resume=True)
    assert result.weight_versions == {"100": 3}


async def test_a_training_run_that_is_resumed_with_other_weights_is_told(tmp_path, caplog):
    listed = tasks(3)
    async with Versioned("100") as engine:
        await rollout(env_of(listed), engine, listed[:1], config=RunConfig(seed=0), out=tmp_path / "run.jsonl")
    async with Versioned("200") as engine:
        config = RunConfig(seed=0)
        await rollout(env_of(listed), engine, listed, config=config, out=tmp_path / "run.jsonl", resume=True)
    assert "1 episodes of version '100', and the engine now has version '200'" in caplog.text
