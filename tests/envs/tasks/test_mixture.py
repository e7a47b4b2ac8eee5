"""Tasks of several sources in one run: shares, changes of the weights, what is drawn again, and wrong weights."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest

from toolgym.envs import ArithmeticTasks, ByLevel, LearningSignal, Mixture, Task, TaskEpochs, TaskList
from toolgym.tools.errors import ConfigError, UnknownNameError


def some(name, count=5, **fields):
    return TaskList(
        [Task(({"role": "user", "content": f"{name} {n}"},), id=f"{name}.{n}", **fields) for n in range(count)]
    )


def made(**options):
    return Mixture({"a": some("a"), "b": some("b", 7), "c": ArithmeticTasks()}, **options)


def drawn(source, steps, count=4, seed=1):
    return [source.take(count, seed=seed, training_step=step) for step in steps]


def members(tasks):
    return Counter(task.extra_info["mixture"] for task in tasks)


def flat(steps):
    return [task for step in steps for task in step]


def test_shares_are_those_of_the_weights_in_each_step_and_in_the_mean():
    weights = {"a": 5, "b": 3, "c": 0.5}
    steps = drawn(made(weights=weights), range(400))
    for step in steps:
        for name, weight in weights.items():
            assert abs(members(step)[name] - 4 * weight / 8.5) < 1
    total = members(flat(steps))
    for name, weight in weights.items():
        assert total[name] / 1600 == pytest.approx(weight / 8.5, abs=0.015)
    for count in members(flat(drawn(made(), range(300)))).values():  # without weights, all alike
        assert count == pytest.approx(400, abs=40)


def test_each_epoch_of_a_source_has_each_of_its_tasks_once():
    seen = [task.id for task in flat(drawn(made(weights={"a": 2, "b": 1, "c": 1}), range(60))) if task.source == "a"]
    for epoch in range(len(seen) // 5):
        assert sorted(seen[5 * epoch : 5 * epoch + 5]) == [f"a.{n}" for n in range(5)]


def test_the_same_seed_draws_the_same_also_in_a_new_process_at_a_later_step():
    through = drawn(made(), range(20))
    assert drawn(made(), range(20)) == through
    assert drawn(made(), range(13, 20)) == through[13:]
    assert drawn(made(), range(20), seed=2) != through
    assert list(islice(made().stream(4, seed=1, first_step=13), 28)) == flat(through[13:])
    assert len({task.id for task in drawn(made(), [0], seed=None)[0]}) == 4


def test_a_task_says_where_it_is_from():
    named = Mixture({"a": some("a", source="s"), "b": some("b")}, of_envs=True).take(20, seed=0)
    assert {(task.source, task.extra_info["mixture"], task.extra_info["env_id"]) for task in named} == {
        ("s", "a", "a"),
        ("b", "b", "b"),
    }
    assert all(Task.from_row(task.to_row()) == task for task in named)
    assert [made().task(place).extra_info["mixture"] for place in (0, 4, 5, 11, 12, 99)] == [
        "a",
        "a",
        "b",
        "b",
        "c",
        "c",
    ]
    assert (made().size, Mixture({"a": some("a"), "b": some("b")}).size) == (None, 10)


def test_other_weights_hold_for_what_is_drawn_later_and_are_recorded():
    source = made(weights={"a": 1, "b": 0, "c": 0})
    before = drawn(source, [0, 1])
    source.set_weights({"a": 0, "b": 3, "c": 0})
    assert drawn(source, [1]) == before[1:]  # drawn before: a step that is played again is the same
    assert members(flat(drawn(source, [2, 3]))) == {"b": 8}
    assert source.steps == {
        **{step: {"a": 1.0, "b": 0.0, "c": 0.0} for step in (0, 1)},
        **{step: {"a": 0.0, "b": 3.0, "c": 0.0} for step in (2, 3)},
    }
    figures = source.metrics()
    assert (figures["mixture/b/weight"], figures["mixture/a/tasks"], figures["mixture/b/tasks"]) == (1.0, 8.0, 8.0)


def test_weights_may_be_a_function_of_the_training_step():
    def schedule(step):
        return {"a": max(0, 10 - step), "b": step, "c": 0}

    source = made(weights=schedule)
    assert [members(step)["b"] for step in drawn(source, [0, 5, 10])] == [0, 2, 4]
    assert drawn(made(weights=schedule), [7]) == drawn(source, [7])


def test_by_learning_signal_what_teaches_nothing_is_drawn_less_and_tried_again():
    source = made(weights=LearningSignal(window=8, least=0.1))
    assert source.weights() == {"a": 1.0, "b": 1.0, "c": 1.0}  # nothing was played yet
    for step in range(40):
        for task in source.take(4, seed=0, training_step=step):
            solved = {"a": [1, 1], "b": [0, 1], "c": [0, 0]}[task.extra_info["mixture"]]
            source.observe(task, solved)
    assert source.weights() == pytest.approx({"a": 1 / 9, "b": 1.0, "c": 1 / 9})
    late = members(flat(drawn(source, range(40, 80), seed=0)))
    assert late["b"] / 160 == pytest.approx(9 / 11, abs=0.02)
    assert late["a"] >= 10
    figures = source.metrics()
    assert (figures["mixture/b/signal"], figures["mixture/b/reward"], figures["mixture/a/signal"]) == (1.0, 0.5, 0.0)
    source.observe(ArithmeticTasks().take(1)[0], [1.0, 0.0])  # not drawn here
    assert source.metrics() == figures


def test_a_signal_may_be_ones_own_with_weights_besides():
    signal = LearningSignal(
        window=2, weights={"a": 2, "b": 1, "c": 1}, signal=lambda rewards: 1 - abs(2 * sum(rewards) / len(rewards) - 1)
    )
    source = made(weights=signal)
    for rewards in ([1, 0], [1, 1]):
        source.observe(source.task(0), rewards)
    assert source.weights() == pytest.approx({"a": 2 * (1 + 1) / 3, "b": 1.0, "c": 1.0})


def test_a_state_goes_on_with_the_same_tasks_whatever_was_observed():
    def play(source, steps):
        tasks = []
        for step in steps:
            tasks.append(source.take(4, seed=3, training_step=step))
            for task in tasks[-1]:
                source.observe(task, [len(task.id) % 2, step % 3 == 0])
        return tasks

    def fresh():
        levels = ByLevel({"easy": ArithmeticTasks(), "hard": ArithmeticTasks("test")}, window=3, raise_at=0.4)
        inner = Mixture({"x": some("x"), "y": some("y", 3)}, weights=LearningSignal())
        return Mixture({"levels": levels, "inner": inner, "epochs": TaskEpochs(some("e"))}, weights=LearningSignal())

    whole, stopped, again = fresh(), fresh(), fresh()
    expected = play(whole, range(12))
    assert play(stopped, range(7)) == expected[:7]
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert play(again, range(7, 12)) == expected[7:]
    assert again.metrics() == whole.metrics()
    assert len(whole.metrics()) == 15
    [path] = {tuple(t.extra_info["mixture"]) for t in flat(expected) if t.id == "x.0"}
    assert path == ("inner", "x")  # and each mixture heard of its own
    assert whole.state_dict()["sources"]["inner"]["groups"]["x"] > 0


def test_weights_that_were_set_are_in_the_state():
    source = made()
    source.set_weights({"a": 0, "b": 1, "c": 0})
    again = made()
    again.load_state_dict(source.state_dict())
    assert again.weights() == {"a": 0.0, "b": 1.0, "c": 0.0}
    with pytest.raises(ConfigError, match="of a mixture of a, b, c, and this one is of a"):
        Mixture({"a": some("a")}).load_state_dict(source.state_dict())
    with pytest.raises(ConfigError, match="expected a state with weights, steps"):
        source.load_state_dict({})
    with pytest.raises(ConfigError, match="TaskList has no state"):
        some("a").load_state_dict({"position": 1})


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"a": 1, "b": 1}, "the weight of 'c' must be a number of at least 0, got None"),
        ({"a": 1, "b": -1, "c": 1}, "the weight of 'b' must be a number of at least 0, got -1"),
        ({"a": 1, "b": float("nan"), "c": 1}, "the weight of 'b'"),
        ({"a": 1, "b": True, "c": 1}, "the weight of 'b'"),
        ({"a": 0, "b": 0, "c": 0}, "all weights are 0"),
        ([1, 2, 3], "weights must map each source to a number"),
        (LearningSignal(weights={"a": 1}), "the weight of 'b'"),
    ],
)
def test_a_wrong_weight_is_an_error_at_once(weights, text):
    with pytest.raises(ConfigError, match=text):
        made(weights=weights)
    source = made()
    with pytest.raises(ConfigError, match=text):
        source.set_weights(weights)
    if not isinstance(weights, LearningSignal):
        with pytest.raises(ConfigError, match=text):
            made(weights=lambda step: weights).take(1)


def test_wrong_names_and_arguments_are_errors():
    with pytest.raises(UnknownNameError, match="a weight for 'aa', did you mean 'a'"):
        made(weights={"aa": 1, "a": 1, "b": 1, "c": 1})
    for sources, text in (({}, "sources must map each name to a TaskSource"), ({1: some("a")}, "texts to TaskSources")):
        with pytest.raises(ConfigError, match=text):
            Mixture(sources)
    with pytest.raises(ConfigError, match="least must be a share above 0"):
        LearningSignal(least=0)
    with pytest.raises(ConfigError, match="window must be"):
        LearningSignal(window=0)
    with pytest.raises(ConfigError, match="signal must be a function"):
        LearningSignal(signal=3)
