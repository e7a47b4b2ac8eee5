"""The zygote, which forks the children: its parts by themselves, and the sandbox after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import LEVELS, local
from toolgym.tools.errors import SandboxClosedError, SandboxUnavailableError
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox
from toolgym.tools.sandbox.local.kernel import syscalls

pytestmark = pytest.mark.skipif(
    syscalls.MACHINE not in ("x86_64", "aarch64"), reason=f"no numbers of system calls for {syscalls.MACHINE}"
)


def printed(program: str) -> str:
    """What a program prints in a process of its own, which has one thread as these things need."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stderr == "", done.stderr
    return done.stdout.strip()


def test_a_sibling_has_the_same_parent_and_its_thread_knows_its_number():
    output = printed("""
        import ctypes, os
        from toolgym.tools.sandbox.local.kernel import syscalls
        parent = os.getpid()
        zygote = os.fork()
        if zygote == 0:
            place = syscalls.thread_id_address()
            number = ctypes.c_int.from_address(place)
            assert number.value == os.getpid()
            sibling = syscalls.fork_sibling(place)
            if sibling == 0:
                os._exit(7 if os.getppid() == parent and number.value == os.getpid() else 8)
            try:
                os.waitpid(sibling, 0)
            except ChildProcessError:
                os._exit(3)  # it is no child of this process
            os._exit(4)
        ends = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2))
        print(ends)
    """)
    assert output == "[3, 7]"


def test_a_snapshot_shows_what_either_side_of_a_fork_wrote_to():
    output = printed("""
        import ctypes, mmap, os, signal
        from toolgym.tools.sandbox.local.zygote import fork_pages
        room = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(4):
            room[page * mmap.PAGESIZE] = 1
        first = ctypes.addressof(ctypes.c_char.from_buffer(room)) // mmap.PAGESIZE
        snapshot = fork_pages.PageSnapshot(os.open("/proc", os.O_RDONLY))
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            room[mmap.PAGESIZE] = 2
            os.write(done, b".")
            signal.pause()
        room[3 * mmap.PAGESIZE] = 2
        os.read(ready, 1)
        snapshot.take()
        alone = snapshot.unshared()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print([page in alone for page in range(first, first + 4)])
    """)
    assert output == "[False, True, False, True]"


@pytest.mark.parametrize(("fitting", "outputs"), [(64, ["[0, 2, 4, 6, 8, 10, 12, 14]"]), (3, ["[0]", "[0, 2]"])])
def test_pinned_pages_are_copied_at_the_fork_as_far_as_memory_may_be_locked(fitting, outputs):
    output = printed(f"""
        import ctypes, mmap, os, resource, signal
        from toolgym.tools.sandbox.local.zygote import fork_pages
        room = mmap.mmap(-1, 16 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(16):
            room[page * mmap.PAGESIZE] = 1
        first = ctypes.addressof(ctypes.c_char.from_buffer(room)) // mmap.PAGESIZE
        setup = fork_pages.syscalls.number("io_uring_setup")
        if fork_pages.syscalls.syscall(setup, 1, ctypes.create_string_buffer(120)) < 0:
            raise SystemExit(print("not allowed"))
        snapshot = fork_pages.PageSnapshot(os.open("/proc", os.O_RDONLY))
        if os.geteuid() == 0:
            user = 62_000 + os.getpid() % 3000  # one of its own, that no other process locks memory of
            os.setresuid(user, user, user)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, ({fitting} * mmap.PAGESIZE,) * 2)
        fork_pages.pin({{first + page for page in range(0, 16, 2)}})
        child = os.fork()
        if child == 0:
            signal.pause()
        snapshot.take()
        exclusive = snapshot.unshared()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print([page for page in range(16) if first + page in exclusive])
    """)
    if output == "not allowed":
        pytest.skip("no io_uring is allowed here")
    assert output in outputs  # the kernel counts memory of its own too


@pytest.mark.parametrize("level", LEVELS)
async def test_calibration_succeeds(level):
    """A fault in it would only make each fork slower."""
    async with local(level, preload=()) as sandbox:
        assert await sandbox.run("pass")
        assert sandbox._templates._layers["calibrated"]


async def test_a_template_process_without_its_zygote_is_replaced():
    async with LocalSandbox(preload=()) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        session = await sandbox.session()
        (template,) = sandbox.template_ids
        # The zygote's parent is the jail's first process, or the template process itself where there is no jail.
        family = [template]
        for process in family:
            family += _children(process)
        zygotes = [process for process in family if process != template and _looks_like_a_zygote(process, family)]
        os.kill(zygotes[0], signal.SIGKILL)
        results = await asyncio.gather(*(sandbox.run(f"print({number})") for number in range(20)))
        assert [result.status for result in results] == [ExecutionStatus.OK] * 20, results
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]
        assert sandbox.template_ids != [template]
        cell = await session.run_cell("1")
        assert (cell.status, cell.alive) == (ExecutionStatus.SANDBOX_ERROR, False)


async def test_a_child_that_is_killed_while_it_is_forked_costs_no_call():
    """Whichever process is killed during a fork, no call fails in the sandbox, though its own child may be killed."""
    async with LocalSandbox(preload=()) as sandbox:
        await sandbox.run("pass")
        (template,) = sandbox.template_ids
        parent = await _parent_of_children(template)
        known = set(_children(parent))
        over = threading.Event()

        def kill_some() -> int:
            killed = 0
            while not over.is_set():
                for child in set(_children(parent)) - known:
                    known.add(child)
                    if len(known) % 7 == 0:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(child, signal.SIGKILL)
                            killed += 1
            return killed

        killing = asyncio.create_task(asyncio.to_thread(kill_some))
        try:
            results = await asyncio.gather(*(sandbox.run("print(1)") for _ in range(300)))
        finally:
            over.set()
        assert await killing > 0
        statuses = {result.status for result in results}
        assert statuses <= {ExecutionStatus.OK, ExecutionStatus.KILLED}
        # Children that were killed while they waited for a run cost those runs, and no others.
        later = [await sandbox.run("print(2)") for _ in range(16)]
        assert {result.status for result in later} <= {ExecutionStatus.OK, ExecutionStatus.KILLED}, later
        assert later[-1].stdout == "2\n"


async def _parent_of_children(template: int) -> int:
    """The process that the zygote's children are below, once there is one of them beside the zygote."""
    async with asyncio.timeout(60):
        while True:
            family = [template]
            for process in family:
                children = _children(process)
                if len(children) > 1:
                    return process
                family += children
            await asyncio.sleep(0.01)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _looks_like_a_zygote(pid: int, family: list[int]) -> bool:
    """Whether it is the oldest child of the process that has the children: the zygote is there before all of them."""
    for parent in family:
        children = _children(parent)
        if len(children) > 1:
            return pid == children[0]
    return False


async def test_entering_starts_the_sandbox():
    async with LocalSandbox() as sandbox:
        assert sandbox.isolation.level is sandbox.level
        assert sandbox.template_ids
    with pytest.raises(SandboxClosedError):
        await sandbox.run("1")


async def test_a_sandbox_that_does_not_start_is_closed():
    sandbox = LocalSandbox(python="/bin/false")
    with pytest.raises(SandboxUnavailableError):
        async with sandbox:
            pass
    with pytest.raises(SandboxClosedError):
        await sandbox.run("1")
