"""An env of one's own: sums with a calculator. `docs/own_env.md` explains it."""

import ast
import operator
import random

import toolgym
from toolgym import Score, Task, ToolEnv

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(node):
    return (
        node.value if isinstance(node, ast.Constant) else OPERATORS[type(node.op)](value(node.left), value(node.right))
    )


@toolgym.tool(name="code_interpreter")  # the name that the tiny policy has learnt
def calculate(code: str) -> str:
    """Work out sums, differences and products.

    Args:
        code: for example print(12 * 34 + 5)
    """
    try:
        return str(value(ast.parse(code.removeprefix("print"), mode="eval").body))
    except (SyntaxError, AttributeError, KeyError, TypeError):
        return "Write one sum of whole numbers, such as print(12 * 34 + 5)."


def score(outcome):
    right = float(outcome.final_text.strip() == f"#### {outcome.task.ground_truth}")
    guessed = float(not outcome.tool_calls)
    return Score(right - 0.2 * guessed, {"right": right, "guessed": guessed})


class SumsEnv(ToolEnv):
    def __init__(self, num_tasks=1000, **env_kwargs):
        pairs = [random.Random(number).choices(range(100, 1000), k=2) for number in range(num_tasks)]
        super().__init__([calculate], [sum_task(a, b) for a, b in pairs], scorer=score, **env_kwargs)


def sum_task(a, b):
    system = {"role": "system", "content": "Compute with the tool. Then end with `#### <answer>`."}
    user = {"role": "user", "content": f"A bakery sold {a} coins and then {b} more. How many coins were sold?"}
    return Task((system, user), ground_truth=a + b)


toolgym.register("Sums-v0", SumsEnv, description="Sums of two numbers, with a calculator.")
