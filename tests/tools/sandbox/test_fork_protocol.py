"""Forks that a program interferes with: a request yields at most one copy, leaves nothing over, and blames the program.

Forks are kept apart from each other, or are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import select
import signal
import tempfile
from pathlib import Path

import pytest

from tests.parameters import first
from tests.tools.sandbox.witness import FORKS, TELL, allow_few_forks, before_templates, beside_a_witness, gone, marking
from toolgym.tools.errors import SandboxBusyError, SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.channel import Channel, Child, EndingCopy
from toolgym.tools.sandbox.local.child import fork_renewal
from toolgym.tools.sandbox.local.kernel import landlock, sibling_fork

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="no namespaces here")
scoped = pytest.mark.skipif(landlock.abi() < landlock.SCOPED_SINCE, reason="this kernel keeps no signals inside")

KILLED = ExecutionStatus.KILLED
WRAP = f"{TELL}{FORKS}\nimport socket, sys\ndef ends():\n    tell(b'{{\"ends\": true}}')\n"
WRAP += "    return socket.recv_fds(socket.socket(fileno=os.dup(3)), 1, 3)[1]\n"
WRAP += "def forked(pid):\n    tell(b'{\"forked\": %d}' % pid)\n"

OWN_FAULTS = {
    "the copy says that it failed": "def fork():\n    pid = REAL()\n    if not pid: os.dup2 = None\n    return pid",
    "the copy says that the sandbox did": "def fork():\n    pid = REAL()\n    if not pid:\n        import shutil\n"
    "        shutil.copytree = lambda *a, **b: (tell(b'{\"broken\": \"no memory\"}'), time.sleep(20))\n    return pid",
    "the copy ends at once": "def fork():\n    pid = REAL()\n    if not pid:\n        os._exit(0)\n    return pid",
    "the copy ends later": "def fork():\n    pid = REAL()\n    if not pid:\n        import shutil\n"
    "        shutil.copytree = lambda *a, **b: os._exit(0)\n    return pid",
    "it says that it failed": "def fork():\n    raise OSError('the sandbox has no memory')",
    "it ends": "def fork():\n    os._exit(0)",
    "it ends when there is a copy": "def fork():\n    pid = REAL()\n    if pid:\n        forked(pid)\n"
    "        time.sleep(0.5)\n        os._exit(0)\n    return pid",
    "it fails when there is a copy": "def fork():\n    pid = REAL()\n    if pid:\n        forked(pid)\n"
    "        time.sleep(0.5)\n        raise OSError('no memory')\n    return pid",
    "it forks twice": "def fork():\n    pid = REAL()\n    if pid:\n        forked(pid)\n        ends()\n"
    "        forked(REAL())\n        time.sleep(20)\n    return pid",
    "it says that it is ready": "def fork():\n    tell(b'{\"ready\": true}')\n    time.sleep(20)",
    "it answers as a cell would": "def fork():\n    answer(b'{}')\n    time.sleep(20)",
}  # fmt: skip


def below(pid: int) -> set[int]:
    """All living processes below one."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return {one for one in found if lives(one)}


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def nothing_more_than(before: set[int], pid: int) -> None:
    for _ in range(3000):
        if not below(pid) - before:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("processes are left over")


@pytest.mark.parametrize("fault", OWN_FAULTS)
async def test_a_fork_that_the_program_spoils_is_the_programs_failure(fault):
    async with beside_a_witness("namespaces", warm=0) as sandbox:
        (template,) = sandbox.local.template_ids
        before = below(template)
        session = await sandbox.session()
        await session.run_cell(f"{WRAP}\n{OWN_FAULTS[fault]}\nfork_by(fork)\nx = 1")
        with_session = below(template)
        async with asyncio.timeout(60):
            with pytest.raises(SandboxError, match="cannot be forked: (error|killed)"):
                await session.fork(n=2)
        if session.alive:
            await nothing_more_than(with_session, template)
            cell = await session.run_cell("x")
            assert cell.result == "1" if cell.alive else cell.status is KILLED
        await session.close()
        await nothing_more_than(before, template)


async def test_a_fork_that_is_cancelled_leaves_its_origin_and_nothing_else():
    slow = "def fork():\n    pid = REAL()\n    if not pid:\n        time.sleep(1)\n    return pid"
    late = "def fork():\n    time.sleep(0.5)\n    return REAL()"
    async with beside_a_witness("namespaces", kind=LocalSandbox, warm=0) as sandbox:
        (template,) = sandbox.template_ids
        session = await sandbox.session()
        with_session = below(template)
        for way in (slow, late):
            await session.run_cell(f"{WRAP}\n{way}\nfork_by(fork)\nx = 1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await session.fork(n=3)
            assert (await session.run_cell("x")).result == "1"
            await nothing_more_than(with_session, template)
            assert (await session.run_cell("fork_by(REAL)\nx")).result == "1"
            for fork in await session.fork(n=6):  # more than are under way at a time
                assert (await fork.run_cell("x")).result == "1"
                await fork.close()
        await session.close()


@pytest.mark.parametrize("level", probe()["levels"])  # type: ignore[arg-type]
async def test_a_session_that_ends_between_two_cells_is_not_the_sandboxs_failure(level):
    mark = f"ends{os.getpid()}"
    async with beside_a_witness(level) as sandbox:
        session = await sandbox.session(idle="run")
        ends = f"{marking(mark)}import os, threading\nthreading.Timer(0.1, lambda: os._exit(0)).start()"
        assert (await session.run_cell(ends)).alive
        await gone(mark)
        result = await session.run_cell("1")
        assert (result.status, result.alive) == (KILLED, False)
        assert "between two calls" in result.message


async def test_a_session_whose_opening_is_cancelled_is_closed():
    async with beside_a_witness("namespaces", kind=LocalSandbox, warm=0) as sandbox:
        (template,) = sandbox.template_ids
        before = below(template)
        chance = random.Random(1)
        for pause in (0, 0.0005, 0.001, *(chance.uniform(0, 0.012) for _ in range(300))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause), await sandbox.session():
                    pass
        await nothing_more_than(before, template)


async def test_forks_that_were_closed_do_not_count_as_processes():
    async with LocalSandbox(preload=[], level="namespaces", limits=Limits(processes=6), warm=0) as sandbox:
        session = await sandbox.session()
        (template,) = sandbox.template_ids
        before = below(template)
        for _ in range(20):
            await (await session.fork()).close()
            await nothing_more_than(before, template)  # the kernel has ended it
        assert (await session.run_cell("import os\nfor _ in range(4):\n    os.fork() or os._exit(0)\n'forked'")).alive
        await session.close()


START = """
import os
kids = []
try:
    while len(kids) < 300:
        kid = os.fork()
        if not kid:
            os.kill(os.getpid(), 19)
        kids.append(kid)
except OSError:
    pass
for kid in kids:
    os.kill(kid, 9), os.waitpid(kid, 0)
len(kids)
"""
RAISE = """
import ctypes, os, resource, struct
libc, hard = ctypes.CDLL(None, use_errno=True), resource.getrlimit(resource.RLIMIT_NPROC)[1]
new = struct.pack("QQ", hard, hard)
libc.setrlimit(6, new), libc.prlimit(0, 6, new, None), libc.prlimit(os.getpid(), 6, new, None)
"""


async def test_idle_forks_do_not_count_as_processes_and_the_limit_is_named():
    limits = Limits(processes=8, memory_mb=2048)
    async with (
        LocalSandbox(preload=[], level="namespaces", limits=limits) as sandbox,
        await sandbox.session() as origin,
    ):
        assert (await origin.run_cell(START)).result == "7", "itself counts"
        assert (await origin.run_cell(RAISE)).result == "(-1, -1, -1)", "a program cannot raise it"
        forks = await origin.fork(n=20)
        for one in (origin, *forks[:3], forks[-1]):
            assert (await one.run_cell(START)).result == "7", "as many as without the forks"
        assert (await forks[0].run_cell(RAISE)).result == "(-1, -1, -1)"
        for one in forks:  # each gets a launcher, which does not count in the others
            assert (await one.exec(["sh", "-c", "echo a | cat"])).stdout == "a\n"
        assert (await origin.run_cell(START)).result == "7"
        await asyncio.gather(*(one.close() for one in forks))
        await origin.run_cell("import time; time.sleep(1)")
        assert (await origin.run_cell(START)).result == "7", "no more than before the forks"
        await origin.run_cell(START.replace("for kid", "while kids and not kids: pass\nfor kid in (): pass\nfor gone"))


async def test_forks_that_wait_are_refused_once_memory_has_no_room(monkeypatch):
    """The first one is made, and the others wait for that."""
    code = "from toolgym.tools.sandbox.local.broker import watchdog\n"
    code += "watchdog.Watchdog.has_room = lambda *_, room=iter([True]): next(room, False)\n"
    before_templates(monkeypatch, code)
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session() as origin:
        template = sandbox.template_ids
        with pytest.raises(SandboxBusyError, match="memory_mb"):
            await asyncio.wait_for(origin.fork(n=6), 20)
        assert (await origin.run_cell("1")).result == "1"
        assert sandbox.template_ids == template


@first("free", (24, 0), short=1)
async def test_forks_that_need_more_open_files_than_allowed_are_refused(monkeypatch, free):
    """Without a check before the fork (`free` is 0), it fails at some step, and the session goes on."""
    code = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
    code += f"from toolgym.tools.sandbox.local.broker import session_fork\nsession_fork.FREE_DESCRIPTORS = {free}\n"
    before_templates(monkeypatch, code)
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session() as origin:
        template = sandbox.template_ids
        await origin.run_cell("x = 1")
        with pytest.raises(
            SandboxError, match="may have 128 open files" if free else "Too many open files|descriptors"
        ):
            await asyncio.wait_for(origin.fork(n=24), 60)
        (fork,) = await origin.fork(n=1)
        assert [(await session.run_cell("x")).result for session in (origin, fork)] == ["1", "1"]
        assert sandbox.template_ids == template


async def test_a_limit_of_processes_that_a_fork_meets_is_named(monkeypatch):
    allow_few_forks(monkeypatch, 2)
    busy = "import os\nfor _ in range(7):\n    os.fork() or os.kill(os.getpid(), 19)"
    limits = Limits(processes=8)
    async with (
        LocalSandbox(preload=[], level="namespaces", limits=limits) as sandbox,
        await sandbox.session() as origin,
    ):
        await origin.run_cell(busy)
        with pytest.raises(
            SandboxBusyError, match=r"at most 8 processes and threads run at once \(`Limits.processes`\)"
        ):
            await origin.fork(n=3)
        assert (await origin.run_cell("import time; time.sleep(2); 1 + 1")).result == "2"
        await (await origin.fork()).close()


KILL = """
import os, signal
refused = 0
for pid in range(2, 200):
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except (PermissionError, ProcessLookupError):
            refused += 1
refused
"""


THREAD = "import threading, time\nstop = threading.Event()\nthreading.Thread(target=stop.wait).start()"


@scoped
async def test_a_line_of_forks_has_no_end_and_keeps_apart():
    """More than Landlock has layers, in both directions: forks of forks, and forks of one session between its cells."""
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session(recover=False) as origin:
        line = [origin]
        for _ in range(18):
            line.append(await line[-1].fork())
            assert (await origin.run_cell("1")).alive
            line.append(await origin.fork())
        for one in (*line[:2], line[-2], line[-1]):
            assert (await one.run_cell(KILL)).result == "197"
        assert all(one.alive for one in line)


@scoped
async def test_a_session_with_threads_is_forked_as_often_as_landlock_has_layers():
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session(recover=False) as origin:
        assert (await origin.run_cell(THREAD)).error is None
        forks = []

        async def grow() -> None:
            while len(forks) < 20:
                forks.append(await origin.fork())
                assert (await origin.run_cell("1")).alive

        with pytest.raises(SandboxError, match="while it had threads.* the kernel has 16; end its threads"):
            await grow()
        assert len(forks) >= 12
        assert (await origin.run_cell("stop.set()\ntime.sleep(0.1)")).error is None
        for one in (origin, forks[0], forks[-1]):
            assert (await one.run_cell(KILL)).result == "197"
        assert (await (await origin.fork()).run_cell("1 + 1")).result == "2", "it has one thread now"


@scoped
async def test_many_forks_of_one_session_keep_apart():
    """Copies made without a cell in between use up only one layer together."""
    async with (
        LocalSandbox(preload=[], level="namespaces") as sandbox,
        await sandbox.session(recover=False) as origin,  # a cell may kill its own shadow
    ):
        await origin.run_cell("x = 1")
        forks = [await origin.fork() for _ in range(30)]
        for one in (origin, forks[0], forks[15], forks[-1]):
            assert (await one.run_cell(KILL)).result == "197"
        deeper = [await forks[-1].fork() for _ in range(3)]
        argv = ["sh", "-c", "for n in $(seq 2 200); do [ $n = $$ ] || kill -0 $n 2>&- && echo $n; done; true"]
        for one in (forks[-1], deeper[0]):
            pids = (await one.exec(argv)).stdout.split()
            assert len(pids) <= 3, "its own interpreter, its launcher, and what that started"


def test_a_kernel_that_lists_mappings_says_the_same_as_one_that_is_asked_for_shared_ones(monkeypatch):
    with tempfile.TemporaryFile() as file, mmap.mmap(-1, 8192) as memory:  # noqa: F841  mapped, and so listed
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 0), open("/proc/self/maps", "rb", buffering=0) as maps:
            asked = [*fork_renewal._shared_mappings(maps)]
            monkeypatch.setattr(fork_renewal, "_PROCMAP_QUERY", 0)  # an ioctl that this file does not have
            listed = [*fork_renewal._shared_mappings(maps)]
    assert asked == listed
    assert sum(mapping.name.endswith(b"(deleted)") for mapping in asked) >= 2


@scoped
async def test_a_checkpoint_after_a_recovery_and_a_recovery_in_a_fork():
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session(recover=True) as origin:
        await origin.run_cell("x = 1")
        assert (await origin.run_cell("import os; os._exit(3)")).alive
        for n in range(20):
            await origin.checkpoint("here")
            assert (await origin.run_cell(f"x = {n}")).alive
        fork = await origin.fork("here")
        assert (await fork.run_cell("import os; os._exit(3)")).alive
        deeper = await fork.fork()
        for one in (origin, fork, deeper):
            assert (await one.run_cell(KILL)).result == "196", "all but itself and its shadow"
        assert [(await one.run_cell("x")).result for one in (origin, fork, deeper)] == ["19", "18", "18"]


UNSEAL = """
import ctypes, signal
helper, call = FORKER._helper, ctypes.CDLL(None).syscall
call.restype = ctypes.c_long
LINES = [line.split() for line in open("/proc/self/maps")]
PAGES = [int(words[0].split("-")[0], 16) for words in LINES if words[1] == "r-xp" and words[4] == "0"]
def sealed(page):
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(page)
        return memory.read(len(START)) == START
START = bytes.fromhex("488b1d")  # how the helper begins
(page,) = filter(sealed, [page for page in PAGES if page < 1 << 47])
def tried(number, *words):
    return call(number, *map(ctypes.c_long, words))
other = helper._shared + (1 << 30)
results = [tried(10, page, 4096, 7), tried(11, page, 4096), tried(9, page, 4096, 7, 0x32, -1, 0)]
results += [tried(25, page, 4096, 4096, 3, other), *(tried(28, page, 4096, advice) for advice in (4, 8, 9, 18, 102))]
try:
    results.append(open("/proc/self/mem", "r+b"))
except OSError:
    results.append(-1)
{*results}, sealed(page)
"""
"""What could change the page that a helper runs on: mprotect, munmap, mmap, mremap, madvise, and a file."""

WAKE = """
import ctypes, os, time
word = ctypes.c_uint32.from_address(FORKER._helper._shared)
def wake(value):
    word.value = value
    ctypes.CDLL(None).syscall(202, ctypes.c_long(FORKER._helper._shared), 1, 1, 0, 0, 0)
    time.sleep(0.05)
"""


@scoped
@pytest.mark.skipif(not sibling_fork.supported(), reason="no helpers here")
async def test_no_program_changes_what_a_helper_runs():
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session(recover=False) as origin:
        tried = await origin.run_cell(FORKS + UNSEAL)
        assert (tried.error, tried.result) == (None, "({-1}, True)")
        fork = await origin.fork()
        assert (await fork.run_cell(UNSEAL)).result == "({-1}, True)", "its helper runs on the same page"


@scoped
@pytest.mark.skipif(not sibling_fork.supported(), reason="no helpers here")
async def test_a_program_that_misuses_its_helper_harms_no_fork():
    """Its forks fail, at most; the forks that are there cannot be reached by what comes of it."""
    async with LocalSandbox(preload=[], level="namespaces") as sandbox, await sandbox.session(recover=False) as origin:
        kept = await origin.fork()
        pid = (await kept.run_cell("import os; os.getpid()")).result
        # The copy that nobody asked for continues in the code below, where its memory has the same stack.
        reach = f"""
r, w = os.pipe()
real = FORKER._helper._ask
if FORKER.fork() == 0:
    try:
        os.kill({pid}, 9)
        os.write(w, b"killed")
    except PermissionError:
        os.write(w, b"refused")
    os._exit(0)
os.read(r, 9)
"""
        assert (await origin.run_cell(FORKS + WAKE + reach)).result == "b'refused'"
        assert (await origin.run_cell("wake(0)")).alive, "the helper ends"
        with pytest.raises(SandboxError):
            async with asyncio.timeout(25):
                await origin.fork()
        assert (await kept.run_cell("1 + 1")).result == "2"
        assert (await origin.run_cell("1 + 1")).result == "2"


def test_a_dropped_copy_counts_until_its_origin_has_reaped_it():
    child = Child(0, "")
    origin, other = (object.__new__(Channel) for _ in range(2))
    child.channels += [origin, other]
    pid = os.fork()
    if pid == 0:
        signal.pause()
    handle = os.pidfd_open(pid)
    child.ending.append(EndingCopy(origin, handle, 0.0))
    counts = [child.count_ending(origin), child.count_ending(other)]
    os.kill(pid, signal.SIGKILL)
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    assert ended.poll(10_000)
    counts += [child.count_ending(other), child.count_ending(origin)]
    os.waitpid(pid, 0)
    assert counts == [1, 1, 1, 0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_list_of_the_kernel_that_comes_in_pieces_is_read_to_its_end():
    """The kernel fills a page at most at a time, with whole lines: pieces are shorter than a page."""
    rooms = [mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ << at % 2) for at in range(200)]
    with open("/proc/self/maps") as file:
        mappings = file.read().count("\n")
    proc = os.open("/proc", os.O_RDONLY)
    try:
        assert abs(usage._read(proc, "self/maps").count("\n") - mappings) < 20
    finally:
        os.close(proc)
    for room in rooms:
        room.close()
