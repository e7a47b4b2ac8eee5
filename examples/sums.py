"""An env of one's own: sums with a code interpreter. `docs/own_env.md` explains it."""

import random

import toolgym
from toolgym import CodeInterpreterTool, Score, Task, ToolEnv


def score(outcome):
    right = float(outcome.final_text.strip() == f"#### {outcome.task.ground_truth}")
    guessed = float(not outcome.tool_calls)
    return Score(right - 0.2 * guessed, {"right": right, "guessed": guessed})


class SumsEnv(ToolEnv):
    def __init__(self, num_tasks=1000, **env_kwargs):
        pairs = [random.Random(number).choices(range(100, 1000), k=2) for number in range(num_tasks)]
        tasks = [sum_task(a, b) for a, b in pairs]
        super().__init__([CodeInterpreterTool()], tasks, scorer=score, owns_tools=True, **env_kwargs)


def sum_task(a, b):
    system = {"role": "system", "content": "Compute with the tool. Then end with `#### <answer>`."}
    user = {"role": "user", "content": f"A bakery sold {a} coins and then {b} more. How many coins were sold?"}
    return Task((system, user), ground_truth=a + b)


toolgym.register("Sums-v0", SumsEnv, description="Sums of two numbers, with a code interpreter.")
