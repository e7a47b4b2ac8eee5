"""A tool with state: a notebook for the model's notes, one for each episode.

Concepts (3): `StatefulTool`, `ToolSession`, `ToolSchema`.

A `StatefulTool` opens a `ToolSession` for each episode and closes it at the end, also after an error. The session is an
ordinary object: its attributes live from call to call. The `ToolSchema` is what the model reads.

Run it: python examples/own_tool.py
"""

import asyncio

from toolgym import StatefulTool, ToolSchema, ToolSession


class Notes(ToolSession):
    """The notes of one episode."""

    def __init__(self, notes):
        self.notes = list(notes)

    async def execute(self, parameters, **execute_kwargs):
        """Keep a note. What is returned is what the model reads."""
        if not parameters["note"].strip():
            return "The note is empty. Say what to keep."  # a model's mistake is text, not an exception
        self.notes.append(parameters["note"])
        return "\n".join(f"{number}. {note}" for number, note in enumerate(self.notes, start=1))

    async def reward(self, **calc_reward_kwargs):
        """Pay a little for each note, when the episode ends."""
        return 0.01 * len(self.notes)

    async def fork(self):
        """Copy the notes, for an episode that goes on from here in another way."""
        return Notes(self.notes)


class NotesTool(StatefulTool):
    """Opens a notebook for each episode."""

    default_schema = ToolSchema(
        name="keep",
        description="Keep a note, and read all notes so far.",
        parameters={"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
    )

    async def open(self, notes=()):
        """Begin an episode; a task may bring notes of its own."""
        return Notes(notes)


async def main():
    tool = NotesTool()
    first, second = await tool.create(), await tool.create(notes=["The answer is a number."])
    await tool.execute(first, {"note": "12 * 34 = 408"})
    print((await tool.execute(second, {"note": "It is even."})).text)
    other = await tool.fork(second)
    await tool.execute(other, {"note": "It is 408."})
    print([await tool.calc_reward(one) for one in (first, second, other)])
    for one in (first, second, other):
        await tool.release(one)


if __name__ == "__main__":
    asyncio.run(main())
