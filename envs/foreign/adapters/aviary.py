"""aviary's envs (`fhaviary`), which have tools of their own.

The contract: `await reset() -> (messages, tools)`, `await step(message) -> (messages, reward, done, truncated)`. The
message is a `ToolRequestMessage` or, without calls, a `Message`; the answers are `ToolResponseMessage`s
(`aviary/env.py`, `aviary/tools/base.py`). It has no seeds: where `reset` takes one, it is given, otherwise not.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Start, Stepped
from toolgym.envs.foreign.values import message_of, opened
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolSchema


class AviaryAdapter(Adapter):
    project = "aviary"
    uses = frozenset({"to_text"})

    async def reset(self, start: Start) -> Begun:
        arguments = dict(start.options)
        if "seed" in inspect.signature(self.env.reset).parameters:
            arguments["seed"] = start.seed
        messages, tools = await self.env.reset(**arguments)
        schemas = [ToolSchema.from_openai(tool.info.model_dump(exclude_none=True), external=True) for tool in tools]
        return Begun(opened(start.messages, self._read(messages)), schemas)

    async def step(self, turn: ParsedTurn) -> Stepped:
        messages, reward, done, truncated = await self.env.step(_message(turn))
        # What was cut is also done: https://github.com/Future-House/aviary has it as early stopping.
        return Stepped(self._read(messages), reward, bool(done) and not truncated, truncated)

    async def close(self) -> None:
        await self.env.close()

    def _read(self, messages: Sequence[Any]) -> list[Message]:
        if self.options.to_text is not None:
            return self.read(messages)
        return [self._one(message) for message in messages]

    def _one(self, message: Any) -> Message:
        fields = {"role": message.role, "content": message.deserialized_content}
        for name in ("tool_call_id", "name"):
            fields[name] = getattr(message, name, None)
        return message_of(fields, self.name)


def _message(turn: ParsedTurn) -> Any:
    from aviary.core import Message as AviaryMessage
    from aviary.core import ToolCall, ToolRequestMessage

    if not turn.calls:
        return AviaryMessage(role="assistant", content=turn.content)
    calls = [ToolCall(id=call.id, function={"name": call.name, "arguments": call.arguments}) for call in turn.calls]
    return ToolRequestMessage(content=turn.content.strip() or None, tool_calls=calls)
