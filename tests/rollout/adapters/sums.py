"""`tests/Sums-v0`: CodeInterpreter-v0 without its sandbox, which sees no packages of a layered environment."""

from __future__ import annotations

from toolgym import register
from toolgym.envs import CodeInterpreterEnv
from toolgym.tools import tool


@tool
def code_interpreter(code: str) -> str:
    """Run code.

    Args:
        code: the code.
    """
    return str(eval(code.removeprefix("print")))


class Sums(CodeInterpreterEnv):
    """Each turn before the last one earns a quarter."""

    def __init__(self, **kwargs):
        super().__init__(tools=[code_interpreter], own_tools=False, **kwargs)

    async def step(self, action):
        result = await super().step(action)
        return result if result.done else result._replace(reward=0.25)


register("tests/Sums-v0", Sums)
