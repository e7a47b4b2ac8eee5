"""Tools for verl's own tool loop, in place of those that it no longer has; its `tool_config_path` names them.

That loop makes and frees an instance around every call, so nothing lives from call to call but what hangs on the
trajectory's `agent_data`; an env of toolgym's, played by `ToolgymAgentLoop`, has tools that live for the episode.
"""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from toolgym import tools
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.library.final_answer import score_final_answer
from toolgym.tools.library.gsm8k import Gsm8kRewardTool
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema, check_call

with needs("verl", "A tool of verl"):
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

WORSE = -0.05
"""Reward of a call of `VerlGsm8kTool` whose answer is no better than the trajectory's best."""

_GSM8K = Gsm8kRewardTool.default_schema
Answer = tuple[ToolResponse, float, dict[str, Any]]


class _WrappedTool(BaseTool):  # type: ignore[misc]  # verl has no types
    """A tool of toolgym's as one of verl's. Another schema for the model must keep the arguments."""

    _kind: ClassVar[Callable[[dict[str, Any], dict[str, Any] | None], tools.BaseTool]]

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        schema = None if tool_schema is None else tool_schema.model_dump(exclude_none=True)
        self._tool = type(self)._kind(dict(config), schema)
        shown = tool_schema or OpenAIFunctionToolSchema.model_validate(self._tool.tool_schema.to_openai())
        super().__init__(dict(config), shown)

    async def create(
        self, instance_id: str | None = None, create_kwargs: Mapping[str, Any] | None = None, **further: Any
    ) -> tuple[str, ToolResponse]:
        """Open an instance with the row's `create_kwargs`. Raises `ConfigError` if one is not known."""
        return await self._tool.create(instance_id, **(create_kwargs or {})), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        checked = _checked(parameters, self._tool.tool_schema)
        if isinstance(checked, ToolCallError):
            return ToolResponse(text=checked.message), 0.0, {"status": checked.problem.value}
        result = await self._tool.execute(instance_id, checked.arguments)
        return ToolResponse(text=self._shown(result.text)), float(result.reward), dict(result.metrics)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await self._tool.release(instance_id)

    async def close(self) -> None:
        """Free what the tool holds. verl never calls this: its tools live as long as their worker."""
        await self._tool.close()

    @staticmethod
    def _shown(text: str) -> str:
        return text


class VerlSandboxFusionTool(_WrappedTool):
    """Runs the model's programs with `CodeInterpreterTool`, on this machine or on a server.

    See `CodeInterpreterConfig` for the options, whose names are those of verl's former tool.
    """

    _kind = tools.CodeInterpreterTool


class VerlSearchTool(_WrappedTool):
    """Searches with `toolgym.tools.SearchTool`, on a retrieval server.

    See `SearchConfig` for the options, whose names are those of verl's former tool. The model reads what it read then:
    `{"result": "Doc 1 (Title: ...)..."}`, in JSON.
    """

    _kind = tools.SearchTool

    @staticmethod
    def _shown(text: str) -> str:
        return json.dumps({"result": text}, ensure_ascii=False)


class VerlGsm8kTool(BaseTool):  # type: ignore[misc]
    """Tells the model what its answer to a problem of GSM8K would earn; asking again without a better one costs.

    A row's `create_kwargs` hold `ground_truth`. The reward of a trajectory's first call is 0; that of a later one is 0
    if its answer is better than all before, else `WORSE`.
    """

    def __init__(self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(dict(config), tool_schema or OpenAIFunctionToolSchema.model_validate(_GSM8K.to_openai()))
        self._truths: dict[str, Any] = {}
        self._best: dict[str, float] = {}
        self._of_trajectory: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    async def create(
        self,
        instance_id: str | None = None,
        ground_truth: Any = None,
        create_kwargs: Mapping[str, Any] | None = None,
        **further: Any,
    ) -> tuple[str, ToolResponse]:
        instance_id = instance_id or uuid.uuid4().hex
        self._truths[instance_id] = (create_kwargs or {}).get("ground_truth", ground_truth)
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None, **kwargs: Any
    ) -> Answer:
        checked = _checked(parameters, replace(_GSM8K, name=self.name))
        if isinstance(checked, ToolCallError):
            return ToolResponse(text=checked.message), WORSE, {"status": checked.problem.value}
        answer = checked.arguments["answer"]
        score = score_final_answer(f"#### {answer.rpartition('####')[2].strip()}", self._truths[instance_id])
        before = self._best.get(instance_id) if agent_data is None else self._of_trajectory.get(agent_data)
        best = score if before is None else max(before, score)
        self._best[instance_id] = best
        if agent_data is not None:
            self._of_trajectory[agent_data] = best
        reward = 0.0 if before is None or score > before else WORSE
        return ToolResponse(text=f"The answer {answer!r} earns {score:g}."), reward, {"status": "ok", "score": score}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return self._best.get(instance_id, 0.0)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._truths.pop(instance_id, None)
        self._best.pop(instance_id, None)


def _checked(parameters: Any, schema: ToolSchema) -> ToolCall | ToolCallError:
    """Return the call with its defaults filled in, or what is wrong with it, as toolgym's envs tell the model."""
    return check_call(ToolCall(id="", name=schema.name, arguments=parameters), {schema.name: schema})
