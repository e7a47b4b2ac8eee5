"""Forks of live sessions: what stays apart, and what goes along, beside what the suite of all sandboxes tests."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import sys
import time

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import BRANCHING, ISOLATED, MAKERS, forked
from toolgym.tools.errors import SandboxError

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_fork_does_not_repeat_its_origins_randomness(branching):
    async with await branching.session() as session:
        await session.run_cell("import random")
        async with await forked(session) as other:
            drawn = [(await one.run_cell("random.random()")).result for one in (session, other)]
            assert drawn[0] != drawn[1]


NEW_IN_TMP = """import os
there = {*os.listdir('/tmp')}
def new_in_tmp():
    return sorted({*os.listdir('/tmp')} - there)
"""
"""An interpreter that is installed below /tmp shows there."""


async def test_a_fork_has_its_own_tmp(branching):
    """By their absolute names too, and whatever was open keeps its place in the copy."""
    before = NEW_IN_TMP + "os.makedirs('/tmp/d/e')\nos.chdir('/tmp/d')\nopen('/dev/shm/x', 'w').write('s')\n"
    before += "h = open('/tmp/log', 'w+')\nprint('before', file=h, flush=True)\nos.symlink('/tmp/log', '/tmp/link')"
    look = "h.seek(0)\nnew_in_tmp(), os.getcwd(), h.read(), open('/tmp/link').read(), "
    look += "open('/dev/shm/x').read()"
    async with await branching.session() as session:
        await session.run_cell(before)
        async with await forked(session) as other:
            names = ["d", "link", "log"]
            for one, name in ((session, "a"), (other, "b")):
                await one.run_cell(f"print({name!r}, file=h, flush=True)\nopen('/tmp/' + {name!r}, 'w').close()")
                await one.run_cell(f"open('/dev/shm/x', 'a').write({name!r})")
            for one, name in ((session, "a"), (other, "b")):
                text = f"before\n{name}\n"
                expected = (sorted([*names, name]), "/tmp/d", text, text, f"s{name}")
                assert (await one.run_cell(look)).result == repr(expected)


@pytest.mark.skipif("namespaces" not in BRANCHING, reason="needs the level namespaces")
async def test_a_fork_has_its_own_further_folders():
    look = "os.getcwd(), h.read(), sorted(os.listdir('/app')), open('/app/x').read()"
    async with MAKERS["namespaces"]() as made, await made.session(folders=["/app"], hint="") as session:
        await session.write_file("/app/x", b"before")
        await session.run_cell("import os\nos.chdir('/app')\nh = open('/app/x')")
        async with await forked(session) as other:
            for one, name in ((session, "a"), (other, "b")):
                await one.run_cell(f"open('/app/{name}', 'w').close()\nopen('x', 'w').write('{name}')")
            for one, name in ((session, "a"), (other, "b")):
                assert (await one.run_cell(look)).result == repr(("/app", name, [name, "x"], name))


async def test_forks_of_forks_have_their_own_tmp(branching):
    async with await branching.session() as session:
        await session.run_cell(NEW_IN_TMP + "open('/tmp/0', 'w').close()")
        line = [session]
        for depth in range(1, 6):
            line.append(await forked(line[-1]))
            await line[-1].run_cell(f"open('/tmp/{depth}', 'w').close()")
        for depth, one in enumerate(line):
            seen = (await one.run_cell("new_in_tmp()")).result
            assert seen == repr([str(n) for n in range(depth + 1)])
        await session.close()
        assert (await line[3].run_cell("open('/tmp/3').read()")).result == "''"
        for one in line[1:]:
            await one.close()


async def test_forks_do_not_see_or_kill_each_other(branching):
    look = "import os, signal\nnumbers = [int(n) for n in os.listdir('/proc') if n.isdigit()]\nnumbers == [os.getpid()]"
    kill = """
refused = []
for pid in range(2, 60):
    if pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL)
        except (PermissionError, ProcessLookupError) as error:
            refused.append(pid)
try:
    os.kill(-1, signal.SIGKILL)
except PermissionError:
    pass
len(refused)
"""
    async with await branching.session(recover=False) as session:  # a cell may kill its own shadow
        await session.run_cell("x = 1")
        others = [await forked(session) for _ in range(3)]
        others.append(await forked(others[0]))
        for one in (session, *others):
            assert (await one.run_cell(look)).result == "True"
            assert (await one.run_cell(kill)).result == "57"
        for one in (session, *others):
            assert (await one.run_cell("x")).result == "1"
        for one in others:
            await one.close()


async def test_a_fork_fills_its_own_disk_only(branching):
    fill = "data = b'x' * (1 << 20)\nfor n in range(20):\n    open(f'{n}', 'wb').write(data)"
    async with await branching.session() as session:
        other = await forked(session)
        assert (await session.run_cell(fill)).status == "ok"
        assert (await other.run_cell(fill)).status == "ok"  # 24 MB each
        assert (await other.run_cell("open('more', 'wb').write(b'x' * (7 << 20))")).status == "disk_limit"
        assert (await session.run_cell("open('little', 'w').write('x')")).status == "ok"
        # The whole origin fits into a copy; the copy of a full one does too.
        third = await forked(other)
        assert (await third.run_cell("import os; len(os.listdir('.'))")).result == "21"
        await third.close()
        await other.close()


SHARED = {
    "a mapped file": (
        "import mmap\nh = open('m', 'w+b'); h.write(b'0' * 5000); h.flush()\nm = mmap.mmap(h.fileno(), 5000)",
        "m[4999] = {me}; m.flush()",
        "m[4999], open('m', 'rb').read()[4999], m[0]",
        "({me}, {me}, 48)",
    ),
    "shared memory": ("import mmap\nm = mmap.mmap(-1, 9000)\nm[0] = 7", "m[8999] = {me}", "m[0], m[8999]", "(7, {me})"),
    "values of multiprocessing": (
        "from multiprocessing import Value\nv = Value('i', 5)",
        "with v.get_lock(): v.value += {me}",
        "v.value - 5",
        "{me}",
    ),
    "a file without a name": (
        "import tempfile\nh = tempfile.TemporaryFile('w+'); h.write('before'); h.flush()",
        "_ = h.write('{me}'); h.flush()",
        "h.seek(0); h.read(), __import__('os').listdir('/tmp').count('.')",
        "('before{me}', 0)",
    ),
    "a pipe": (
        "import os\nr, w = os.pipe(); os.set_blocking(r, False); os.write(w, b'before')",
        "os.write(w, b'{me}')",
        "os.read(r, 99)",
        "b'before{me}'",
    ),
    "a counter": (
        "import os\ne = os.eventfd(3, os.EFD_NONBLOCK)",
        "os.eventfd_write(e, {me})",
        "os.eventfd_read(e) - 3",
        "{me}",
    ),
    "a folder": (
        "import os\nd = os.open('.', os.O_RDONLY)",
        "open('x{me}', 'w').close()",
        "[name for name in os.listdir(d) if name[0] == 'x']",
        "['x{me}']",
    ),
    "a database": (
        "import sqlite3\nc = sqlite3.connect('d.db'); c.execute('pragma journal_mode=wal')\n"
        "c.execute('create table t(a)'); c.execute('insert into t values (1)'); c.commit()",
        "c.execute('insert into t values ({me})'); c.commit()",
        "c.execute('select a from t').fetchall(), sqlite3.connect('d.db').execute('select max(a) from t').fetchone()",
        "([(1,), ({me},)], ({me},))",
    ),
    "a copy of standard output": (
        "import os\ncopy = os.dup(1)",
        "",
        "(os.write(copy, b'{me}'), None)[1]",
        "None",
    ),
}
"""What two processes share after a fork, unless something is done: what sets it up, changes it, and looks."""


@pytest.mark.parametrize("what", SHARED)
async def test_nothing_is_shared_with_a_fork(branching, what):
    first, change, look, expected = SHARED[what]
    async with await branching.session() as session:
        begun = await session.run_cell(first)
        assert begun.error is None
        async with await forked(session) as other, await forked(other) as third:
            family = {11: session, 22: other, 33: third}
            for me, one in family.items():
                assert (await one.run_cell(change.format(me=me))).error is None
            for me, one in family.items():
                result = await one.run_cell(look.format(me=me))
                assert (result.result or (result.stdout and "None"), result.error) == (expected.format(me=me), None)
                assert result.stdout in ("", str(me))


async def test_a_program_stays_with_its_session(branching):
    async with await branching.session() as session:
        await session.run_cell("import subprocess\np = subprocess.Popen(['cat'], stdin=-1, stdout=-1)")
        async with await forked(session) as other:
            result = await other.run_cell("p.stdin.write(b'no\\n'); p.stdin.flush()")
            assert result.error is not None
            assert result.error.name == "BrokenPipeError"
            assert (await other.run_cell("p.stdout.readline()")).result == "b''"
            await session.run_cell("p.stdin.write(b'yes\\n'); p.stdin.flush()")
            assert (await session.run_cell("p.stdout.readline()")).result == r"b'yes\n'"
            await session.run_cell("p.stdin.close(); p.wait()")


PAIRS = """
import socket
pairs = [socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
door = socket.socket(socket.AF_UNIX)
door.bind("door"); door.listen()
caller = socket.socket(socket.AF_UNIX)
caller.connect("door"); pairs.append((caller, door.accept()[0]))
for end in (door, *sum(pairs, ())): end.setblocking(False)
def tried(act, *words):
    try: return act(*words)
    except OSError as error: return type(error).__name__
"""


async def test_sockets_connect_no_forks(branching):
    """They stay with the session that was forked. Two answers to one question could come to an agreement over them."""
    async with await branching.session() as session:
        await session.run_cell(PAIRS)
        await session.checkpoint("before")
        async with await session.fork("before") as first, await session.fork("before") as second:
            for one in (first, second):
                sent = (await one.run_cell("[tried(a.send, b'answer') for a, b in pairs], tried(door.accept)")).result
                assert sent == repr((["BrokenPipeError"] * 3, "OSError"))
            for one in (session, first, second):
                heard = (await one.run_cell("[tried(end.recv, 9) for pair in pairs for end in pair]")).result
                assert "answer" not in heard
            both = "[(a.send(b'x'), b.recv(9)) for a, b in pairs]"
            assert (await session.run_cell(both)).result == repr([(1, b"x")] * 3)
            anew = "a, b = socket.socketpair(); a.send(b'x'), b.recv(9)"
            assert (await first.run_cell(anew)).result == repr((1, b"x"))


async def test_tasks_go_along_with_a_fork(branching):
    begin = """
import asyncio, socket
def listen():
    global a, b
    a, b = socket.socketpair()
    a.setblocking(False)
    loop.add_reader(a, lambda: heard.append(a.recv(9)))
loop, heard, event = asyncio.get_running_loop(), [], asyncio.Event()
async def wait():
    await event.wait()
    return len(heard)
task = asyncio.create_task(wait())
await asyncio.to_thread(int)
"""
    async with await branching.session() as session:
        assert (await session.run_cell(begin)).error is None
        async with await forked(session) as other:
            for one in (session, other):
                assert (await one.run_cell("listen()")).error is None  # the same number for both
            waits = asyncio.create_task(session.run_cell("await asyncio.sleep(1); len(heard)"))
            result = await other.run_cell("b.send(b'x'); await asyncio.sleep(0.1); heard")
            assert result.result == "[b'x']"
            assert (await waits).result == "0"
            for one, count in ((session, 0), (other, 1)):
                assert (await one.run_cell("event.set(); await task")).result == str(count)
                assert (await one.run_cell("await asyncio.to_thread(int)")).result == "0"


async def test_randomness_of_numpy_is_not_repeated_but_generators_go_along(branching):
    async with await branching.session() as session:
        await session.run_cell("import random, numpy as np\nown, mine = np.random.default_rng(1), random.Random(1)")
        async with await forked(session) as other:
            drawn = [(await one.run_cell("np.random.random()")).result for one in (session, other)]
            assert drawn[0] != drawn[1]
            drawn = [(await one.run_cell("own.random(), mine.random()")).result for one in (session, other)]
            assert drawn[0] == drawn[1]


async def test_what_cannot_be_copied_is_left_out(branching):
    async with await branching.session() as session:
        await session.run_cell(
            NEW_IN_TMP
            + "import socket\nos.mkfifo('/tmp/fifo')\ns = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/socket')\n"
            "os.symlink('nowhere', '/tmp/broken')\nos.mkdir('/tmp/closed', 0)"
        )
        async with await forked(session) as other:
            assert (await other.run_cell("new_in_tmp()")).result == "['broken']"
            assert (await session.run_cell("new_in_tmp()")).result.count(",") == 3


@pytest.mark.parametrize("maker", [name for name in ISOLATED if name not in BRANCHING])
async def test_where_sessions_cannot_be_forked_they_say_so_and_go_on(maker):
    async with MAKERS[maker]() as made, await made.session() as session:
        await session.run_cell("x = 42")
        with pytest.raises(SandboxError, match="fork"):
            await session.fork()
        assert (await session.run_cell("x")).result == "42"


async def test_a_fork_of_something_large_is_quick(branching):
    async with await branching.session(memory_mb=400) as session:
        await session.run_cell("data = bytearray(b'x' * (100 << 20))")
        for _ in range(8):  # once it must be quick; a busy machine may hold up any of them
            began = time.monotonic()
            async with await forked(session) as other:
                took = time.monotonic() - began
                assert (await other.run_cell("len(data) >> 20")).result == "100"
            if took < 1:
                break
        assert took < 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_an_idle_session_is_small():
    """Proportional memory: what is shared with the template counts once."""
    if "namespaces" not in MAKERS or os.geteuid() != 0:
        pytest.skip("needs root, to read the memory of others")
    from psutil import NoSuchProcess, Process

    def has_own_memory(process):
        """The first process of a namespace has none: it runs in that of the zygote, its oldest sibling. Nor has the
        helper that forks an interpreter."""
        number = {"x86_64": 312, "aarch64": 272}[platform.machine()]  # kcmp, KCMP_VM
        zygote = min(process.parent().children(), key=lambda one: (one.create_time(), one.pid)).pid
        owners = {zygote, process.ppid()} - {process.pid}
        return all(ctypes.CDLL(None).syscall(number, process.pid, owner, 1, 0, 0) for owner in owners)

    async with MAKERS["namespaces"]() as made, await made.session() as first:
        await first.run_cell("1")
        templates = [Process(pid) for pid in made.template_ids]

        def proportional() -> float:
            while True:
                family = {child for one in templates for child in [one, *one.children(recursive=True)]}
                with contextlib.suppress(NoSuchProcess):  # one ended meanwhile: look again
                    return sum(process.memory_full_info().pss for process in family if has_own_memory(process)) / 2**20

        before = proportional()
        sessions = [await made.session() for _ in range(20)]
        for one in sessions:
            await one.run_cell("x = 1")
        each = (proportional() - before) / 20
        for one in sessions:
            await one.close()
    assert each < 4, f"{each:.1f} MB for each idle session"


async def test_a_fork_keeps_what_its_origin_set_of_its_process(branching):
    """Limits, and what signals do, though another process than the origin may make the fork."""
    sets = "import os, resource, signal\nsignal.signal(signal.SIGUSR1, lambda *_: heard.append(1))\nheard = []\n"
    sets += "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_NOFILE, (50, 60))\n"
    sets += "os.umask(0o027)"
    look = "os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR2)\n"
    look += "heard, resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o027), signal.pthread_sigmask(0, [])"
    async with await branching.session() as session:
        assert (await session.run_cell(sets)).error is None
        async with await forked(session) as other, await forked(other) as third:
            for one in (session, other, third):
                assert (await one.run_cell(look)).result == f"([1], (50, 60), {0o027}, set())"
