"""Tools that are recorded, and tools that answer from a recording."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from toolgym.envs.base import BaseEnv
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.cassette import Cassette, CassetteWriter, make_error, redacted, tool_key
from toolgym.rollout.playing import current_episode
from toolgym.rollout.trajectory import plain
from toolgym.rollout.watching import watch
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.deadline import DeadlineError
from toolgym.wrappers.base import Wrapper

T = TypeVar("T")

_log = logging.getLogger("toolgym.rollout")


class RecordedTool(BaseTool):
    """Passes every call on to the tool inside, and records it with what became of it.

    `release` and `close` are passed on and not recorded: nothing that a trajectory holds depends on them. The tool's
    configuration is not recorded either.

    Args:
        inside: the tool.
        tape: where to record.
        deadline: wall seconds after which the env gives a call up.
    """

    def __init__(self, inside: BaseTool, tape: CassetteWriter, deadline: float) -> None:
        super().__init__({}, inside.tool_schema)
        self.inside = inside
        self._tape, self._deadline = tape, deadline

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        call = self.inside.create(instance_id, **create_kwargs)
        return await self._record("create", None, create_kwargs, call, lambda instance: None)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        call = self._execute(instance_id, parameters, execute_kwargs)
        return await self._record("execute", parameters, execute_kwargs, call, _shown_result)

    async def _execute(self, instance_id: str, parameters: dict[str, Any], kwargs: dict[str, Any]) -> ToolResult:
        return ToolResult.of(await self.inside.execute(instance_id, parameters, **kwargs))

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        call = self.inside.calc_reward(instance_id, **calc_reward_kwargs)
        return await self._record("calc_reward", None, calc_reward_kwargs, call, plain)

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        await self.inside.release(instance_id, **release_kwargs)

    async def close(self) -> None:
        await self.inside.close()

    async def _record(
        self,
        name: str,
        arguments: Any,
        kwargs: Mapping[str, Any],
        call: Coroutine[Any, Any, T],
        show: Callable[[T], Any],
    ) -> T:
        episode = current_episode()
        asked = {"tool": self.name, "call": name, "arguments": plain(arguments), "kwargs": redacted(kwargs)}
        number = self._tape.count(tool_key(episode, **asked))

        def note(**outcome: Any) -> None:
            self._tape.write("tool", episode=episode, number=number, **asked, **outcome)

        return await watch(call, self._deadline, show, note)


def _shown_result(result: ToolResult) -> dict[str, Any]:
    return {"text": result.text, "reward": plain(result.reward), "metrics": plain(result.metrics)}


class ReplayedTool(BaseTool):
    """Answers each call as the recorded tool did. It opens nothing and runs nothing.

    Args:
        tool_schema: the recorded tool's schema in the OpenAI shape.
        cassette: the recording.
    """

    def __init__(self, tool_schema: Mapping[str, Any], cassette: Cassette) -> None:
        super().__init__({}, tool_schema)
        self._cassette = cassette

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        await self._replay("create", None, create_kwargs)
        return instance_id if instance_id is not None else uuid.uuid4().hex

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        reply = await self._replay("execute", parameters, execute_kwargs)
        return ToolResult(reply["text"], reply["reward"], reply["metrics"])

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        reward: float = await self._replay("calc_reward", None, calc_reward_kwargs)
        return reward

    async def _replay(self, name: str, arguments: Any, kwargs: Mapping[str, Any]) -> Any:
        episode = current_episode()
        asked = {"tool": self.name, "call": name, "arguments": plain(arguments), "kwargs": redacted(kwargs)}
        place = "outside of any episode" if episode is None else f"group {episode.group_id}, sample {episode.sample}"
        found = self._cassette.find(tool_key(episode, **asked))
        if found is None:
            known = [
                f"line {one.line}: {_short(one.asked['arguments'])}"
                for one in self._cassette.requests(episode)
                if (one.asked.get("tool"), one.asked.get("call")) == (self.name, name)
            ]
            raise self._cassette.miss(
                f"{place}: {self.name}.{name} with {_short(asked['arguments'])} is not in {self._cassette.path}; "
                f"recorded for this episode: {', '.join(known) or 'none'}"
            )
        if "error" in found.outcome:
            raise make_error(found.outcome["error"])
        ended = found.outcome.get("ended")
        if ended is not None:
            if ended["by"] == "deadline":
                raise DeadlineError(ended["seconds"], stuck=False)
            if episode not in self._cassette.trajectories:
                raise self._cassette.miss(
                    f"{place}: the recording stopped while {self.name}.{name} ran (line {found.line})"
                )
            await asyncio.Event().wait()
        return found.outcome["reply"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def record_tools(env: BaseEnv, tape: CassetteWriter) -> list[dict[str, Any]] | None:
    """Put a `RecordedTool` around each tool of an env, wrapped or not.

    Returns:
        The tools' schemas in the OpenAI shape; None for an env that is no `ToolEnv`: whatever such an env does is done
        again by a replay.
    """
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if not isinstance(inner, ToolEnv):
        _log.warning("%s is no ToolEnv: what it does is not recorded, and done again by a replay", type(inner).__name__)
        return None
    inner.tools = {name: RecordedTool(made, tape, inner.tool_timeout) for name, made in inner.tools.items()}
    return [made.get_openai_tool_schema() for made in inner.tools.values()]


def replay_tools(env: BaseEnv, cassette: Cassette) -> None:
    """Put a `ReplayedTool` in the place of each tool of an env, wrapped or not."""
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if isinstance(inner, ToolEnv) and cassette.tools is not None:
        by_name = {one["function"]["name"]: one for one in cassette.tools}
        inner.tools = {
            name: ReplayedTool(by_name[name], cassette) if name in by_name else made
            for name, made in inner.tools.items()
        }
