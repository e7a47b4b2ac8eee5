"""Many living copies of one warm process: forks of a session, and plain `os.fork` beside them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from sandbox_measures.in_process import local
from sandbox_measures.memory import proportional_mb
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


FORK_MEASURES: dict[str, Callable[[Scale], Awaitable[Sample]]] = {
    "plain-forks": measure_plain_forks,
    "plain-forks-memory": measure_plain_forks,
    "session-forks": measure_forks,
    "session-forks-memory": measure_forks,
}
