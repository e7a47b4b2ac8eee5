"""`ToolInstances`: the tool instances of one episode, and every call of a tool in it; and the tools of an env."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import ToolCallRecord
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.concurrency import tool_loops
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.concurrency.loop_watch import tool_works
from toolgym.tools.concurrency.run_limits import TOOL_CALLS
from toolgym.tools.errors import ConfigError, error_text, is_infrastructure, on_one_line, require_number
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.http.retries import RetryCount
from toolgym.tools.message import Content, with_images
from toolgym.tools.schema import ToolCall, ToolCallError
from toolgym.tools.sessions.tool_scope import enter_tool_scope

T = TypeVar("T")

_log = logging.getLogger("toolgym.envs")
_warnings = LogThrottle(60.0)
_NONE: Mapping[str, Any] = {}


class AnsweredCall(NamedTuple):
    """The record of a call, and the content of the message that the policy reads: the record's text and the images."""

    record: ToolCallRecord
    content: Content


class ToolInstances:
    """One instance of each tool, opened together and released exactly once; time limits are those of `ToolEnv`."""

    __slots__ = (
        "_cut", "_ids", "_loops", "_queue_timeout", "_released", "_score_timeout", "_task", "_timeout", "_tools",
        "scope",
    )  # fmt: skip

    def __init__(
        self,
        tools: Mapping[str, BaseTool],
        task: Task,
        cut: Callable[[ToolResult], ToolResult],
        timeout: float,
        queue_timeout: float,
        score_timeout: float,
    ) -> None:
        self._tools, self._task, self._cut = tools, task, cut
        self._timeout, self._queue_timeout, self._score_timeout = timeout, queue_timeout, score_timeout
        self._ids: dict[str, str] = {}
        self._loops: Mapping[str, EventLoopThread] = _NONE  # of the instances that have not that of the episode
        self.scope = uuid.uuid4().hex  # the episode's name, under which its tools find what they share
        self._released = False  # the episode is over or did not come about: a tool that opens later is released at once

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._ids)

    @property
    def sessions(self) -> dict[str, Any]:
        sessions = {name: self._tools[name].session_of(instance) for name, instance in self._ids.items()}
        return {name: session for name, session in sessions.items() if session is not None}

    async def open(self) -> None:
        """Open every tool. If one raises or overruns its deadline, or the caller is cancelled, none is left behind.
        Raises `ConfigError` if the task has arguments for a tool that the tool does not take."""
        for name, opened in self._tools.items():
            opened.check_task_kwargs(self._task.tools_kwargs.get(name, _NONE))
        try:
            for name, opened in self._tools.items():
                if (loop := _own_loop(opened)) is not None:
                    self._loops = {**self._loops, name: loop}
                create = partial(opened.create, **self._kwargs(name, "create_kwargs"))
                if _is_default(opened.create, BaseTool.create):
                    self._ids[name] = await create()
                else:
                    await self._keep(name, create)
        except BaseException:
            await self.release()
            raise

    async def answer(self, request: ToolCall | ToolCallError) -> AnsweredCall:
        """Run a call that was checked, or say what was wrong with it. The record holds what a tool raises."""
        if isinstance(request, ToolCallError):
            text = encodable(request.message)
            return AnsweredCall(ToolCallRecord(request.id, request.name, None, request.problem.value, text), text)
        called, instance = self._tools[request.name], self._ids[request.name]
        kwargs = self._kwargs(request.name, "execute_kwargs")
        started = time.monotonic()
        status, failure, count = "ok", "", RetryCount()
        try:
            call = self._run(request.name, partial(called.execute, instance, request.arguments, **kwargs), count)
            answer = await self._in_time(request.name, call, self._timeout)
            result = ToolResult.of(answer)
            status = str(result.metrics.get("status", "ok"))
            if result.metrics.get("infra_failure", False):
                failure = str(result.metrics.get("error", "it did not say why"))
        except DeadlineError as error:
            status = "timeout"
            if error.queued:
                failure, result = str(error), _unavailable(request.name, str(error))
            else:
                failure = str(error) if called.calls_server else ""
                result = ToolResult(f"[The tool {request.name!r} {error} and was stopped]")
        except Exception as error:  # noqa: BLE001  a tool's failure is the model's observation
            _log.debug("tool %r raised", request.name, exc_info=True)
            status, text = "error", error_text(error)
            if is_infrastructure(error):
                failure, result = text, _unavailable(request.name, text)
            else:
                result = ToolResult(f"[The tool {request.name!r} failed: {text}]")
        if failure:
            _warn(request.name, failure)
        result = self._cut(result)
        record = ToolCallRecord(
            id=request.id,
            name=request.name,
            arguments=request.arguments,
            status=status,
            text=encodable(result.text),
            reward=result.reward,
            seconds=time.monotonic() - started,
            infra_failure=bool(failure),
            metrics=result.metrics,
            retries=count.retries,
        )
        return AnsweredCall(record, with_images(record.text, result.images))

    async def reward(self, name: str) -> float:
        """Return a tool's addition to the episode's reward. What its `calc_reward` raises passes through.

        Raises:
            ConfigError: `calc_reward` returned something else than a finite number.
        """
        asked = self._tools[name]
        calc_reward = partial(asked.calc_reward, self._ids[name], **self._kwargs(name, "calc_reward_kwargs"))
        if _is_default(asked.calc_reward, BaseTool.calc_reward):
            return await calc_reward()
        reward = await self._in_time(name, self._run(name, calc_reward), self._score_timeout)
        return require_number("it must return", reward)

    async def fork(self) -> ToolInstances:
        """Return copies of all instances, which are released on their own. If one raises, none is left behind."""
        timeouts = self._timeout, self._queue_timeout, self._score_timeout
        twin = ToolInstances(self._tools, self._task, self._cut, *timeouts)
        try:
            for name, instance in self._ids.items():
                if (loop := self._loops.get(name)) is not None:
                    twin._loops = {**twin._loops, name: loop}
                await twin._keep(name, partial(self._tools[name].fork, instance))
        except BaseException:
            await twin.release()
            raise
        return twin

    async def release(self) -> None:
        """Release every instance exactly once, even when cancelled meanwhile. What a tool raises is logged."""
        self._released = True
        ids, self._ids = self._ids, {}
        # What a tool does not override never waits, and needs no task with a deadline.
        ids = {
            name: instance
            for name, instance in ids.items()
            if not _is_default(self._tools[name].release, BaseTool.release)
        }
        if ids:
            await shielded(self._release(ids))

    async def _run(self, name: str, call: Callable[[], Awaitable[T]], count: RetryCount | None = None) -> T:
        """Await a call of a tool on its instance's event loop; one whose retries count, in its turn among the calls of
        the run. What is set here is set for this call: `with_deadline` gives it a context of its own."""
        called, loop, lease = self._tools[name], self._loops.get(name), None
        enter_tool_scope(self.scope)
        if count is not None:
            count.count()
            lease = TOOL_CALLS.limiter.try_acquire() or await TOOL_CALLS.limiter.acquire_in_turn()
            # What the tool calls goes with this permit: if it waited for one too, all might wait for ever.
            TOOL_CALLS.lift()
        try:
            if loop is not None:
                return await loop.call(_watched(called, name, call))
            with tool_works(name, _catch, called):
                answer = call()
                del call  # and what is bound in it: it may wait for long
                return await answer
        finally:
            if lease is not None:
                lease.release()

    def _in_time(self, name: str, call: Coroutine[Any, Any, T], seconds: float) -> Coroutine[Any, Any, T]:
        return with_deadline(call, seconds, queue=self._queue_timeout, name=_label(name))

    async def _keep(self, name: str, opening: Callable[[], Awaitable[str]]) -> None:
        """Await a tool's `create` or `fork` and keep the instance."""

        async def keep() -> None:
            instance = await self._run(name, opening)
            if self._released:
                await self._release({name: instance})
            else:
                self._ids[name] = instance

        await self._in_time(name, keep(), self._timeout)

    async def _release(self, ids: Mapping[str, str]) -> None:
        for name, instance in ids.items():
            release = partial(self._tools[name].release, instance, **self._kwargs(name, "release_kwargs"))
            try:
                await self._in_time(name, self._run(name, release), self._timeout)
            except Exception as error:  # noqa: BLE001  the episode's result is worth more
                _log.warning("releasing tool %r failed: %s", name, on_one_line(error_text(error)))

    def _kwargs(self, name: str, call: str) -> Mapping[str, Any]:
        kwargs: Mapping[str, Any] = self._task.tools_kwargs.get(name, {}).get(call) or _NONE
        return kwargs


@functools.cache
def _label(name: str) -> str:
    """A tool's name in the log, once for all calls that wait."""
    return f"the tool {name!r}"


async def _watched(tool: BaseTool, name: str, call: Callable[[], Awaitable[T]]) -> T:
    with tool_works(name, _catch, tool):
        return await call()


def _own_loop(tool: BaseTool) -> EventLoopThread | None:
    return None if tool.stays_on_loop else tool_loops.TOOL_LOOPS.loop_of((type(tool), tool.name))


def _catch(tool: BaseTool) -> str:
    """Note that a tool blocked its event loop; return what is done about it, for the log."""
    if tool.stays_on_loop:
        return ""
    if not tool_loops.TOOL_LOOPS.catch((type(tool), tool.name), tool.name):
        return "It runs on an event loop of its own already."
    return (
        "In episodes that begin from now on it runs on an event loop of its own; a tool that must stay on this one, as "
        "it keeps connections, has `stays_on_loop = True`."
    )


def _is_default(method: Callable[..., Any], default: Callable[..., Any]) -> bool:
    return getattr(method, "__func__", None) is default


def _unavailable(name: str, error: str) -> ToolResult:
    text = f"[The tool {name!r} is not available now; your call is not to blame]"
    return ToolResult(text, 0.0, {"infra_failure": True, "error": error})


def _warn(name: str, failure: str) -> None:
    """Log a failure of the infrastructure. A server that is down fails thousands of calls: one line a minute."""
    more = _warnings.due(name)
    if more is not None:
        since = f" ({more} more since the last of these lines)" if more else ""
        _log.warning("the infrastructure of the tool %r failed: %s%s", name, on_one_line(failure), since)


def encodable(text: str) -> str:
    """Replace lone surrogates, which a model can write as JSON escapes and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


class OwnTools:
    """Tools that an env and its forks, the `owners`, close together: the last of them to close closes the tools."""

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self.tools = tools
        self.owners = 1

    async def drop(self) -> None:
        """Give up one env's part. All tools are closed, also when closing one raises."""
        self.owners -= 1
        if not self.owners:
            async with contextlib.AsyncExitStack() as stack:
                for owned in self.tools:
                    stack.push_async_callback(owned.close)


def tools_by_name(tools: Sequence[BaseTool | ToolFunction[..., Any]]) -> dict[str, BaseTool]:
    """Return the tools by name, in their order. Raises `ConfigError` if one is no tool, or two have the same name."""
    by_name: dict[str, BaseTool] = {}
    for place, named in enumerate(map(as_tool, tools)):
        if named.name in by_name:
            first = list(by_name).index(named.name)
            raise ConfigError(
                f"tools of one env need unique names, got two called {named.name!r}: tools {first} "
                f"({type(by_name[named.name]).__name__}) and {place} ({type(named).__name__})"
            )
        by_name[named.name] = named
    return by_name
