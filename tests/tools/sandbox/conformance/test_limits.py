"""Limits are statuses of their own; the isolation is told; templates are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import ERROR, ISOLATED, LEVELS, MAKERS, OK
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.local import LocalSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_memory_is_its_own_status(isolated):
    result = await isolated.run("print('begun')\nkept = [b'x' * (20 << 20) for _ in range(50)]", timeout=60)
    assert result.status is ExecutionStatus.MEMORY_LIMIT
    assert result.stdout == "begun\n"


async def test_memory_of_one_call(isolated):
    code = "kept = b'x' * (120 << 20)\nprint(len(kept))"
    assert (await isolated.run(code, timeout=60)).ok
    assert (await isolated.run(code, memory_mb=64, timeout=60)).status is ExecutionStatus.MEMORY_LIMIT


async def test_a_program_may_live_with_too_little_memory(isolated):
    code = "try:\n    x = bytearray(4 << 30)\nexcept MemoryError:\n    print('less then')"
    result = await isolated.run(code, timeout=60)
    assert (result.status, result.stdout) == (OK, "less then\n")


async def test_memory_of_children_counts_too(forking):
    code = (
        "import os, time\nfor n in range(6):\n    if os.fork() == 0:\n        kept = b'x' * (90 << 20)\n"
        "        time.sleep(100)\n        os._exit(0)\ntime.sleep(100)"
    )
    began = time.monotonic()
    result = await forking.run(code, timeout=90)
    assert result.status is ExecutionStatus.MEMORY_LIMIT, result
    assert time.monotonic() - began < 60


async def test_processor_time_is_its_own_status(isolated):
    result = await isolated.run("print('begun')\nwhile True: pass", timeout=300)
    assert result.status is ExecutionStatus.CPU_LIMIT
    assert result.stdout == "begun\n"
    assert result.duration < 250


async def test_the_size_of_a_file_is_its_own_status(isolated):
    code = "print('begun')\nwith open('big', 'wb') as file:\n    for n in range(20): file.write(b'x' * (1 << 20))"
    result = await isolated.run(code)
    assert result.status is ExecutionStatus.FILE_LIMIT
    assert result.stdout == "begun\n"


async def test_the_disk_is_limited():
    if "namespaces" not in MAKERS:
        pytest.skip("needs the level 'namespaces'")
    async with MAKERS["namespaces"]() as made:
        code = "for n in range(20): open(str(n), 'wb').write(b'x' * (4 << 20))"
        result = await made.run(code)
        assert result.status is ExecutionStatus.DISK_LIMIT
        assert "No space left on device" in result.stderr
        result = await made.run("for n in range(2000): open(str(n), 'wb').close()")
        assert result.status is ExecutionStatus.DISK_LIMIT
        assert "No space left on device" in result.stderr


async def test_processes_and_descriptors_are_limited(forking):
    result = await forking.run("import os, time\nfor n in range(200):\n    if not os.fork(): time.sleep(9)")
    assert result.status is ERROR
    assert "BlockingIOError" in result.stderr
    result = await forking.run("kept = [open('/dev/null') for n in range(300)]")
    assert "Too many open files" in result.stderr


async def test_the_isolation_is_told(confined):
    await confined.run("1")
    assert confined.isolation.level in LEVELS
    assert confined.isolation.seccomp
    assert confined.isolation.network == "off"


async def test_a_minimum_can_be_demanded():
    with pytest.raises(ConfigError, match="namespaces"):
        LocalSandbox(require="namspaces")
    async with LocalSandbox(require="landlock", preload=()) as made:
        assert (await made.run("print(1)")).ok
        assert made.isolation.level == LEVELS[0]


@pytest.mark.parametrize("maker", ISOLATED)
async def test_a_template_that_dies_loses_no_call(maker):
    async with MAKERS[maker]() as made:
        await made.run("1")
        calls = [asyncio.create_task(made.run(f"import time\ntime.sleep(0.3)\nprint({n})")) for n in range(8)]
        await asyncio.sleep(0.1)
        for pid in made.template_ids:
            os.kill(pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*calls), 180)
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
