"""`ToolEnv`: the loop that all tool environments share.

One step: parse the turn, check each call, run the good ones at the same time, answer all in the order in which the
model asked. A turn without calls is the answer and ends the episode. Whatever the model does wrong, and whatever a
tool does, comes back as a message that the model reads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from toolgym.envs.bad_calls import BadCallPolicy
from toolgym.envs.base import BaseEnv, Info, StepResult, StopReason
from toolgym.envs.task import Task, TaskList, TaskSource
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError
from toolgym.tools.message import Message, tool
from toolgym.tools.parsers import ParsedTurn, Parser, get_parser
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema, check_call

_log = logging.getLogger("toolgym.envs")

T = TypeVar("T")

Scorer = Callable[[str, Task], float | Awaitable[float]]
"""From the text of the final turn and the task to a reward."""


@dataclass(frozen=True)
class ToolCallRecord:
    """What became of one tool call.

    Attributes:
        id: the call's id.
        name: the tool's name as the model wrote it; empty where it could not be read.
        arguments: the arguments with defaults filled in; None where they could not be read.
        status: `ok`; what the tool reported in its metrics' `status`; `timeout` or `error` where the tool overran its
            deadline or raised; or the `CallProblem` of a call that was not run.
        text: what the model read.
        reward: the tool's step reward.
        seconds: wall seconds that the call took.
        infra_failure: the tool's infrastructure failed; the model is not to blame.
        metrics: the tool's own numbers.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    status: str
    text: str
    reward: float = 0.0
    seconds: float = 0.0
    infra_failure: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)


class ToolEnv(BaseEnv):
    """An env whose policy may call tools.

    Args:
        tools: the tools, shared with other envs or not; they stay the caller's to close.
        tasks: where tasks come from; a sequence is drawn from at random.
        parser: how calls are written, by name (`hermes`, see `toolgym.tools.parsers.get_parser`) or as a function.
        prompt_opens_thinking: the generation prompt ends with `<think>`, so that turns begin inside of thinking. A
            closing tag tells as much; this is for turns that never close it, whose calls are then not run.
        scorer: what the final turn is worth, from its text without what the parser keeps apart. None scores 0, so that
            only the tools' rewards count.
        max_turns: turns of the policy until the episode is truncated.
        max_parallel_calls: calls of one turn that are run; the model is told about those beyond.
        bad_calls: what a malformed call costs. The model reads what was wrong in any case.
        tool_timeout: wall seconds for any one call of a tool's methods. Tools have deadlines of their own; this one
            holds when they fail to. Waiting for a permit of a `RateLimiter` does not count.
        queue_timeout: wall seconds that one call may wait for permits.

    The reward of an episode is the sum of the tools' step rewards, of each tool's `calc_reward`, and of the score, less
    what malformed calls cost. The metrics of a step hold `turn`, `bad_calls` (those that count, so far) and, where they
    cost something, `reward/bad_calls` (what they cost so far); at the end also `score` and `reward/TOOL`.

    Raises:
        ConfigError: two tools share a name, or a number is out of range.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool],
        tasks: TaskSource | Sequence[Task],
        *,
        parser: str | Parser = "hermes",
        prompt_opens_thinking: bool = False,
        scorer: Scorer | None = None,
        max_turns: int = 8,
        max_parallel_calls: int = 8,
        bad_calls: BadCallPolicy = BadCallPolicy(),  # noqa: B008  it is frozen
        tool_timeout: float = 120.0,
        queue_timeout: float = 600.0,
    ) -> None:
        self.tools = {made.name: made for made in tools}
        if len(self.tools) != len(tools):
            raise ConfigError(f"tools of one env need unique names, got {[made.name for made in tools]}")
        for name, value in (("max_turns", max_turns), ("max_parallel_calls", max_parallel_calls)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value!r}")
        for name, seconds in (("tool_timeout", tool_timeout), ("queue_timeout", queue_timeout)):
            if not seconds > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {seconds!r}")
        if not isinstance(bad_calls, BadCallPolicy):
            raise ConfigError(f"bad_calls must be a BadCallPolicy, got {bad_calls!r}")
        self.tasks = tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        self.max_turns = max_turns
        self.max_parallel_calls = max_parallel_calls
        self.bad_calls = bad_calls
        self.tool_timeout = tool_timeout
        self.queue_timeout = queue_timeout
        self._parser = get_parser(parser) if isinstance(parser, str) else parser
        self._starts_open = prompt_opens_thinking
        self._scorer = scorer
        self._schemas = {name: made.tool_schema for name, made in self.tools.items()}
        self._rng = random.Random()
        self._task: Task | None = None
        self._instances: dict[str, str] = {}
        self._turn = 0
        self._calls_seen = 0
        self._bad_calls = 0
        self._over = True

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return list(self._schemas.values())

    @property
    def task(self) -> Task | None:
        """The task of the episode; None before the first `reset`."""
        return self._task

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], Info]:
        self._over = True  # until the new one is known to have begun
        await self._release()
        if seed is not None:
            self._rng = random.Random(seed)
        task = (options or {}).get("task")
        if task is not None and not isinstance(task, Task):
            raise ConfigError(f"options['task'] must be a toolgym Task, got {task!r}")
        self._task = task = task if task is not None else self.tasks.sample(self._rng)
        unknown = sorted(set(task.tools_kwargs) - set(self.tools))
        if unknown:
            raise ConfigError(
                f"task {task.id!r} has tools_kwargs for {unknown[0]!r}, but the env's tools are: "
                f"{', '.join(self.tools) or 'none'}"
            )
        self._turn = self._calls_seen = self._bad_calls = 0
        try:
            for name, made in self.tools.items():
                kwargs = task.tools_kwargs.get(name, {}).get("create_kwargs") or {}
                await self._deadline(self._create(name, made, kwargs, self._instances))
        except BaseException:
            await self._release()
            raise
        self._over = False
        info: Info = {"task": task, "tools": [schema.to_openai() for schema in self.tool_schemas]}
        return [message.copy() for message in task.messages], info

    async def step(self, action: str | Message) -> StepResult:
        if self._task is None:
            raise EpisodeError("step was called before reset; call `await env.reset()` first")
        if self._over:
            raise EpisodeError("step was called after the episode ended; call `await env.reset()` to begin another")
        self._turn += 1
        text, message, requests = self._read(action)
        self._calls_seen += len(requests)
        if not requests:
            return await self._end(StopReason.ANSWERED, message, [], final_text=text)
        cost = self._count(requests)
        if self._turn >= self.max_turns:
            return await self._end(StopReason.MAX_TURNS, message, [], reward=cost)
        records = await self._answer(requests)
        reward = sum(record.reward for record in records) + cost
        if self.bad_calls.ends(self._bad_calls):
            return await self._end(StopReason.TOO_MANY_BAD_CALLS, message, records, reward=reward)
        obs = [tool(record.text, tool_call_id=record.id, name=_encodable(record.name)) for record in records]
        return StepResult(obs, reward, False, self._info(None, message, records, {}))

    async def close(self) -> None:
        self._over = True
        await self._release()

    # ------------------------------------------------------------------ one turn

    def _read(self, action: str | Message) -> tuple[str, Message, list[ToolCall | ToolCallError]]:
        """Return what the turn says, the assistant message, and what it asks for in order."""
        if isinstance(action, str):
            parsed = self._parser(
                action, first_id=self._calls_seen, schemas=self._schemas, starts_open=self._starts_open
            )
            found: list[ToolCall | ToolCallError] = sorted([*parsed.calls, *parsed.errors], key=lambda one: one.index)
            text, message = parsed.content, _message(action, parsed)
        else:
            text, message, found = self._read_message(action)
        checked = [check_call(one, self._schemas) if isinstance(one, ToolCall) else one for one in found]
        return text, message, [self._limit(one) for one in checked]

    def _read_message(self, action: Message) -> tuple[str, Message, list[ToolCall | ToolCallError]]:
        if action.get("role") != "assistant" or not isinstance(action.get("content"), str):
            raise ConfigError(f"an action is text or an assistant message with a text content, got {action!r}")
        if "tool_calls" not in action:
            text, _, found = self._read(action["content"])
            return text, action, found
        calls: list[ToolCall | ToolCallError] = []
        for index, one in enumerate(action["tool_calls"]):
            function = one.get("function", {})
            if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), dict):
                raise ConfigError(f"a tool call of a message needs a function's name and arguments object, got {one!r}")
            call_id = one.get("id") or f"call_{self._calls_seen + index}"
            calls.append(ToolCall(call_id, function["name"], function["arguments"], index))
        return action["content"], action, calls

    def _limit(self, request: ToolCall | ToolCallError) -> ToolCall | ToolCallError:
        if isinstance(request, ToolCallError) or request.index < self.max_parallel_calls:
            return request
        message = (
            f"The call was not run: at most {self.max_parallel_calls} tool calls are allowed in one turn. "
            "Send it again in your next turn."
        )
        return ToolCallError(CallProblem.TOO_MANY_CALLS, message, "", request.id, request.index, request.name)

    async def _answer(self, requests: Sequence[ToolCall | ToolCallError]) -> list[ToolCallRecord]:
        """Run all good calls at once; return one record per request, in their order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(request)) for request in requests]
        return [task.result() for task in tasks]

    async def _one(self, request: ToolCall | ToolCallError) -> ToolCallRecord:
        if isinstance(request, ToolCallError):
            text = _encodable(request.message)
            return ToolCallRecord(request.id, request.name, None, request.problem.value, text)
        made, instance = self.tools[request.name], self._instances[request.name]
        assert self._task is not None
        kwargs = self._task.tools_kwargs.get(request.name, {}).get("execute_kwargs") or {}
        started = time.monotonic()
        status, infra_failure = "ok", False
        try:
            call = made.execute(instance, request.arguments, **kwargs)
            result = ToolResult.of(await self._deadline(call))
            status = str(result.metrics.get("status", "ok"))
            infra_failure = bool(result.metrics.get("infra_failure", False))
        except DeadlineError as error:
            status, infra_failure = "timeout", error.queued
            result = ToolResult(f"[The tool {request.name!r} {error} and was stopped]")
        except Exception as error:  # noqa: BLE001  a tool's failure is the model's observation
            _log.debug("tool %r raised", request.name, exc_info=True)
            status = "error"
            result = ToolResult(f"[The tool {request.name!r} failed: {type(error).__name__}: {error}]")
        return ToolCallRecord(
            id=request.id,
            name=request.name,
            arguments=request.arguments,
            status=status,
            text=_encodable(result.text),
            reward=result.reward,
            seconds=time.monotonic() - started,
            infra_failure=infra_failure,
            metrics=result.metrics,
        )

    # ------------------------------------------------------------------ the end

    async def _end(
        self,
        reason: StopReason,
        message: Message,
        records: list[ToolCallRecord],
        *,
        reward: float = 0.0,
        final_text: str | None = None,
    ) -> StepResult:
        """Score, ask every tool for its reward, release."""
        self._over = True
        assert self._task is not None
        metrics: dict[str, Any] = {}
        try:
            if final_text is not None and self._scorer is not None:
                metrics["score"] = await self._score(final_text)
                reward += metrics["score"]
            for name, instance in self._instances.items():
                kwargs = self._task.tools_kwargs.get(name, {}).get("calc_reward_kwargs") or {}
                given = await self._deadline(self.tools[name].calc_reward(instance, **kwargs))
                reward += float(given)
                metrics[f"reward/{name}"] = float(given)
        finally:
            await self._release()
        return StepResult([], reward, True, self._info(reason, message, records, metrics))

    async def _score(self, final_text: str) -> float:
        assert self._scorer is not None
        assert self._task is not None
        score = self._scorer(final_text, self._task)
        if inspect.isawaitable(score):
            score = await self._deadline(_awaited(score))
        return float(score)

    def _info(
        self,
        reason: StopReason | None,
        message: Message,
        records: list[ToolCallRecord],
        metrics: dict[str, Any],
    ) -> Info:
        costs = {"reward/bad_calls": self.bad_calls.reward(self._bad_calls)} if self.bad_calls.penalty else {}
        return {
            "terminated": reason in (StopReason.ANSWERED, StopReason.TOO_MANY_BAD_CALLS),
            "truncated": reason is StopReason.MAX_TURNS,
            "stop_reason": reason,
            "message": message,
            "tool_calls": records,
            "metrics": {"turn": self._turn, "bad_calls": self._bad_calls, **costs, **metrics},
        }

    def _count(self, requests: Sequence[ToolCall | ToolCallError]) -> float:
        """Count the malformed calls of a turn; return what they cost: 0 or less."""
        before = self.bad_calls.reward(self._bad_calls)
        self._bad_calls += sum(
            isinstance(request, ToolCallError) and request.problem in self.bad_calls.counts for request in requests
        )
        return self.bad_calls.reward(self._bad_calls) - before

    async def _deadline(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await with_deadline(coroutine, self.tool_timeout, queue=self.queue_timeout)

    async def _create(self, name: str, made: BaseTool, kwargs: Mapping[str, Any], instances: dict[str, str]) -> None:
        """Open one tool for the episode of `instances`."""
        instance = await made.create(**kwargs)
        if instances is self._instances:
            instances[name] = instance
        else:  # too late: the episode was given up meanwhile
            await self._release_all({name: instance})

    async def _release(self) -> None:
        """Release every instance exactly once, even when cancelled meanwhile."""
        instances, self._instances = self._instances, {}
        if instances:
            await shielded(self._release_all(instances))

    async def _release_all(self, instances: Mapping[str, str]) -> None:
        task_kwargs = self._task.tools_kwargs if self._task is not None else {}
        for name, instance in instances.items():
            kwargs = task_kwargs.get(name, {}).get("release_kwargs") or {}
            try:
                await self._deadline(self.tools[name].release(instance, **kwargs))
            except Exception as error:  # noqa: BLE001  the episode's result is worth more
                _log.warning("releasing tool %r failed: %s: %s", name, type(error).__name__, error)


def _message(text: str, parsed: ParsedTurn) -> Message:
    """The assistant message that a turn is kept as."""
    if parsed.errors:  # what could not be read stays in the conversation as it was written
        return {"role": "assistant", "content": text}
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.calls:
        message["content"] = parsed.content.strip()
        message["tool_calls"] = [call.to_message() for call in parsed.calls]
    if parsed.reasoning is not None:
        return {**message, "reasoning_content": parsed.reasoning}
    return message


async def _awaited(value: Awaitable[float]) -> float:
    return await value


def _encodable(text: str) -> str:
    """Replace lone surrogates, which a model can write as JSON escapes and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")
