"""`check_tool`, and the checks that it is made of (`TOOL_CHECKS`). Each takes a tool and the arguments of a good call.

Plain coroutines without pytest; `ToolSuite` is the same as tests.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from toolgym.testing.errors import ConformanceError, expect
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import ConfigError, ForkNotSupportedError, shorten
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.schema import ToolSchema

AT_ONCE = 8
"""Instances that are open at the same time."""


@dataclass(frozen=True)
class ToolSubject:
    """A tool to test, the `arguments` of a call that it can carry out any number of times, and what a task would give.

    Fresh instances of a `repeatable` tool answer the same calls with the same texts. The checks of other tools leave
    out what they cannot tell: one episode's state from another's.
    """

    tool: BaseTool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    create_kwargs: Mapping[str, Any] = field(default_factory=dict)
    execute_kwargs: Mapping[str, Any] = field(default_factory=dict)
    repeatable: bool = True

    @asynccontextmanager
    async def instance(self) -> AsyncIterator[str]:
        instance = await self.tool.create(**self.create_kwargs)
        try:
            yield instance
        finally:
            await self.tool.release(instance)

    async def call(self, instance: str) -> ToolResult:
        """Carry out one call, as an env does: with arguments of its own."""
        arguments = self.tool.tool_schema.with_defaults(json.loads(json.dumps(dict(self.arguments))))
        try:
            result = ToolResult.of(await self.tool.execute(instance, arguments, **self.execute_kwargs))
        except ConfigError as error:
            raise ConformanceError(f"execute of the tool {self.tool.name!r}: {error}") from error
        expect(
            isinstance(result.text, str) and math.isfinite(result.reward),
            f"the result of {self.tool.name!r} has a text and a finite reward",
            result,
        )
        expect(
            all(isinstance(name, str) for name in result.metrics),
            f"the metrics of {self.tool.name!r} have names that are texts",
            result.metrics,
        )
        return result

    async def texts(self, instance: str, calls: int) -> list[str]:
        return [(await self.call(instance)).text for _ in range(calls)]


async def check_tool(
    tool: BaseTool | ToolFunction[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    create_kwargs: Mapping[str, Any] | None = None,
    execute_kwargs: Mapping[str, Any] | None = None,
    repeatable: bool = True,
    forks: bool | None = None,
) -> None:
    """Check that a tool keeps the contract of `BaseTool`. It is not closed: that is its owner's to do.

    await check_tool(NotesTool(), {"note": "12 * 34 = 408"})

    Args:
        tool: the tool, or a function with `@tool`.
        arguments: of a call that it can carry out any number of times.
        create_kwargs: what a task would give to `create`.
        execute_kwargs: what a task would give to `execute`.
        repeatable: whether fresh instances answer the same calls with the same texts.
        forks: whether the tool can be forked. None: either will do.

    Raises:
        ConformanceError: it does not; says what was expected and what was given.
        ConfigError: the arguments do not fit the tool's schema.
    """
    try:
        checked = as_tool(tool)
    except ConfigError as error:
        raise ConformanceError(f"a tool is a BaseTool; got {shorten(tool)}") from error
    subject = ToolSubject(checked, arguments or {}, create_kwargs or {}, execute_kwargs or {}, repeatable)
    for check in TOOL_CHECKS.values():
        await check(subject)
    if forks is None:
        forks = await can_fork(subject)
    await (check_fork if forks else check_no_fork)(subject)


async def check_schema(subject: ToolSubject) -> None:
    """The schema is valid and in the OpenAI shape, survives JSON, and accepts the arguments."""
    tool = subject.tool
    expect(isinstance(tool.tool_schema, ToolSchema), "tool_schema is a ToolSchema", tool.tool_schema)
    expect(tool.name == tool.tool_schema.name, "name is that of the schema", tool.name)
    shape = tool.get_openai_tool_schema()
    try:
        again = ToolSchema.from_openai(json.loads(json.dumps(shape)))
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"get_openai_tool_schema gives the OpenAI shape, as JSON: {error}") from error
    expect(again.to_openai() == shape, "the schema is the same after JSON", again.to_openai())
    problems = tool.tool_schema.problems(subject.arguments)
    if problems:
        raise ConfigError(
            f"the arguments to test {tool.name!r} with do not fit its schema: {' '.join(problems)} "
            "Give `arguments` of a good call."
        )


async def check_create(subject: ToolSubject) -> None:
    """`create` gives ids that differ, and takes an id."""
    tool = subject.tool
    async with subject.instance() as first, subject.instance() as second:
        expect(isinstance(first, str) and first != "", "create returns an id, a text that is not empty", first)
        expect(first != second, "two instances that are open at once have different ids", first)
    for _ in range(2):  # free again after its release
        id = await tool.create("an id of the caller", **subject.create_kwargs)
        try:
            expect(id == "an id of the caller", "create returns the id that it was given", id)
            await subject.call(id)
        finally:
            await tool.release(id)


async def check_execute(subject: ToolSubject) -> None:
    """`execute` gives a `ToolResult`, or what `ToolResult.of` reads, again and again."""
    async with subject.instance() as instance:
        await subject.texts(instance, 3)


async def check_calls_at_once(subject: ToolSubject) -> None:
    """Calls of one turn come to one instance at the same time."""
    async with subject.instance() as instance:
        await asyncio.gather(*(subject.call(instance) for _ in range(4)))


async def check_reward(subject: ToolSubject) -> None:
    """`calc_reward` gives a finite number, with and without a call before."""
    for calls in (0, 1):
        async with subject.instance() as instance:
            await subject.texts(instance, calls)
            reward = await subject.tool.calc_reward(instance)
            finite = isinstance(reward, int | float) and math.isfinite(reward)
            expect(finite, f"calc_reward of {subject.tool.name!r} returns a finite number", reward)


async def check_release(subject: ToolSubject) -> None:
    """`release` ends one instance and no other, used or not."""
    async with subject.instance() as kept:
        before = await subject.call(kept)
        for calls in (0, 1):
            async with subject.instance() as other:
                await subject.texts(other, calls)
        after = await subject.call(kept)
    if subject.repeatable:
        async with subject.instance() as alone:
            expected = await subject.texts(alone, 2)
        expect([before.text, after.text] == expected, "releasing an instance leaves the others as they are", after.text)


async def check_instances(subject: ToolSubject) -> str | None:
    """Instances that are open at once do not mix what they keep."""
    if not subject.repeatable:
        return "the tool is not repeatable"
    async with subject.instance() as alone:
        expected = await subject.texts(alone, 3)

    async def episode() -> list[str]:
        async with subject.instance() as instance:
            return await subject.texts(instance, 3)

    for texts in await asyncio.gather(*(episode() for _ in range(AT_ONCE))):
        expect(
            texts == expected,
            f"the same three calls say the same in each instance of {subject.tool.name!r}: {expected!r} (a tool that "
            "answers otherwise each time is not `repeatable`)",
            texts,
        )
    return None


TOOL_CHECKS: dict[str, Callable[[ToolSubject], Awaitable[str | None]]] = {
    "schema": check_schema,
    "create": check_create,
    "execute": check_execute,
    "reward": check_reward,
    "release": check_release,
    "calls_at_once": check_calls_at_once,
    "instances_do_not_mix": check_instances,
}
"""Each check by its name, forks apart. One returns why the tool could not be checked, or None."""


async def can_fork(subject: ToolSubject) -> bool:
    async with subject.instance() as instance:
        await subject.call(instance)
        try:
            copy = await subject.tool.fork(instance)
        except ForkNotSupportedError:
            return False
        await subject.tool.release(copy)
        return True


async def check_fork(subject: ToolSubject) -> None:
    """A fork goes on from the state of its origin, which goes on by itself."""
    tool = subject.tool
    async with subject.instance() as alone:
        expected = await subject.texts(alone, 3)
    origin = await tool.create(**subject.create_kwargs)
    released = False
    try:
        await subject.call(origin)
        copy = await tool.fork(origin)
        try:
            expect(isinstance(copy, str) and copy not in ("", origin), "fork returns an id of its own", copy)
            on = await subject.texts(origin, 2)
            await tool.release(origin)
            released = True
            twin = await subject.texts(copy, 2)
        finally:
            await tool.release(copy)
    finally:
        if not released:
            await tool.release(origin)
    if subject.repeatable:
        expect(on == expected[1:], f"after a fork the origin goes on: {expected[1:]!r}", on)
        expect(twin == expected[1:], f"a fork goes on from the same state, by itself: {expected[1:]!r}", twin)


async def check_no_fork(subject: ToolSubject) -> None:
    """A tool that cannot be forked says so by name, and the instance goes on."""
    async with subject.instance() as instance:
        try:
            copy = await subject.tool.fork(instance)
        except ForkNotSupportedError as error:
            expect(subject.tool.name in str(error), f"the error names the tool {subject.tool.name!r}", error)
        else:
            raise ConformanceError(f"fork raises ForkNotSupportedError; got {copy!r}")
        await subject.call(instance)
