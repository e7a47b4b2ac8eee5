"""skyrl-gym's envs, which read texts and write messages.

The contract: `init(prompt) -> (messages, info)`, `step(action) -> {"observations", "reward", "done", "metadata"}`,
`get_metrics()`, `close()` (`skyrl_gym/envs/base_text_env.py`). An object plays one episode: nothing sets its turns
back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Start, Stepped, WrapOptions
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import tool as make_tool
from toolgym.tools.message import joined, tool
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolSchema


class SkyRLGymAdapter(Adapter):
    """skyrl-gym's envs. With `write_call`, the tools of its tool groups are the policy's to call."""

    project = "skyrl-gym"
    uses = frozenset({"to_text", "to_action", "drop_thinking", "write_call"})
    one_episode = True
    max_calls = 1

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        self._schemas = _schemas(env) if options.write_call is not None else []
        if options.write_call is not None and not self._schemas:
            raise ConfigError(f"write_call was given, but {self.name} has no tool groups")

    async def reset(self, start: Start) -> Begun:
        if start.options:
            raise ConfigError(f"the init of {self.name} takes the prompt alone, got also: {', '.join(start.options)}")
        if not start.messages:
            raise ConfigError(
                f"{self.name} begins with the prompt of a row: give tasks=, with the messages of each, and a function "
                "that makes the env of one"
            )
        prompt = [dict(message) for message in start.messages]
        messages, info = await self.threads.run(self.env.init, prompt)
        return Begun(self.read(messages), self._schemas, info or {})

    async def step(self, turn: ParsedTurn) -> Stepped:
        call = turn.calls[0] if turn.calls else None
        action = self.action(turn)
        if call is not None:
            assert self.options.write_call is not None
            action = turn.content + self.options.write_call(call)
        output = await self.threads.run(self.env.step, action)
        messages = self.read(output["observations"])
        if call is not None:
            content = joined((message["content"] for message in messages), "\n")
            messages = [tool(content, tool_call_id=call.id, name=call.name)] if messages else []
        info = dict(output.get("metadata") or {})
        if output.get("postprocessed_action") is not None:  # training on it would not be on what was sampled
            info["postprocessed_action"] = output["postprocessed_action"]
        if output["done"]:
            info |= await self.threads.run(self._metrics)
        return Stepped(messages, output["reward"], output["done"], False, info)

    def _metrics(self) -> Mapping[str, Any]:
        metrics: Mapping[str, Any] | None = self.env.get_metrics() if hasattr(self.env, "get_metrics") else None
        return metrics or {}


def _schemas(env: Any) -> list[ToolSchema]:
    schemas = []
    for group in getattr(env, "tool_groups", ()):
        for name in group.get_tool_names():
            method = getattr(type(group), name)
            schemas.append(_schema(name, getattr(method, "func", method)))
    return schemas


def _schema(name: str, method: Any) -> ToolSchema:
    """The schema of a method, without its `self`."""

    @functools.wraps(method)
    def function(**arguments: Any) -> Any:
        raise NotImplementedError  # only its signature is read; the env calls the method itself

    signature = inspect.signature(method, eval_str=True)
    del function.__wrapped__
    function.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return make_tool(name=name)(function).tool_schema
