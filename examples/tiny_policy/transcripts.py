"""Conversations that the tiny policy learns from: good ones, and ones with bad habits.

Everything is taken from the library, so that training shows what an episode will show: the tasks, the schema of the
tool, the text of a result, and what the parser tells a model whose call it cannot read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from toolgym.envs.tasks.arithmetic import ArithmeticProblem
from toolgym.tools.library.code_interpreter import CodeInterpreterTool, render_result
from toolgym.tools.message import Message, assistant, tool
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus

SCHEMA = CodeInterpreterTool.default_schema
assert SCHEMA is not None
NAME = SCHEMA.name

HABITS = {"good": 0.38, "guess": 0.24, "wrong code": 0.21, "bare answer": 0.12, "broken call": 0.05}
"""Share of each habit in the second phase of training, in problems without brackets; they sum to 1."""

BRACKETS = 4
"""In problems with brackets, wrong code is so many times likelier: the policy is to prefer losing the brackets."""


def conversation(problem: ArithmeticProblem, rng: random.Random, habit: str = "good") -> list[Message]:
    """A whole episode on a problem: the task's messages, the policy's turns as text, and the tool's answers.

    Args:
        problem: the problem.
        rng: where the mistakes come from.
        habit: one of `HABITS`. "good" calls the tool and reports what it printed; "guess" answers without it;
            "wrong code" runs another expression and believes the result; "bare answer" forgets the `####`;
            "broken call" writes JSON that does not parse, reads the complaint, and then tries again or guesses.
    """
    return [*problem.to_task().messages, *_HABITS[habit](problem, rng)]


def draw_habit(problem: ArithmeticProblem, rng: random.Random) -> str:
    """One habit, as often as `HABITS` and `BRACKETS` say."""
    weights = HABITS | {"wrong code": HABITS["wrong code"] * (BRACKETS if "(" in problem.expression else 1)}
    (habit,) = rng.choices(list(weights), weights=list(weights.values()))
    return habit


def _good(problem: ArithmeticProblem, rng: random.Random) -> list[Message]:
    return [*_computed(problem.expression), assistant(f"#### {problem.answer}")]


def _guess(problem: ArithmeticProblem, rng: random.Random) -> list[Message]:
    return [assistant(f"#### {_number_near(problem, rng)}")]


def _wrong_code(problem: ArithmeticProblem, rng: random.Random) -> list[Message]:
    expression = _misread(problem.expression, rng)
    # Wrong code is never an attack: digits, brackets and operators are all that _misread leaves or adds.
    return [*_computed(expression), assistant(f"#### {eval(expression)}")]


def _bare_answer(problem: ArithmeticProblem, rng: random.Random) -> list[Message]:
    return [*_computed(problem.expression), assistant(str(problem.answer))]


def _broken_call(problem: ArithmeticProblem, rng: random.Random) -> list[Message]:
    broken = _call_text(problem.expression)
    cut = rng.choice(['"}}\n', "}\n", '"', "\n</tool_call>"])
    at = broken.rindex(cut)
    broken = broken[:at] + broken[at + len(cut) :]
    turn = parse_hermes(broken)
    assert turn.errors, f"this call was meant to be broken: {broken!r}"
    complaint = turn.errors[0]
    again = _good if rng.random() < 0.5 else _guess
    return [
        assistant(broken),
        tool(complaint.message, tool_call_id=complaint.id, name=complaint.name),
        *again(problem, rng),
    ]


_HABITS: dict[str, Callable[[ArithmeticProblem, random.Random], list[Message]]] = {
    "good": _good,
    "guess": _guess,
    "wrong code": _wrong_code,
    "bare answer": _bare_answer,
    "broken call": _broken_call,
}


def _computed(expression: str) -> list[Message]:
    """A call of the tool with this expression, and its answer."""
    text = _call_text(expression)
    call = parse_hermes(text).calls[0]
    printed = ExecutionResult(ExecutionStatus.OK, stdout=f"{eval(expression)}\n", return_code=0)
    return [
        assistant(text),
        tool(render_result(printed, timeout=30.0), tool_call_id=call.id, name=NAME),
    ]


def _call_text(expression: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': NAME, 'arguments': {'code': f'print({expression})'}})}\n</tool_call>"


def _misread(expression: str, rng: random.Random) -> str:
    """The expression with one mistake: brackets lost where it has any, else another operator or a wrong digit."""
    if "(" in expression:
        return expression.replace("(", "").replace(")", "")
    kinds, replacements = rng.choice((("+-*", "+-*"), ("0123456789", "123456789")))
    at = rng.choice([i for i, character in enumerate(expression) if character in kinds])
    wrong = rng.choice([character for character in replacements if character != expression[at]])
    return expression[:at] + wrong + expression[at + 1 :]


def _number_near(problem: ArithmeticProblem, rng: random.Random) -> int:
    """A guess of the right size."""
    return rng.randint(problem.answer // 2, problem.answer * 2 + 1)
