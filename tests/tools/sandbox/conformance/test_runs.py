"""One run: languages, permits, and what is left of it, beside what the suite of all sandboxes tests."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.tools.sandbox.abuse.scene import Scene
from tests.tools.sandbox.conformance.sandbox_makers import ERROR, LEVELS, MAKERS, OK, TIMEOUT, gone, named, seen
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_bash(each):
    assert (await each.run("echo $((6*7)); exit 3", language="bash")).stdout == "42\n"
    assert (await each.run("exit 3", language="bash")).return_code == 3
    assert (await each.run("while :; do :; done", language="bash", timeout=0.5)).status is TIMEOUT


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
async def test_a_compiled_language(forking):
    good = await forking.run('#include <stdio.h>\nint main() { puts("hello"); return 4; }', language="c")
    assert (good.status, good.stdout, good.return_code) == (ERROR, "hello\n", 4)
    assert good.compile is not None
    assert good.compile.ok
    bad = await forking.run("int main() { return x; }", language="c")
    assert bad.status is ExecutionStatus.COMPILE_ERROR
    assert "x" in bad.stderr


async def test_cancelling_a_call_kills_what_it_ran(each):
    mark = Scene().mark
    call = asyncio.create_task(each.run(named(mark) + "import time\ntime.sleep(600)", timeout=600))
    assert await seen(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(mark)
    assert (await each.run("print(1)")).stdout == "1\n"


async def test_cancelling_a_call_that_waits_for_its_turn():
    for name in LEVELS[:1]:
        async with MAKERS[name](max_running=1) as narrow:
            first = asyncio.create_task(narrow.run("import time\ntime.sleep(1)\nprint(1)"))
            await asyncio.sleep(0.3)
            second = asyncio.create_task(narrow.run("print(2)"))
            await asyncio.sleep(0.1)
            second.cancel()
            assert (await first).stdout == "1\n"
            assert (await asyncio.wait_for(narrow.run("print(3)"), 60)).stdout == "3\n"


async def test_waiting_for_a_turn_is_not_on_the_programs_clock():
    for name in LEVELS[:1]:
        async with MAKERS[name](max_running=1) as narrow:
            for seconds in (0.5, 10):  # the second time for a busy machine, which may need so long to begin
                code = f"import time\ntime.sleep({seconds})\nprint(1)"
                results = await asyncio.gather(*(narrow.run(code, timeout=2.5 * seconds) for _ in range(4)))
                if all(result.ok for result in results):
                    break
            assert [result.status for result in results] == [OK] * 4


@pytest.mark.parametrize("maker", MAKERS)
async def test_closing_ends_what_runs(maker):
    made = MAKERS[maker]()
    mark = Scene().mark
    call = asyncio.create_task(made.run(named(mark) + "import time\ntime.sleep(600)", timeout=600))
    assert await seen(mark)
    await made.close()
    await made.close()
    assert await gone(mark)
    try:
        result = await asyncio.wait_for(call, 60)
    except SandboxError:
        return
    assert not result.ok
