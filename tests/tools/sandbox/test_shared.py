"""A shared sandbox ends with its last user, or a while later, and leaves nothing behind however that one lets go."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from toolgym.tools.errors import ConfigError, SandboxClosedError
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.shared import SharedSandbox


@pytest.fixture(autouse=True)
async def none_before_and_none_after():
    await SharedSandbox.end_lingering()
    yield
    await SharedSandbox.end_lingering()


def ours():
    """Template processes of this process, and threads of shared sandboxes."""
    children = {child.pid for child in psutil.Process().children()}
    return children, {thread for thread in threading.enumerate() if thread.name.startswith("toolgym-sandbox")}


def new_since(before):
    """What of that is there now and was not before. (What others left may have gone meanwhile.)"""
    return [now - then for now, then in zip(ours(), before, strict=True) if now - then]


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def running_below(pid):
    """How many processes there are below one, those apart that only wait to be reaped."""
    below = psutil.Process(pid).children(recursive=True)
    return sum(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in below)


async def test_the_last_user_ends_it():
    before = ours()
    first, second = SharedSandbox(preload=(), linger=0), SharedSandbox(preload=(), linger=0)
    assert first.local is second.local
    assert (await first.run("print(1)")).stdout == "1\n"
    await first.close()
    assert (await second.run("print(2)")).stdout == "2\n"
    await second.close()
    assert not new_since(before)


async def test_the_next_user_finds_it_warm_and_another_loop_does_too():
    before = ours()

    async def used(**options):
        async with SharedSandbox(preload=(), **options) as sandbox:
            assert (await sandbox.run("print(1)")).stdout == "1\n"
            return sandbox.local.template_ids

    first = await used()
    assert new_since(before)
    assert await used() == first
    assert await asyncio.to_thread(asyncio.run, used()) == first
    assert await used(warm=1) != first
    assert await used() == first
    await SharedSandbox.end_lingering()
    assert not new_since(before)
    assert await used() != first


async def test_it_lingers_for_as_long_as_the_last_user_said():
    before = ours()
    for _ in range(2):
        sandbox = SharedSandbox(preload=(), linger=0.3)
        await sandbox.run("pass")
        closing = time.monotonic()
        await sandbox.close()
    assert new_since(before) or time.monotonic() - closing > 0.3
    sandbox = SharedSandbox(preload=())
    time.sleep(0.5)  # and it does not end under one that came meanwhile
    assert (await sandbox.run("print(1)")).stdout == "1\n"
    await sandbox.close()
    assert new_since(before)
    async with SharedSandbox(preload=(), linger=0.3):
        pass
    assert until(lambda: not new_since(before))


async def test_one_that_never_ran_anything_does_not_linger():
    before = ours()
    async with SharedSandbox(preload=()):
        pass
    assert not new_since(before)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_that_is_none(seconds):
    with pytest.raises(ConfigError, match="linger"):
        SharedSandbox(preload=(), linger=seconds)


async def test_what_runs_ends_with_its_own_user():
    mine, other = SharedSandbox(preload=()), SharedSandbox(preload=())
    sleep = "import time; time.sleep(200)"
    session, kept = await mine.session(), await other.session()
    calls = [mine.run(sleep, timeout=200), session.run_cell(sleep, timeout=200)]
    calls = [asyncio.create_task(call) for call in calls]
    others = asyncio.create_task(other.run("import time; time.sleep(3); print(1)"))
    while mine.local.cpu_slots.executions.in_use < 3:
        await asyncio.sleep(0.01)
    calls.append(asyncio.create_task(mine.session()))
    await asyncio.sleep(0)
    began = time.monotonic()
    await mine.close()
    await mine.close()
    for call in calls:
        with pytest.raises(SandboxClosedError):
            await call
    assert time.monotonic() - began < 100
    for late in (mine.run("1"), mine.session(), session.run_cell("1"), session.fork()):
        with pytest.raises(SandboxClosedError):
            await late
    assert not session.alive
    await session.close()
    assert (await others).stdout == "1\n"
    assert (await kept.run_cell("1 + 1")).result == "2"
    assert until(lambda: other.local.open_sessions == 1)
    await other.close()


async def test_a_session_outlives_other_users_but_not_its_own():
    first, second = SharedSandbox(preload=()), SharedSandbox(preload=())
    session = await first.session()
    local = first.local
    await second.close()
    assert (await session.run_cell("1 + 1")).result == "2"
    await first.close()
    assert local.open_sessions == 0
    assert not session.alive


async def test_a_session_that_opens_as_its_maker_is_cancelled_is_closed():
    sandbox = SharedSandbox(preload=())
    async with await sandbox.session():
        opening = asyncio.create_task(sandbox.session())
        await asyncio.sleep(0)
        assert until(lambda: sandbox.local.open_sessions == 2)  # there, while this event loop looks away
        time.sleep(0.05)  # and its answer is on its way
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        assert until(lambda: sandbox.local.open_sessions == 1)
    await sandbox.close()


@pytest.mark.parametrize("wait", [0, 0.005, 0.2])
async def test_a_fork_whose_maker_is_cancelled_is_closed(wait):
    async with SharedSandbox(preload=(), warm=0) as sandbox, await sandbox.session() as origin:
        await origin.run_cell("x = 1")
        (template,) = sandbox.local.template_ids
        before = running_below(template)
        forking = asyncio.create_task(origin.fork())
        await asyncio.sleep(0)
        time.sleep(wait)  # its answer may be there, while this event loop looks away
        forking.cancel()
        await asyncio.wait({forking})
        assert forking.cancelled()
        assert sandbox.local.open_sessions == 1
        assert (await origin.run_cell("x")).result == "1"
        assert until(lambda: running_below(template) == before)


async def test_a_session_of_a_forked_child_s_parent_is_not_alive_there():
    async with SharedSandbox(preload=()) as sandbox, await sandbox.session() as session:
        pid = os.fork()
        if pid == 0:
            os._exit(int(session.alive))
        assert os.waitpid(pid, 0)[1] == 0
        assert session.alive
        assert (await session.run_cell("1 + 1")).result == "2"


async def test_a_forgotten_one_ends_with_its_last_session():
    before = ours()
    sandbox = SharedSandbox(preload=())
    session = await sandbox.session(env={"A": "b"})
    del sandbox
    gc.collect()
    assert (await session.run_cell("import os; os.environ['A']")).result == "'b'"
    del session
    gc.collect()
    assert until(lambda: not new_since(before))


UNCLOSED = """
import asyncio, sys
from toolgym.tools.sandbox import SharedSandbox

async def main():
    session = await kept.session()
    await session.checkpoint("a") if kept.local.level == "namespaces" else None
    print(*kept.local.template_ids, flush=True)
    await kept.close() if "close" in sys.argv else None

kept = SharedSandbox(preload=())
asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["nothing", "close"])
async def test_one_that_is_left_open_or_lingers_ends_with_the_interpreter_without_a_word(end):
    began = time.monotonic()
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", UNCLOSED, end], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert until(lambda: not any(psutil.pid_exists(int(pid)) for pid in done.stdout.split()))
    assert time.monotonic() - began < 150


@pytest.mark.parametrize("turns", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, 5))])
async def test_a_close_that_is_cancelled_ends_it_all_the_same(turns):
    before = ours()
    sandbox = SharedSandbox(preload=(), linger=0.1 * (turns % 2))
    await sandbox.run("pass")
    assert new_since(before)
    closing = asyncio.create_task(sandbox.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    if turns == 0:  # it never began, and so is still to do
        await sandbox.close()
    assert until(lambda: not new_since(before))


async def test_what_closing_raises_is_told_and_the_thread_ends(monkeypatch):
    before = ours()[1]
    sandbox = SharedSandbox(preload=(), linger=0)
    local = sandbox.local

    async def broken():
        raise OSError("no")

    monkeypatch.setattr(local, "close", broken)
    with pytest.raises(OSError, match="no"):
        await sandbox.close()
    assert not ours()[1] - before


@pytest.mark.parametrize("after", [0.003, *(pytest.param(n, marks=pytest.mark.long) for n in (0.001, 0.03))])
async def test_a_local_sandbox_whose_close_is_cancelled_leaves_nothing(after):
    before = ours()[0]
    sandbox = LocalSandbox(preload=())
    await sandbox.run("pass")
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(after)
    closing.cancel()
    await asyncio.wait({closing})
    assert not ours()[0] - before


FORKED = """
import asyncio, multiprocessing, psutil
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.shared import SharedSandbox

async def six(sandbox):
    return (await sandbox.run("print(6)", timeout=60)).stdout.strip()

async def own():
    sandbox = SharedSandbox(preload=())
    try:
        return await six(sandbox)
    finally:
        ids = sandbox.local.template_ids
        await sandbox.close()
        assert ids and not any(map(psutil.pid_exists, ids)), "nothing lingers in a child"

def child(pipe):
    pipe.send(asyncio.run(own()))
    try:
        pipe.send(asyncio.run(six(kept)))
    except SandboxError as error:
        pipe.send(str(error))
    asyncio.run(kept.close())

kept = SharedSandbox(preload=())
lingers = SharedSandbox(preload=(), warm=1)
print(asyncio.run(six(kept)), asyncio.run(six(lingers)))
asyncio.run(lingers.close())
ours, theirs = multiprocessing.get_context("fork").Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,), daemon=True)
process.start()
for _ in range(2):
    print(ours.recv() if ours.poll(120) else "nothing came")
process.join(120)
print(process.exitcode, asyncio.run(six(kept)), asyncio.run(six(SharedSandbox(preload=(), warm=1))))
asyncio.run(kept.close())
"""


async def test_a_forked_child_has_sandboxes_of_its_own_and_is_told_that_its_parents_are_not():
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=400, check=False
    )
    first, own, parents, last = done.stdout.splitlines()
    assert (first, own, last) == ("6 6", "6", "0 6 6"), done.stderr
    assert "forked child" in parents
    assert "make the sandbox in the process that uses it" in parents


async def test_a_session_takes_cells_from_several_loops_one_at_a_time():
    async with SharedSandbox(preload=()) as sandbox, await sandbox.session() as session:
        await session.run_cell("seen = []")

        async def cells(who):
            code = f"before = len(seen); import time; time.sleep(0.01); seen.append({who!r}); len(seen) - before"
            return [(await session.run_cell(code)).result for _ in range(5)]

        results = await asyncio.gather(cells("here"), *(asyncio.to_thread(asyncio.run, cells(n)) for n in range(2)))
        assert results == [["1"] * 5] * 3
        assert (await session.run_cell("len(seen)")).result == "15"


async def test_a_cell_of_another_loop_ends_when_the_template_process_is_lost():
    async with SharedSandbox(preload=(), linger=0) as sandbox, await sandbox.session() as session:

        async def slept():
            cell = asyncio.create_task(session.run_cell("import time; time.sleep(60)", timeout=60))
            await asyncio.sleep(0.2)
            for pid in sandbox.local.template_ids:
                psutil.Process(pid).kill()
            return await cell

        result = await asyncio.to_thread(asyncio.run, slept())
        assert result.status == "sandbox_error"
        assert not session.alive


async def test_a_cell_that_another_loop_gives_up_leaves_the_session_usable():
    async with SharedSandbox(preload=()) as sandbox, await sandbox.session() as session:
        await session.run_cell("x = 1")

        async def given_up():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await session.run_cell("import time; time.sleep(60)", timeout=60)

        await asyncio.to_thread(asyncio.run, given_up())
        assert (await session.run_cell("x")).result == "1"
