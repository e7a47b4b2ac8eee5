"""Control groups, and the watchdog in place of them: what they limit, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.sandbox import witness
from toolgym.tools.errors import SandboxBusyError, SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.kernel import cgroup
from toolgym.tools.sandbox.local.kernel.folders import owner_tag

OK, MEMORY_LIMIT = ExecutionStatus.OK, ExecutionStatus.MEMORY_LIMIT
LIMITS = Limits(memory_mb=150, processes=16, disk_mb=24, inodes=300)
SPREAD = (
    "import os, time\nfor n in range(6):\n    if os.fork() == 0:\n        kept = b'x' * (70 << 20)\n"
    "        time.sleep(100)\n        os._exit(0)\ntime.sleep(100)"
)
IDLE_BOMB = (
    "import threading, time, mmap\nkept = []\ndef grow():\n    time.sleep(0.2)\n    for n in range(30):\n"
    "        kept.append(mmap.mmap(-1, 32 << 20))\n        kept[-1].write(b'x' * (32 << 20))\n"
    "threading.Thread(target=grow).start()"
)

needs_group = pytest.mark.skipif(cgroup.find()[0] is None, reason=f"no control groups: {cgroup.find()[1]}")
needs_namespaces = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="no namespaces here")


_others: set[Path] = set()


def groups() -> set[Path]:
    """Groups that this process made since the test began: a service that other tests share may have made some too."""
    place, _ = cgroup.find()
    if place is None:
        return set()
    return {
        entry for folder in place.folders.values() for entry in folder.iterdir()
        if entry.name.startswith(f"toolgym-{os.getpid()}-") and entry not in _others
    }  # fmt: skip


@pytest.fixture(autouse=True)
def others():
    _others.clear()
    _others.update(groups())


@pytest.fixture
def no_groups(monkeypatch):
    monkeypatch.setattr(cgroup, "find", lambda: (None, "the test took them away"))


async def gone(which: set[Path] | None = None) -> bool:
    """Whether groups go within a minute: these, or all of this test. A sandbox removes them beside its work."""
    async with asyncio.timeout(60):
        while groups() if which is None else groups() & which:
            await asyncio.sleep(0.02)
    return True


@needs_group
@needs_namespaces
async def test_the_isolation_tells_of_them_and_they_go_with_the_sandbox():
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=()) as sandbox:
        assert (await sandbox.run("print(1)")).ok
        place, _ = cgroup.find()
        assert sandbox.isolation.cgroup == f"v{place.version}"
        assert "memory" in sandbox.isolation.controllers
        assert groups()
        seen = await sandbox.run("print(open('/proc/self/cgroup').read())")
        assert "toolgym" not in seen.stdout, "a program must not see the host's names"
    assert await gone()


@needs_namespaces
async def test_without_them_it_says_so(no_groups):
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=()) as sandbox:
        assert (await sandbox.run("print(1)")).ok
        assert sandbox.isolation.cgroup is None
        assert any("the test took them away" in sentence for sentence in sandbox.isolation.missing)


@needs_namespaces
@pytest.mark.parametrize("kernel", [pytest.param(True, marks=needs_group), False])
async def test_the_memory_of_a_whole_tree(kernel, request):
    if not kernel:
        request.getfixturevalue("no_groups")
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=()) as sandbox:
        result = await sandbox.run(SPREAD, timeout=90)
        assert result.status is MEMORY_LIMIT
        assert result.duration < 60
        again = [await sandbox.run("print(6 * 7)") for _ in range(4)]  # the same groups serve the next ones
        assert [one.stdout for one in again] == ["42\n"] * 4
        roomy = await sandbox.run("kept = b'x' * (300 << 20)\nprint('fits')", memory_mb=500)
        assert (roomy.status, roomy.stdout) == (OK, "fits\n")
        tight = await sandbox.run("kept = b'x' * (300 << 20)\nprint('fits')")
        assert tight.status is MEMORY_LIMIT


@needs_namespaces
@pytest.mark.parametrize("kernel", [pytest.param(True, marks=needs_group), False])
async def test_a_session_is_limited_between_its_cells_too(kernel, request):
    if not kernel:
        request.getfixturevalue("no_groups")
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=()) as sandbox:
        session = await sandbox.session(idle="run")
        other = await sandbox.session()
        mark = f"idle{os.getpid()}"
        assert (await session.run_cell(witness.marking(mark) + IDLE_BOMB)).status is OK
        await witness.gone(mark)
        assert not (await session.run_cell("1")).alive
        assert (await other.run_cell("1 + 1")).result == "2"


@needs_namespaces
@pytest.mark.parametrize("kernel", [pytest.param(True, marks=needs_group), pytest.param(False, marks=pytest.mark.long)])
async def test_memory_that_forks_share_counts_once(kernel, request):
    if not kernel:
        request.getfixturevalue("no_groups")
    limits = Limits(memory_mb=256)
    async with (
        LocalSandbox(level="namespaces", limits=limits, preload=()) as sandbox,
        await sandbox.session() as session,
    ):
        await session.run_cell("kept = bytearray(b'x' * (100 << 20))")
        forks = await session.fork(n=8)
        await asyncio.sleep(2.5)  # idle sessions are looked at once a second
        sizes = [(await one.run_cell("import time; time.sleep(0.2); len(kept)")).result for one in (session, *forks)]
        assert sizes == [str(100 << 20)] * 9
        writing = "for at in range(0, len(kept), 4096): kept[at] = 1\nimport time; time.sleep(2)"
        ends = [await one.run_cell(writing) for one in forks[:4]]
        assert ends[-1].status is MEMORY_LIMIT, "what each has written to is its own"


@needs_group
@needs_namespaces
async def test_a_fork_for_which_there_is_no_memory_is_refused():
    limits = Limits(memory_mb=96, disk_mb=8)
    async with (
        LocalSandbox(level="namespaces", limits=limits, preload=()) as sandbox,
        await sandbox.session() as origin,
    ):
        await origin.run_cell("kept = bytearray(b'x' * (30 << 20))")
        forks = []

        async def fork_on():
            while len(forks) < 200:
                forks.append(await origin.fork())

        with pytest.raises(SandboxBusyError, match=r"memory is used up: it has 96 MiB together with its forks"):
            await fork_on()
        sizes = [(await one.run_cell("len(kept)")).result for one in (origin, *forks[:4])]
        assert sizes == [str(30 << 20)] * 5
        assert all(one.alive for one in forks)
        await asyncio.gather(*(one.close() for one in forks))
        await asyncio.sleep(1)  # until the kernel has freed theirs
        await (await origin.fork()).close()


@needs_group
@needs_namespaces
async def test_cores_are_a_limit():
    place, _ = cgroup.find()
    if "cpu" not in place.folders:
        pytest.skip("no cpu controller")
    code = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    async with LocalSandbox(level="namespaces", limits=Limits(cores=0.2), preload=()) as sandbox:
        used = float((await sandbox.run(code)).stdout)
    assert used < 0.9


async def test_cores_without_groups_are_refused(no_groups):
    with pytest.raises(SandboxError, match=r"limits\.cores=0\.5 needs a control group.*took them away"):
        async with LocalSandbox(limits=Limits(cores=0.5), preload=()) as sandbox:
            await sandbox.run("print(1)")


@needs_group
@needs_namespaces
async def test_a_lost_template_takes_its_group_along():
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=(), templates=1) as sandbox:
        await sandbox.run("print(1)")
        before = groups()
        [template] = sandbox.template_ids
        os.kill(template, signal.SIGKILL)
        async with asyncio.timeout(60):
            while template in sandbox.template_ids:  # its broker ends a moment after it, and may serve a run till then
                await asyncio.sleep(0.005)
        assert (await sandbox.run("print(2)")).stdout == "2\n"
        assert groups() - before, "the next template has a group of its own"
        assert await gone(before), "the lost one's goes while the sandbox is open"
    assert await gone()


@needs_group
@needs_namespaces
def test_what_a_killed_process_left_behind_is_removed_by_the_next():
    place, _ = cgroup.find()
    folder = place.folders["memory"]
    # It looks for its group itself: another test's sandbox may start, and remove it, as soon as it is killed.
    code = (
        "import asyncio, os, signal, sys\nfrom toolgym.tools.sandbox.local import LocalSandbox\n"
        "async def main():\n    sandbox = LocalSandbox(level='namespaces', preload=())\n"
        "    session = await sandbox.session()\n"
        f"    names, own = os.listdir({str(folder)!r}), f'toolgym-{{os.getpid()}}-'\n"
        "    print(any(one.startswith(own) for one in names), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert killed.communicate(timeout=120)[0] == b"True\n"
    own = folder / f"toolgym-{owner_tag(os.getpid())}-999"
    own.mkdir()  # of a living process: no other may remove it
    look = "from toolgym.tools.sandbox.local.kernel import cgroup; print(cgroup.find()[1])"
    for _ in range(60):
        subprocess.run([sys.executable, "-c", look], check=True, timeout=120, capture_output=True)
        left = [entry for entry in folder.iterdir() if entry.name.startswith(f"toolgym-{killed.pid}-")]
        if not left:
            break
    assert left == []
    assert own.exists()
    own.rmdir()


@pytest.mark.parametrize("level", [level for level in ("uid", "landlock") if level in probe()["levels"]])
async def test_files_on_a_shared_disk_are_watched(level):
    python = "/usr/bin/python3" if level == "uid" else None
    try:
        sandbox = LocalSandbox(level=level, limits=LIMITS, preload=(), python=python)
    except SandboxError as error:
        pytest.skip(str(error))
    many = "import os\nfor n in range(100_000):\n    os.close(os.open(f'{n}', os.O_CREAT))"
    large = "data = b'x' * (4 << 20)\nfor n in range(400):\n    open(f'{n}', 'wb').write(data)"
    deep = "import os\nfor n in range(100_000):\n    os.mkdir('d'); os.chdir('d')"
    async with sandbox:
        gone = "import os\ndata, kept = b'x' * (4 << 20), []\nfor n in range(100):\n    kept.append(open('a', 'wb'))\n"
        gone += "    os.unlink('a')\n    for part in range(4): kept[-1].write(data)"
        for code in (many, large, deep, gone):
            result = await sandbox.run(code, timeout=120)
            assert result.status is ExecutionStatus.DISK_LIMIT, code
            assert "24 MiB or 300 files" in result.message
        modest = await sandbox.run("for n in range(200): open(f'{n}', 'w').write('x')\nimport time; time.sleep(0.3)")
        assert modest.ok
        async with await sandbox.session() as session:
            cell = await session.run_cell(large, timeout=120)
            assert (cell.status, cell.alive) == (ExecutionStatus.DISK_LIMIT, False)
        # A thread may go on writing when the cell has ended.
        async with await sandbox.session(idle="run") as session:
            thread = "import threading\ndef fill():\n    " + large.replace("\n", "\n    ")
            mark = f"fill{os.getpid()}"
            thread = f"{witness.marking(mark)}{thread}\n    import time; time.sleep(20)\n"
            await session.run_cell(f"{thread}threading.Thread(target=fill).start()")
            await witness.gone(mark)
            assert not (await session.run_cell("1")).alive


RESERVE = """
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("reserved", os.O_CREAT | os.O_RDWR)
print(libc.fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(1 << 20)), ctypes.get_errno() == errno.EOPNOTSUPP)
for number in (0x40305828, 0x4030582A, 0x40305839):
    try:
        print(fcntl.ioctl(file, number, struct.pack("hxxxxxxqqiI16x", 0, 0, 1 << 20, 0, 0)))
    except PermissionError:
        print("refused")
print(os.stat(file).st_blocks)
os.posix_fallocate(file, 0, 1 << 16)
print(os.stat(file).st_size, os.stat(file).st_blocks >= 128)
"""


@pytest.mark.parametrize("level", [level for level in ("uid", "landlock") if level in probe()["levels"]])
async def test_disk_space_that_is_watched_cannot_be_set_aside(level):
    """Reserving takes no time: gigabytes would be gone before the watchdog looks."""
    python = "/usr/bin/python3" if level == "uid" else None
    try:
        sandbox = LocalSandbox(level=level, limits=LIMITS, preload=(), python=python)
    except SandboxError as error:
        pytest.skip(str(error))
    async with sandbox:
        result = await sandbox.run(RESERVE)
        expected = ["-1 True", "refused", "refused", "refused", "0", "65536 True"]
        assert (result.stdout.splitlines(), result.stderr) == (expected, "")


async def test_disk_space_of_its_own_can():
    if "namespaces" not in probe()["levels"]:
        pytest.skip("needs the level 'namespaces'")
    async with LocalSandbox(level="namespaces", limits=LIMITS, preload=()) as sandbox:
        code = "import os\nfile = os.open('a', os.O_CREAT | os.O_RDWR)\n"
        code += "os.posix_fallocate(file, 0, 1 << 20)\nprint(os.stat(file).st_blocks)"
        assert (await sandbox.run(code)).stdout == "2048\n"
        assert (await sandbox.run(code.replace("1 << 20", "1 << 25"))).status is ExecutionStatus.DISK_LIMIT
