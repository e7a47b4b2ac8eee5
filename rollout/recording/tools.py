"""`RecordedTool` records each call of a tool; `ReplayedTool` answers from a cassette."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from toolgym.envs.base import BaseEnv
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.job import current_episode
from toolgym.rollout.recording.cassette import Cassette, CassetteWriter
from toolgym.rollout.recording.lines import described, tool_key, tool_request
from toolgym.rollout.recording.outcome import record_outcome, replay_outcome
from toolgym.rollout.trajectory.trajectory import plain
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import shorten
from toolgym.wrappers.base import Wrapper

T = TypeVar("T")


class RecordedTool(BaseTool):
    """Passes every call on to the tool inside, and records it with its outcome.

    `release` and `close` are passed on and not recorded: nothing in a trajectory depends on them. The tool's
    configuration is not recorded either.

    The deadlines are the wall seconds after which the env gives up a call, and `calc_reward`.
    """

    stays_on_loop = True

    def __init__(self, inside: BaseTool, cassette: CassetteWriter, deadline: float, score_deadline: float) -> None:
        super().__init__({}, inside.tool_schema)
        self.inside, self.runs_programs = inside, inside.runs_programs
        self._cassette, self._deadline, self._score_deadline = cassette, deadline, score_deadline

    def check_task_kwargs(self, tools_kwargs: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.inside.check_task_kwargs(tools_kwargs)

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        call = self.inside.create(instance_id, **create_kwargs)
        return await self._record("create", None, create_kwargs, call, lambda instance: None)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        call = self._execute(instance_id, parameters, execute_kwargs)
        return await self._record("execute", parameters, execute_kwargs, call, _result_to_json)

    async def _execute(self, instance_id: str, parameters: dict[str, Any], kwargs: dict[str, Any]) -> ToolResult:
        return ToolResult.of(await self.inside.execute(instance_id, parameters, **kwargs))

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        call = self.inside.calc_reward(instance_id, **calc_reward_kwargs)
        return await self._record("calc_reward", None, calc_reward_kwargs, call, plain)

    async def fork(self, instance_id: str) -> str:
        return await self._record("fork", None, {}, self.inside.fork(instance_id), lambda instance: None)

    def session_of(self, instance_id: str) -> Any:
        return self.inside.session_of(instance_id)

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        await self.inside.release(instance_id, **release_kwargs)

    async def close(self) -> None:
        await self.inside.close()

    async def _record(
        self,
        name: str,
        arguments: object,
        kwargs: Mapping[str, object],
        call: Coroutine[Any, Any, T],
        to_json: Callable[[T], Any],
    ) -> T:
        episode = current_episode()
        asked = tool_request(self.name, name, arguments, kwargs)
        number = self._cassette.count(tool_key(episode, asked))

        def record(**outcome: Any) -> None:
            self._cassette.write("tool", episode=episode, number=number, **asked, **outcome)

        deadline = self._score_deadline if name == "calc_reward" else self._deadline
        return await record_outcome(call, deadline, to_json, record)


def _result_to_json(result: ToolResult) -> dict[str, Any]:
    images = {"images": list(result.images)} if result.images else {}
    return {"text": result.text, "reward": plain(result.reward), "metrics": plain(result.metrics), **images}


class ReplayedTool(BaseTool):
    """Answers each call as the recorded tool did. It opens nothing and runs nothing."""

    stays_on_loop = True

    def __init__(self, tool_schema: Mapping[str, Any], cassette: Cassette) -> None:
        super().__init__({}, tool_schema)
        self._cassette = cassette

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        await self._replay("create", None, create_kwargs)
        return instance_id if instance_id is not None else uuid.uuid4().hex

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        reply = await self._replay("execute", parameters, execute_kwargs)
        return ToolResult(reply["text"], reply["reward"], reply["metrics"], images=reply.get("images", ()))

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        reward: float = await self._replay("calc_reward", None, calc_reward_kwargs)
        return reward

    async def fork(self, instance_id: str) -> str:
        await self._replay("fork", None, {})
        return uuid.uuid4().hex

    async def _replay(self, name: str, arguments: object, kwargs: Mapping[str, object]) -> Any:
        episode = current_episode()
        asked = tool_request(self.name, name, arguments, kwargs)
        recorded = self._cassette.find(tool_key(episode, asked))
        if recorded is None:
            known = [
                f"line {other.line}: {shorten(other.asked['arguments'], 200)}"
                for other in self._cassette.everything()
                if (other.episode, other.asked.get("tool"), other.asked.get("call")) == (episode, self.name, name)
            ]
            raise self._cassette.miss(
                f"{described(episode)}: {self.name}.{name} with {shorten(asked['arguments'], 200)} is not in "
                f"{self._cassette.path}; recorded for this episode: {', '.join(known) or 'none'}"
            )
        return await replay_outcome(self._cassette, recorded, f"{self.name}.{name} ran")


def tool_env(env: BaseEnv) -> ToolEnv | None:
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    return inner if isinstance(inner, ToolEnv) else None


def replay_tools(env: BaseEnv, env_id: str, cassette: Cassette) -> None:
    """Let each recorded tool of the env with that name, wrapped or not, answer from the cassette."""
    inner = tool_env(env)
    if inner is not None:
        schemas = {schema["function"]["name"]: schema for schema in cassette.tools.get(env_id, ())}

        def replayed(tool: BaseTool) -> BaseTool:
            if tool.name not in schemas:
                return tool
            twin = ReplayedTool(schemas[tool.name], cassette)
            twin.runs_programs = tool.runs_programs
            return twin

        inner.decorate_tools(replayed)
