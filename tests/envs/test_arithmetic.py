from __future__ import annotations

import ast
import random
import subprocess
import sys

import pytest

from toolgym.envs.tasks.arithmetic import SYSTEM_PROMPT, ArithmeticProblem, ArithmeticTasks
from toolgym.tools.errors import ConfigError, UnknownNameError

SPLITS = ("train", "test")


def problems(split: str, count: int = 1500, seed: int = 0) -> list[ArithmeticProblem]:
    tasks, rng = ArithmeticTasks(split), random.Random(seed)
    return [tasks.problem(rng) for _ in range(count)]


@pytest.mark.parametrize("split", SPLITS)
def test_the_answer_is_the_value_of_the_expression(split):
    for problem in problems(split):
        assert eval(problem.expression) == problem.answer
        assert problem.answer >= 0


def test_every_number_of_the_expression_stands_in_the_question_and_has_two_or_three_digits():
    for problem in problems("train"):
        numbers = [node.value for node in ast.walk(ast.parse(problem.expression)) if isinstance(node, ast.Constant)]
        assert 2 <= len(numbers) <= 3
        for number in numbers:
            assert 10 <= number <= 999
            assert str(number) in problem.question


def test_questions_have_no_unfilled_place():
    assert not any("{" in problem.question or "}" in problem.question for problem in problems("train"))


def test_all_eight_forms_and_many_questions_occur():
    drawn = problems("train")
    assert {problem.form for problem in drawn} == {
        "a+b", "a-b", "a*b", "a+b-c", "a*b+c", "a*b-c", "(a+b)*c", "(a-b)*c"
    }  # fmt: skip
    wordings = {"".join("#" if c.isdigit() else c for c in problem.question) for problem in drawn}
    assert len(wordings) > 200


def test_a_task_holds_a_short_system_message_the_question_and_the_answer():
    problem = ArithmeticTasks().problem(random.Random(3))
    task = ArithmeticTasks().sample(random.Random(3))
    assert [message["role"] for message in task.messages] == ["system", "user"]
    assert task.messages[0]["content"] == SYSTEM_PROMPT
    assert "#### <answer>" in SYSTEM_PROMPT
    assert task.messages[1]["content"] == problem.question
    assert task.ground_truth == str(problem.answer)
    assert task.source == "arithmetic"
    assert task.id == problem.id


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_tasks(split):
    assert ArithmeticTasks(split).take(50, seed=5) == ArithmeticTasks(split).take(50, seed=5)
    assert ArithmeticTasks(split).take(50, seed=5) != ArithmeticTasks(split).take(50, seed=6)


def test_another_process_draws_the_same_tasks():
    code = (
        "from toolgym.envs.tasks.arithmetic import ArithmeticTasks\n"
        "print(*[t.id for t in ArithmeticTasks('test').take(20, seed=1)], sep=',', end='')"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert other.stdout.split(",") == [task.id for task in ArithmeticTasks("test").take(20, seed=1)]


def test_ids_tell_problems_apart():
    drawn = problems("train", 3000)
    assert len({problem.id for problem in drawn}) == len({(p.question, p.expression) for p in drawn})


def test_no_expression_is_in_both_splits():
    train, test = ({problem.expression for problem in problems(split, 1000)} for split in SPLITS)
    assert not train & test


def test_about_a_tenth_is_held_out_for_every_form():
    rng = random.Random(0)
    forms = {problem.form: problem for problem in problems("train")}
    for form in forms:
        held_out = 0
        for _ in range(2000):
            numbers = {letter: str(rng.randint(10, 999)) for letter in "abc"}
            expression = "".join(numbers.get(character, character) for character in form)
            held_out += ArithmeticProblem("?", expression, 0, form).split == "test"
        assert 0.07 < held_out / 2000 < 0.13


def test_the_global_random_state_is_left_alone():
    random.seed(11)
    before = random.getstate()
    ArithmeticTasks("test").take(20, seed=2)
    assert random.getstate() == before


def test_an_unknown_split_is_refused_with_the_nearest_one_named():
    with pytest.raises(UnknownNameError, match="did you mean 'train'"):
        ArithmeticTasks("trian")
    with pytest.raises(ConfigError, match="'train' or 'test'"):
        ArithmeticTasks(7)
