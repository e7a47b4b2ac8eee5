"""An env with a user who replies: guess a number, and read whether it is higher or lower.

Concepts (3): `ToolEnv`, `Task`, `End`.

A turn without tool calls goes to `respond`: the messages that it returns are what the policy reads next, and `End` ends
the episode. A user can as well be another model: `respond` may be async. `Task` and `ToolEnv` are as in own_env.py.

Run it: python examples/own_user.py
"""

import asyncio

from toolgym import End, Task, ToolEnv


class GuessEnv(ToolEnv):
    """Guess a number from 1 to 100."""

    def __init__(self, numbers=range(1, 101), **env_kwargs):
        prompt = {"role": "user", "content": "Guess my number from 1 to 100. Say nothing but the number."}
        super().__init__([], [Task((prompt,), ground_truth=number) for number in numbers], **env_kwargs)

    def respond(self, turn):
        said, number = turn.content.strip(), self.task.ground_truth
        if not said.isdecimal():
            return [{"role": "user", "content": "That is not a number."}]
        if int(said) != number:
            return [{"role": "user", "content": "Higher." if int(said) < number else "Lower."}]
        return End(reward=1.0 / self.turns)


async def main():
    async with GuessEnv(numbers=[42], max_turns=10) as env:
        await env.reset(seed=0)
        low, high = 1, 100
        while True:
            guess = (low + high) // 2
            result = await env.step(str(guess))
            if result.done:
                break
            print(guess, result.obs[0]["content"])
            low, high = (guess + 1, high) if result.obs[0]["content"] == "Higher." else (low, guess - 1)
        print(guess, result.reward, result.stop_reason)


if __name__ == "__main__":
    asyncio.run(main())
