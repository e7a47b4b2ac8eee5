"""What a `LocalSandbox` costs, and plain `python -I -c` beside it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import gymnasium
from sandbox_measures.processes import proportional_mb
from sandbox_measures.samples import STACK, STACK_CODE, Sample, Scale, best_of, closed_loop, percentile, summary

import toolgym  # noqa: F401  registers the envs
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.base import Limits, Session


async def plain(code: str) -> bool:
    """Run code as without a sandbox: a fresh interpreter. Returns whether it succeeded."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code)
    return await process.wait() == 0


@contextlib.asynccontextmanager
async def local(scale: Scale, **options: Any) -> AsyncIterator[LocalSandbox]:
    """A sandbox whose template processes have started and are warm."""
    options = {"level": scale.level, "preload": STACK, **scale.options, **options}
    async with LocalSandbox(**options) as sandbox:
        await asyncio.gather(*(sandbox.run(code) for code in ("pass", STACK_CODE) for _ in range(8)))
        yield sandbox


async def measure_runs(scale: Scale, code: str, at_once: int) -> Sample:
    async with local(scale) as sandbox:

        async def call() -> bool:
            return (await sandbox.run(code)).ok

        count = scale.executions if at_once == 1 else scale.executions * 3
        return await best_of(lambda: closed_loop(call, at_once, count), scale.rounds)


async def measure_plain(scale: Scale, code: str, at_once: int) -> Sample:
    count = scale.executions // (10 if code != "pass" else 2)
    return await best_of(lambda: closed_loop(lambda: plain(code), at_once, max(count, 5)), scale.rounds)


async def measure_session_open(scale: Scale) -> Sample:
    async with local(scale) as sandbox:

        async def call() -> bool:
            opened.append(await sandbox.session())
            return (await opened[-1].run_cell("x = 1\nx")).result == "1"

        async def once() -> Sample:
            sample = await closed_loop(call, 1, scale.executions // 5)
            await asyncio.gather(*(session.close() for session in opened))
            opened.clear()
            return sample

        opened: list[Session] = []
        return await best_of(once, scale.rounds)


async def measure_session_cell(scale: Scale) -> Sample:
    async with local(scale) as sandbox, await sandbox.session() as session:
        await session.run_cell("x = 1")

        async def call() -> bool:
            return (await session.run_cell("x + 1")).result == "2"

        return await best_of(lambda: closed_loop(call, 1, scale.executions * 3), scale.rounds)


async def measure_session_memory(scale: Scale) -> Sample:
    async with local(scale) as sandbox:
        sessions = [await sandbox.session()]
        await sessions[0].run_cell("x = 1")
        await asyncio.sleep(0.3)
        before = proportional_mb(sandbox.template_ids)
        count = 64
        for _ in range(count):
            sessions.append(await sandbox.session())
            await sessions[-1].run_cell("x = 1")
        await asyncio.sleep(0.3)
        return Sample(amount=(proportional_mb(sandbox.template_ids) - before) / count)


async def measure_session_fork(scale: Scale) -> Sample:
    async with local(scale, limits=Limits(memory_mb=2048)) as sandbox, await sandbox.session() as session:
        made = "import numpy\ndata = numpy.ones(100 * 2**20 // 8)\ndata.nbytes >> 20"
        errors = (await session.run_cell(made)).result != "100"
        times: list[float] = []
        began = time.perf_counter()
        for _ in range(max(10, scale.executions // 10)):
            start = time.perf_counter()
            fork = await session.fork()
            times.append(time.perf_counter() - start)
            errors += (await fork.run_cell("int(data.sum()) >> 17")).result != "100"
            await fork.close()
        return summary(times, time.perf_counter() - began, int(errors))


async def measure_many_sessions(scale: Scale) -> Sample:
    async with local(scale) as sandbox:
        began = time.perf_counter()
        sessions = []
        for number in range(scale.sessions):
            sessions.append(await sandbox.session())
            await sessions[-1].run_cell(f"n = {number}")
        rate = len(sessions) / (time.perf_counter() - began)
        errors = 0
        times: list[float] = []
        for number, session in enumerate(sessions):
            start = time.perf_counter()
            errors += (await session.run_cell("n")).result != str(number)
            times.append(time.perf_counter() - start)
        amount = proportional_mb(sandbox.template_ids)
        await asyncio.gather(*(session.close() for session in sessions))
        return Sample(rate, percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3, errors, amount)


async def measure_sleepers(scale: Scale) -> Sample:
    """The seconds of a step of 64 envs in which 32 programs sleep for one, which are also the ratio to that bound."""
    action = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "%s"}}</tool_call>'
    envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=64)
    try:
        times: list[float] = []
        errors = 0
        for _ in range(scale.rounds):
            envs.reset(seed=0)
            envs.step((action % "print(6 * 7)",) * 64)  # opens the sessions
            start = time.perf_counter()
            obs, *_ = envs.step((action % "import time; time.sleep(1); print(6 * 7)", action % "print(6 * 7)") * 32)
            times.append(time.perf_counter() - start)
            errors += sum(one[0]["content"] != "42" for one in obs)
    finally:
        envs.close()
    return Sample(errors=errors, amount=percentile(times, 0.5))


LOCAL_MEASURES: dict[str, Callable[[Scale], Awaitable[Sample]]] = {
    "plain-1": lambda scale: measure_plain(scale, "pass", 1),
    "plain-32": lambda scale: measure_plain(scale, "pass", 32),
    "plain-stack-1": lambda scale: measure_plain(scale, STACK_CODE, 1),
    "pass-1": lambda scale: measure_runs(scale, "pass", 1),
    "pass-stack-1": lambda scale: measure_runs(scale, STACK_CODE, 1),
    "pass-32": lambda scale: measure_runs(scale, "pass", 32),
    "pass-stack-32": lambda scale: measure_runs(scale, STACK_CODE, 32),
    "session-open": measure_session_open,
    "session-cell": measure_session_cell,
    "session-memory": measure_session_memory,
    "session-fork": measure_session_fork,
    "session-2000": measure_many_sessions,
    "sleepers": measure_sleepers,
    "pass-256": lambda scale: measure_runs(scale, "pass", 256),
    "pass-stack-256": lambda scale: measure_runs(scale, STACK_CODE, 256),
}
