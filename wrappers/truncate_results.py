"""`TruncateResults`: no tool result is longer than the policy can afford."""

from __future__ import annotations

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.result_text import Side, check_cut, cut
from toolgym.tools.message import Message
from toolgym.wrappers.base import Wrapper


class TruncateResults(Wrapper):
    """Cuts the text of tool messages to a number of characters, and says in the text that it was cut.

    Changes the observations of `step` and nothing else.

    Args:
        env: the env inside.
        max_chars: characters that may remain of one result, the note not counted.
        side: where to cut. As in verl, `left` keeps the beginning, `right` the end, `middle` both.

    Raises:
        ConfigError: `max_chars` is no whole number of at least 1, or there is no such side.

    Example:
        >>> import asyncio, toolgym
        >>> call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(10**9)"}}</tool_call>'
        >>> async def main():
        ...     async with TruncateResults(toolgym.make("CodeInterpreter-v0"), 4, side="left") as env:
        ...         await env.reset(seed=0)
        ...         return (await env.step(call)).obs[0]["content"]
        >>> asyncio.run(main())
        '1000 [... 6 characters left out ...]'
    """

    def __init__(self, env: BaseEnv, max_chars: int, *, side: Side = "middle") -> None:
        super().__init__(env)
        check_cut("max_chars", max_chars, side)
        self.max_chars = max_chars
        self.side = side

    async def step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        return result._replace(obs=[self._cut(message) for message in result.obs])

    def _cut(self, message: Message) -> Message:
        if message["role"] != "tool":
            return message
        return {**message, "content": cut(message["content"], self.max_chars, self.side)}
