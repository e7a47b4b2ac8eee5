"""Sessions: magics, limits, hostile cells, and what is left of them, beside what the suite of all sandboxes tests."""

from __future__ import annotations

import asyncio

import pytest

from tests.tools.sandbox.abuse.scene import Scene, marked
from tests.tools.sandbox.conformance.sandbox_makers import gone, named, seen
from toolgym.tools.errors import SandboxBusyError, SandboxError
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.base import ExecutionStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_process_sandbox_has_no_sessions():
    async with ProcessSandbox() as made:
        with pytest.raises(SandboxError, match="sessions"):
            await made.session()


@pytest.mark.parametrize(
    ("code", "echo"),
    [
        ("%time x = 1\nx", "1"),
        ("%time 1 + 1", "2"),
        ("%%time\n%matplotlib inline\nx = 3\nx", "3"),
        ("if True:\n    %matplotlib inline\n1", "1"),
    ],
)
async def test_the_last_expression_is_echoed_beside_magics(session, code, echo):
    assert (await session.run_cell(code)).result == echo


@pytest.mark.parametrize(
    ("cell", "magic"),
    [
        ("%timeit x", "%timeit"),
        ("%time", "%time"),
        ("%time -q x", "%time"),
        ("\n%%bash\nls", "%%bash"),
        ("y = %timeit -o x", "%timeit"),
        ("?len", "?len"),
        ("def f(): pass\nf.__doc__??", "f.__doc__??"),
        ("  %pip install \\\n   x", "%pip"),
    ],
)
async def test_what_only_ipython_can_do_is_answered_by_a_sentence(session, cell, magic):
    result = await session.run_cell(cell)
    assert (result.stdout, result.result) == (f"[{magic} is not available here: this is plain Python]\n", None)


async def test_too_much_memory_in_a_cell(isolated):
    async with await isolated.session() as session:
        result = await session.run_cell("kept = [b'x' * (20 << 20) for _ in range(50)]", timeout=60)
        assert not result.status.startswith("sandbox")
        assert result.status is ExecutionStatus.MEMORY_LIMIT or (
            result.error is not None and result.error.name == "MemoryError"
        )


@pytest.mark.parametrize(
    "code",
    [
        # Every descriptor of the session gets what might be the sandbox's own words.
        'import os, struct\nb = b\'{"result": "forged", "error": null, "ready": true}\'\n'
        "for fd in range(3, 64):\n"
        "    for f in (struct.pack('<I', len(b)) + b, struct.pack('>I', len(b)) + b, b'\\xff' * 70000, b + b'\\n'):\n"
        "        try: os.set_blocking(fd, False); os.write(fd, f)\n"
        "        except OSError: pass\n'mine'",
        "import os\nos.closerange(3, 64)",
        "import os, socket\nfor fd in range(3, 64):\n"
        "    try:\n        s = socket.socket(fileno=os.dup(fd))\n"
        "        socket.send_fds(s, [b'\\0' * 9], [0, 1, 2])\n    except OSError: pass",
    ],
    ids=["forged", "closed", "descriptors"],
)
async def test_a_hostile_cell_harms_only_its_session(isolated, code):
    neighbour = await isolated.session()
    await neighbour.run_cell("x = 42")
    templates = isolated.template_ids
    hostile = await isolated.session()
    result = await asyncio.wait_for(hostile.run_cell(code, timeout=5), 60)
    assert result.status in set(ExecutionStatus)
    follow = await asyncio.wait_for(hostile.run_cell("1 + 1", timeout=5), 60)
    assert follow.status in set(ExecutionStatus)
    assert (await neighbour.run_cell("x")).result == "42"
    assert set(templates) <= set(isolated.template_ids)
    await hostile.close()
    await neighbour.close()


async def test_cancelling_a_cell(isolated):
    mark = Scene().mark
    session = await isolated.session()
    call = asyncio.create_task(session.run_cell(named(mark) + "import time\ntime.sleep(600)", timeout=600))
    assert await seen(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Either the cell was interrupted and the session lives, or both are gone; nothing goes on unseen.
    after = await asyncio.wait_for(session.run_cell("1 + 1", timeout=30), 60)
    assert after.result == "2" or not after.alive
    await session.close()
    assert await gone(mark)


async def test_a_closed_session(isolated):
    mark = Scene().mark
    session = await isolated.session()
    await session.run_cell(named(mark))
    assert marked(mark)
    await session.close()
    await session.close()
    assert not session.alive
    assert await gone(mark)
    assert (await session.run_cell("1")).status is ExecutionStatus.SANDBOX_ERROR


async def test_children_of_a_session_die_with_it(forking):
    mark = Scene().mark
    session = await forking.session()
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
    code += "    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(0)"
    await session.run_cell(named(mark) + code)
    assert marked(mark)
    await session.close()
    assert await gone(mark)


async def test_a_session_outlives_its_launcher(forking):
    """Programs are started by a process of the session's own user, which can kill it."""
    async with await forking.session() as session:
        other = await session.start("sleep 600")
        killer = await session.start("read line; kill -9 $PPID; sleep 600")
        await killer.write_stdin("now\n")
        assert (await killer.wait(60), await other.wait(60)) == (-9, -9)
        assert (await session.exec(["echo", "again"])).stdout == "again\n"
        assert (await session.run_cell("1")).result == "1"


async def test_a_launcher_that_does_not_kill_in_time_costs_its_session(forking):
    async with await forking.session() as neighbour:
        for seconds in (0.3, 10):  # the second time for a busy machine, which may not have begun with it
            async with await forking.session() as session:
                result = await asyncio.wait_for(session.exec("kill -STOP $PPID; sleep 600", timeout=seconds), 60)
                assert result.status is ExecutionStatus.TIMEOUT
                alive = (await session.run_cell("1")).alive
            if not alive:
                break
        assert not alive
        assert (await neighbour.exec(["echo", "fine"])).stdout == "fine\n"


async def test_programs_die_with_their_session(forking):
    mark = Scene().mark
    session = await forking.session()
    python = f"import os, time\nos.setsid()\n{named(mark)}time.sleep(600)"
    background = await session.start(["python3", "-c", f"import os\nos.fork() or exec({python!r})\nos.wait()"])
    assert await seen(mark)
    await session.close()
    assert await gone(mark)
    await background.close()


async def test_cancelling_a_program_kills_it(forking):
    mark = Scene().mark
    async with await forking.session() as session:
        call = asyncio.create_task(
            session.exec(["python3", "-c", named(mark) + "import time; time.sleep(600)"], timeout=600)
        )
        assert await seen(mark)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await gone(mark)
        assert (await session.exec(["true"])).ok


async def test_a_session_runs_so_many_programs_and_no_more(forking):
    async with await forking.session() as session:
        started = [await session.start(["true"]) for _ in range(64)]
        with pytest.raises(SandboxBusyError, match="64 programs"):
            await session.start(["true"])
        for process in started:
            await process.close()
        assert (await session.exec(["true"])).ok
