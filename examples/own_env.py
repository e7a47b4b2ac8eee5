"""An env: count letters with the help of a tool. The reward is for the right number and for a use of the tool.

Concepts (4): `ToolEnv`, `Task`, `tool`, `Score`.

A `Task` is one row to solve. `tool` makes a tool of a typed function. The scorer is a function from the outcome of an
episode (its task, messages, tool calls and final text) to a `Score`. `ToolEnv` plays them together behind `reset` and
`step`, like every env of toolgym.

Run it: python examples/own_env.py
"""

import asyncio

from toolgym import Score, Task, ToolEnv, tool


@tool
def spell(word: str) -> str:
    """Write a word letter by letter.

    Args:
        word: the word.
    """
    return " ".join(word)


def score(outcome):
    """1 for the right number; 0.1 less for a guess, that is, without a call of the tool."""
    right = float(outcome.final_text.strip() == str(outcome.task.ground_truth))
    guessed = float(not outcome.tool_calls)
    return Score(right - 0.1 * guessed, {"right": right, "guessed": guessed})


class LettersEnv(ToolEnv):
    """How often does a letter occur in a word?"""

    def __init__(self, words=("strawberry", "mississippi"), **env_kwargs):
        tasks = [
            Task(({"role": "user", "content": f"How many r are in {word}?"},), ground_truth=word.count("r"))
            for word in words
        ]
        super().__init__([spell], tasks, scorer=score, **env_kwargs)


async def main():
    async with LettersEnv(words=["strawberry"], max_turns=4) as env:
        obs, _ = await env.reset(seed=0)
        print(obs[-1]["content"])
        result = await env.step('<tool_call>{"name": "spell", "arguments": {"word": "strawberry"}}</tool_call>')
        print(result.obs[0]["content"])
        result = await env.step("3")
        print(result.reward, result.info["metrics"]["score/right"])
        await env.reset(seed=0)
        print((await env.step("3")).reward)


if __name__ == "__main__":
    asyncio.run(main())
