"""`ToolInstances`: the tool instances of one episode, and every call of a tool in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import ToolCallRecord
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import error_text, is_infrastructure, shorten
from toolgym.tools.schema import ToolCall, ToolCallError
from toolgym.tools.seldom import Seldom

_log = logging.getLogger("toolgym.envs")
_warnings = Seldom(60.0)


class ToolInstances:
    """One instance of each tool, opened together and released exactly once. Each call of a tool has a deadline.

    Args:
        tools: the tools by name.
        task: its `tools_kwargs` are passed to them.
        cut: returns what remains of a result's text.
        timeout: wall seconds for any one call of a tool's methods, without the time that it waits for permits.
        queue_timeout: wall seconds that one call may wait for permits.
    """

    def __init__(
        self,
        tools: Mapping[str, BaseTool],
        task: Task,
        cut: Callable[[str], str],
        timeout: float,
        queue_timeout: float,
    ) -> None:
        self._tools, self._task, self._cut = tools, task, cut
        self._timeout, self._queue_timeout = timeout, queue_timeout
        self._ids: dict[str, str] = {}
        self._released = False  # the episode is over or did not come about: a tool that opens later is released at once

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that have an instance now."""
        return tuple(self._ids)

    async def open(self) -> None:
        """Open every tool. Where one raises, or the caller is cancelled, none is left behind.

        Raises:
            DeadlineError: a tool's `create` took too long. All else that it raises passes through.
        """
        try:
            for name, made in self._tools.items():
                opening = made.create(**self._kwargs(name, "create_kwargs"))
                if _is_default(made.create, BaseTool.create):
                    self._ids[name] = await opening
                else:
                    await self._keep(name, opening)
        except BaseException:
            await self.release()
            raise

    async def answer(self, request: ToolCall | ToolCallError) -> ToolCallRecord:
        """Run a call that was checked, or say what was wrong with it. What a tool raises is in the record."""
        if isinstance(request, ToolCallError):
            text = encodable(request.message)
            return ToolCallRecord(request.id, request.name, None, request.problem.value, text)
        made, instance = self._tools[request.name], self._ids[request.name]
        kwargs = self._kwargs(request.name, "execute_kwargs")
        started = time.monotonic()
        status, failure = "ok", ""
        try:
            call = made.execute(instance, request.arguments, **kwargs)
            result = ToolResult.of(await with_deadline(call, self._timeout, queue=self._queue_timeout))
            status = str(result.metrics.get("status", "ok"))
            if result.metrics.get("infra_failure", False):
                failure = str(result.metrics.get("error", "it did not say why"))
        except DeadlineError as error:
            status = "timeout"
            if error.queued:
                failure, result = str(error), _unavailable(request.name, str(error))
            else:
                result = ToolResult(f"[The tool {request.name!r} {error} and was stopped]")
        except Exception as error:  # noqa: BLE001  a tool's failure is the model's observation
            _log.debug("tool %r raised", request.name, exc_info=True)
            status, said = "error", error_text(error)
            if is_infrastructure(error):
                failure, result = said, _unavailable(request.name, said)
            else:
                result = ToolResult(f"[The tool {request.name!r} failed: {said}]")
        if failure:
            _warn(request.name, failure)
        return ToolCallRecord(
            id=request.id,
            name=request.name,
            arguments=request.arguments,
            status=status,
            text=encodable(self._cut(result.text)),
            reward=result.reward,
            seconds=time.monotonic() - started,
            infra_failure=bool(failure),
            metrics=result.metrics,
        )

    async def reward(self, name: str) -> float:
        """Return what a tool adds to the episode's reward.

        Raises:
            DeadlineError: `calc_reward` took too long. All else that it raises passes through.
        """
        made = self._tools[name]
        call = made.calc_reward(self._ids[name], **self._kwargs(name, "calc_reward_kwargs"))
        if _is_default(made.calc_reward, BaseTool.calc_reward):
            return await call
        return float(await with_deadline(call, self._timeout, queue=self._queue_timeout))

    async def fork(self) -> ToolInstances:
        """Return copies of all instances, which are released on their own. Where one raises, none is left behind.

        Raises:
            ForkNotSupportedError: a tool cannot be forked; names it.
            DeadlineError: a tool's `fork` took too long. All else that it raises passes through.
        """
        twin = ToolInstances(self._tools, self._task, self._cut, self._timeout, self._queue_timeout)
        try:
            for name, instance in self._ids.items():
                await twin._keep(name, self._tools[name].fork(instance))
        except BaseException:
            await twin.release()
            raise
        return twin

    async def release(self) -> None:
        """Release every instance exactly once, even when cancelled meanwhile. What a tool raises is logged."""
        self._released = True
        ids, self._ids = self._ids, {}
        # What a tool does not override never waits, and needs no task with a deadline.
        ids = {name: one for name, one in ids.items() if not _is_default(self._tools[name].release, BaseTool.release)}
        if ids:
            await shielded(self._release(ids))

    async def _keep(self, name: str, opening: Coroutine[Any, Any, str]) -> None:
        """Await a tool's `create` or `fork` and keep the instance."""

        async def keep() -> None:
            instance = await opening
            if self._released:
                await self._release({name: instance})
            else:
                self._ids[name] = instance

        await with_deadline(keep(), self._timeout, queue=self._queue_timeout)

    async def _release(self, ids: Mapping[str, str]) -> None:
        for name, instance in ids.items():
            call = self._tools[name].release(instance, **self._kwargs(name, "release_kwargs"))
            try:
                await with_deadline(call, self._timeout, queue=self._queue_timeout)
            except Exception as error:  # noqa: BLE001  the episode's result is worth more
                _log.warning("releasing tool %r failed: %s: %s", name, type(error).__name__, error)

    def _kwargs(self, name: str, call: str) -> Mapping[str, Any]:
        """Return the task's arguments for one of a tool's methods."""
        kwargs: Mapping[str, Any] = self._task.tools_kwargs.get(name, {}).get(call) or {}
        return kwargs


def _is_default(method: Callable[..., Any], default: Callable[..., Any]) -> bool:
    """Whether a method of a tool is the one of `BaseTool`, which does next to nothing and never waits."""
    return getattr(method, "__func__", None) is default


def _unavailable(name: str, error: str) -> ToolResult:
    """Return what the model reads where the infrastructure failed: no host, path or number of ours."""
    text = f"[The tool {name!r} is not available now; your call is not to blame]"
    return ToolResult(text, 0.0, {"infra_failure": True, "error": error})


def _warn(name: str, failure: str) -> None:
    """Log a failure of the infrastructure. A server that is down fails thousands of calls: one line a minute."""
    more = _warnings.due(name)
    if more is not None:
        since = f" ({more} more since the last of these lines)" if more else ""
        _log.warning("the infrastructure of the tool %r failed: %s%s", name, shorten(failure), since)


def encodable(text: str) -> str:
    """Replace lone surrogates, which a model can write as JSON escapes and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")
