"""Conversations that the tiny policy learns from: good ones, and ones with bad habits.

The tasks are taken from the library. The schema of the tool, the text of a result and the complaint about a broken call
are copies of what the library said when the shipped policy was trained, so that a later wording in the library does not
change the tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from toolgym.envs.tasks.arithmetic import ArithmeticProblem
from toolgym.tools.message import Message, assistant, tool
from toolgym.tools.schema import ToolSchema

NAME = "code_interpreter"
_CODE = {"type": "string", "description": "The program to run."}
SCHEMA = ToolSchema(
    NAME,
    "Run a Python program and return what it prints.",
    {"type": "object", "properties": {"code": _CODE}, "required": ["code"]},
)
OPEN, CLOSE = "<tool_call>", "</tool_call>"

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
    complaint = tool(_complaint(broken), tool_call_id="call_0", name="")
    again = _good if rng.random() < 0.5 else _guess
    return [assistant(broken), complaint, *again(problem, rng)]


def _complaint(broken: str) -> str:
    """Return what a policy reads about a call that cannot be read."""
    start = broken.index(OPEN) + len(OPEN)
    end = broken.find(CLOSE)
    if end == -1:
        return f"The tool call was not run: its closing {CLOSE} is missing. Send the whole call again."
    try:
        json.JSONDecoder(strict=False).raw_decode(broken, broken.index("{"))
    except json.JSONDecodeError as error:
        near = broken[max(start, error.pos - 20) : min(end, error.pos + 20)]
        return (
            f"The tool call is not valid JSON: {error.msg} near {near!r}. "
            f'Write it as {OPEN}{{"name": "<tool>", "arguments": {{...}}}}{CLOSE}.'
        )
    raise AssertionError(f"this call was meant to be broken: {broken!r}")


_HABITS: dict[str, Callable[[ArithmeticProblem, random.Random], list[Message]]] = {
    "good": _good,
    "guess": _guess,
    "wrong code": _wrong_code,
    "bare answer": _bare_answer,
    "broken call": _broken_call,
}


def _computed(expression: str) -> list[Message]:
    """A call of the tool with this expression, and its answer."""
    return [assistant(_call_text(expression)), tool(str(eval(expression)), tool_call_id="call_0", name=NAME)]


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
