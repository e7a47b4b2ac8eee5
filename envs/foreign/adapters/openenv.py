"""OpenEnv's envs: an `Environment` in this process, or a client of a server; with MCP tools, or with typed actions.

The contract (`openenv/core/env_server/interfaces.py`, `openenv/core/env_client.py`): `reset(seed=, **kwargs)` and
`step(action)` give an observation that has `done` and `reward`, a client's in a result that has them. With MCP, an
action is `CallToolAction(tool_name=, arguments=)`, and `ListToolsAction()` lists the tools
(`env_server/mcp_types.py`).

The policy calls tools: those of MCP, or one for each type of action, with the action's fields as its arguments.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, InvalidActionError, Start, Stepped, WrapOptions
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import messages_of, number_of, opened, text_of
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.function import without_titles
from toolgym.tools.message import Message, described, tool
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall, ToolSchema

_NOT_SHOWN = ("done", "reward", "metadata")
_MCP = ("MCPEnvironment", "MCPClientBase")


class OpenEnvAdapter(Adapter):
    """OpenEnv's envs. A turn without calls ends the episode, unless `to_action` makes an action of a turn."""

    project = "openenv"
    uses = frozenset({"to_text", "to_action", "drop_thinking", "action_type"})

    def __init__(self, env: Any, options: WrapOptions, threads: EnvThreads) -> None:
        super().__init__(env, options, threads)
        names = [cls.__name__ for cls in type(env).__mro__]
        self._client = "EnvClient" in names
        self._gives_results = self._client or "SyncEnvClient" in names
        inside = env.async_client if "SyncEnvClient" in names else env
        self._mcp = (
            options.to_action is None
            and options.action_type is None
            and any(cls.__name__ in _MCP for cls in type(inside).__mro__)
        )
        self._actions = {} if self._mcp or options.to_action is not None else _actions(inside, options, self.name)

    async def reset(self, start: Start) -> Begun:
        arguments = {"seed": start.seed, **start.options}
        parameters = inspect.signature(self.env.reset).parameters.values()
        if not any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            del arguments["seed"]
        observation, _, done, info = self._split(await self._call("reset", **arguments))
        if done:
            raise EpisodeFailedError(StopReason.RESET_FAILED, f"{self.name} was over before the policy's first turn")
        tools = await self._list_tools() if self._mcp else [schema for schema, _ in self._actions.values()]
        return Begun(opened(start.messages, self._messages(observation)), tools, info)

    async def step(self, turn: ParsedTurn) -> Stepped:
        if self.options.to_action is not None:
            observation, reward, done, info = self._split(await self._call("step", self.action(turn)))
            return Stepped(self._messages(observation), reward, done, info=info)
        if not turn.calls:
            return Stepped([], 0.0, True)
        messages: list[Message] = []
        infos: dict[str, Any] = {}
        failed: set[str] = set()
        reward, done = 0.0, False
        for call in turn.calls:
            if done:
                break
            try:
                observation, gained, ended, info = self._split(await self._call("step", self._action(call)))
            except InvalidActionError as error:
                text = str(error)
                failed.add(call.id)
            else:
                text = self._answer(observation)
                reward, done = reward + number_of(gained, self.name), ended
                infos |= info
                if getattr(observation, "error", None) is not None:
                    failed.add(call.id)
            messages.append(tool(text, tool_call_id=call.id, name=call.name))
        return Stepped(messages, reward, done, info=infos, failed_calls=frozenset(failed))

    async def close(self) -> None:
        if self._client:
            await self.env.close()
        else:
            await super().close()

    # ------------------------------------------------------------------ calls of the env

    async def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call `reset` or `step`: awaited if the env has it async of its own, in a thread otherwise."""
        if self._client:
            return await getattr(self.env, name)(*arguments, **named)
        method = getattr(self.env, f"{name}_async", None)
        if method is not None and not method.__qualname__.startswith("Environment."):
            return await method(*arguments, **named)
        return await self.threads.run(getattr(self.env, name), *arguments, **named)

    def _split(self, answer: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return the observation, the reward, whether it is over, and its metadata."""
        observation = answer.observation if self._gives_results else answer
        metadata = getattr(answer, "metadata", None) or _field(observation, "metadata") or {}
        return observation, getattr(answer, "reward", None), bool(getattr(answer, "done", False)), dict(metadata)

    def _action(self, call: ToolCall) -> Any:
        """Return the action of a call. Raises InvalidActionError: its type refuses the arguments."""
        if self._mcp:
            from openenv.core.env_server.mcp_types import CallToolAction

            return CallToolAction(tool_name=call.name, arguments=call.arguments)
        kind = self._actions[call.name][1]
        if kind is None:
            return dict(call.arguments)
        try:
            return kind(**call.arguments)
        except (TypeError, ValueError) as error:
            raise InvalidActionError(f"Wrong arguments for tool {call.name!r}: {error}") from error

    async def _list_tools(self) -> list[ToolSchema]:
        from openenv.core.env_server.mcp_types import ListToolsAction

        observation, _, _, info = self._split(await self._call("step", ListToolsAction()))
        if info.get("error"):
            raise EpisodeFailedError(StopReason.RESET_FAILED, f"{self.name} could not list its tools: {info['error']}")
        return [
            ToolSchema(tool.name, tool.description or "", tool.input_schema, external=True)
            for tool in observation.tools
        ]

    # ------------------------------------------------------------------ observations

    def _messages(self, observation: Any) -> list[Message]:
        if self.options.to_text is not None:
            return self.read(observation)
        return messages_of(self._shown(observation), self.name)

    def _answer(self, observation: Any) -> str:
        if self.options.to_text is not None:
            return "\n".join(described(message["content"]) for message in self.read(observation))
        error = getattr(observation, "error", None)
        if error is not None:
            return str(getattr(error, "message", error))
        if self._mcp and hasattr(observation, "result"):
            return self._result(observation.result)
        return self._shown(observation)

    def _result(self, result: Any) -> str:
        parts = _field(result, "content")
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            return text_of([_plain(part) for part in parts], self.name)
        data = _field(result, "data")
        return self._json(result if data is None else data)

    def _shown(self, observation: Any) -> str:
        """The fields of an observation: a single text as it is, anything else as JSON. Empty fields are left out."""
        fields = dict(_plain(observation)) if not isinstance(observation, str) else {"text": observation}
        shown = {name: value for name, value in fields.items() if name not in _NOT_SHOWN and not _is_empty(value)}
        if not shown:
            return ""
        if len(shown) == 1:
            return self._json(next(iter(shown.values())))
        return self._json(shown)

    def _json(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"an observation of {self.name} is neither text nor JSON ({error}): {shorten(repr(value))}; give "
                "to_text=, a function that makes a text of one"
            ) from error


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value


def _actions(env: Any, options: WrapOptions, what: str) -> dict[str, tuple[ToolSchema, type | None]]:
    """Return the tool of each type of action, by name. Raises ConfigError: the types are not known."""
    wanted = options.action_type
    named = list(wanted) if isinstance(wanted, Sequence) else [wanted]
    kinds = _action_types(env) if wanted is None else named
    if not kinds:
        raise ConfigError(
            f"{what} does not say of which type its actions are: give action_type=, a class of OpenEnv's actions or a "
            "ToolSchema, or to_action=, a function that makes an action of a turn"
        )
    pairs = [(kind, None) if isinstance(kind, ToolSchema) else (_schema(kind, what), kind) for kind in kinds]
    return {schema.name: (schema, kind) for schema, kind in pairs}


def _action_types(env: Any) -> list[type]:
    """The types of action that an env's class names, as its first type argument or in the hints of its `step`."""
    hinted: list[Any] = []
    for cls in type(env).__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            hinted += typing.get_args(base)[:1]
    step = getattr(type(env), "step", None)
    try:
        hints = typing.get_type_hints(step) if step is not None else {}
    except (NameError, TypeError):  # a hint names what only a type checker imports
        hints = {}
    hinted += [hints[name] for name in ("action",) if name in hints]
    for hint in hinted:
        kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if _is_action(kind)]
        if kinds:
            return kinds
    return []


def _is_action(kind: Any) -> bool:
    fields = getattr(kind, "model_fields", None)
    return isinstance(fields, Mapping) and any(cls.__name__ == "Action" for cls in kind.__mro__[1:])


def _schema(kind: Any, what: str) -> ToolSchema:
    if not hasattr(kind, "model_json_schema"):
        raise ConfigError(f"action_type of {what} must be a class of OpenEnv's actions or a ToolSchema, got {kind!r}")
    parameters = kind.model_json_schema()
    parameters.get("properties", {}).pop("metadata", None)
    description = parameters.pop("description", "")
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", kind.__name__.removesuffix("Action")) or ["act"]
    return ToolSchema("_".join(words).lower(), description, without_titles(parameters))
