"""Forks and checkpoints of a warm session. `os.fork` in a plain process and in the same session are the bounds."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from sandbox_measures.in_process import local
from sandbox_measures.processes import cpu_seconds, proportional_mb
from sandbox_measures.samples import Sample, Scale

from toolgym.tools.sandbox.base import Limits

WARM = "import numpy\ndata = numpy.arange(1000)\nint(data.sum())"
SUM = "499500"

PLAIN = f"""
import os, sys
import numpy
data = numpy.arange(1000)
print("warm", flush=True)
for line in sys.stdin:
    ends = []
    for _ in range(int(line)):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.write(theirs, b"1" if int(data.sum()) == {SUM} else b"0")
            os.read(0, 1)
            os._exit(0)
        os.close(theirs)
        ends.append(ours)
    print(sum(os.read(end, 1) == b"1" for end in ends), flush=True)
"""

BARE = """
import os, resource
def used():
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
before = used()
for _ in range(50):
    child = os.fork()
    if child == 0:
        int(data.sum())
        os._exit(0)
    os.waitpid(child, 0)
(used() - before) / 50 * 1e3
"""


async def measure_plain_forks(scale: Scale) -> Sample:
    """Copies of a process with numpy without protection, each of which has computed a sum."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", PLAIN, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    count = scale.sessions // 2
    try:
        await process.stdout.readline()
        before, start = proportional_mb([process.pid]), time.perf_counter()
        process.stdin.write(f"{count}\n".encode())
        right = int(await process.stdout.readline())
        rate = count / (time.perf_counter() - start)
        memory = (proportional_mb([process.pid]) - before) / count if os.geteuid() == 0 else 0.0
    finally:
        process.stdin.close()
        await process.wait()
    return Sample(rate, errors=count - right, amount=memory)


async def measure_forks(scale: Scale) -> Sample:
    """Forks of a session by one call, each of which computes the same sum."""
    count = scale.sessions // 2
    limits = Limits(memory_mb=16384)
    async with local(scale, limits=limits, templates=1) as sandbox, await sandbox.session() as session:
        errors = (await session.run_cell(WARM)).result != SUM
        before, start = proportional_mb(sandbox.template_ids), time.perf_counter()
        forks = await session.fork(n=count)
        results = await asyncio.gather(*(fork.run_cell("int(data.sum())") for fork in forks))
        rate = count / (time.perf_counter() - start)
        memory = (proportional_mb(sandbox.template_ids) - before) / count
        errors += sum(result.result != SUM for result in results)
        await asyncio.gather(*(fork.close() for fork in forks))
    return Sample(rate, errors=int(errors), amount=memory)


async def measure_bare_fork(scale: Scale) -> Sample:
    """CPU time of an `os.fork` in a session: the kernel copies its mappings, and ends a copy that computed a sum."""
    async with local(scale, templates=1) as sandbox, await sandbox.session() as session:
        errors = (await session.run_cell(WARM)).result != SUM
        return Sample(errors=int(errors), amount=float((await session.run_cell(BARE)).result or "nan"))


async def measure_fork_cpu(scale: Scale) -> Sample:
    """CPU time of a fork of many, in all processes: the host's, the broker, the session, its helper, and the fork."""
    count = scale.sessions // 20
    async with local(scale, limits=Limits(memory_mb=4096), templates=1) as sandbox, await sandbox.session() as session:
        errors = (await session.run_cell(WARM)).result != SUM
        before, wall = cpu_seconds(sandbox.template_ids) + time.process_time(), time.perf_counter()
        forks = await session.fork(n=count)
        wall = time.perf_counter() - wall
        used = cpu_seconds(sandbox.template_ids) + time.process_time() - before
        results = await asyncio.gather(*(fork.run_cell("int(data.sum())") for fork in forks))
        errors += sum(result.result != SUM for result in results)
        await asyncio.gather(*(fork.close() for fork in forks))
    return Sample(count / wall, errors=int(errors), amount=used / count * 1e3)


async def measure_checkpoint_cpu(scale: Scale) -> Sample:
    """CPU time that a checkpoint adds to a turn. Each replaces the last one, which ends."""
    count = scale.executions
    async with local(scale, templates=1) as sandbox, await sandbox.session() as session:
        errors = (await session.run_cell(WARM)).result != SUM
        times = []
        for saves in (False, True):
            before = cpu_seconds(sandbox.template_ids) + time.process_time()
            for _ in range(count):
                if saves:
                    await session.checkpoint("before")
                errors += (await session.run_cell("int(data.sum())")).result != SUM
            times.append(cpu_seconds(sandbox.template_ids) + time.process_time() - before)
    return Sample(errors=int(errors), amount=(times[1] - times[0]) / count * 1e3)


FORK_MEASURES: dict[str, Callable[[Scale], Awaitable[Sample]]] = {
    "plain-forks": measure_plain_forks,
    "plain-forks-memory": measure_plain_forks,
    "bare-fork": measure_bare_fork,
    "session-fork-cpu": measure_fork_cpu,
    "session-checkpoint-cpu": measure_checkpoint_cpu,
    "session-forks": measure_forks,
    "session-forks-memory": measure_forks,
}
