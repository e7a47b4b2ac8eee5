"""What a program can do to the programs beside it, and to the other processes of the user that runs the sandbox.

Most of this matters for an ordinary user, whose programs have that user's id: each test becomes one in a process of its
own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from abuse.surroundings import why_not

from tests.tools.sandbox.abuse.scene import marked
from tests.tools.sandbox.witness import beside_a_witness, gone, marking
from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.host.template_process import TemplateProcess
from toolgym.tools.sandbox.local.kernel import landlock

FOLDER = str(Path(__file__).parent)
LEVELS = [level for level in probe()["levels"] if level != "uid"]
needs_user = pytest.mark.skipif(bool(why_not("user")), reason=why_not("user") or "-")

_START = """
import asyncio, os, signal, subprocess, sys
sys.path.insert(0, {folder!r})
from abuse.scene import marked
from abuse.surroundings import enter
from toolgym.tools.sandbox.local import LocalSandbox
if os.geteuid() == 0:
    enter("user")

async def main(level):
{body}

asyncio.run(main({level!r}))
"""


def as_user(level: str, body: str) -> str:
    """Run the body of a coroutine as an ordinary user. Returns what it prints."""
    code = _START.format(folder=FOLDER, body=textwrap.indent(textwrap.dedent(body), "    "), level=level)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


RENICING = """
import ctypes, os, platform
for which in (os.PRIO_USER, os.PRIO_PGRP):
    try: os.setpriority(which, 0, 7)
    except OSError: pass
ioprio_set = {"x86_64": 251, "aarch64": 30}[platform.machine()]
for which in (2, 3):
    ctypes.CDLL(None).syscall(ioprio_set, which, 0, (2 << 13) | 7)
os.setpriority(os.PRIO_PROCESS, 0, 9)
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


@needs_user
def test_a_program_cannot_slow_down_the_users_other_processes():
    said = as_user("landlock", f"""
        other = subprocess.Popen(["sleep", "60"])
        async with LocalSandbox(preload=(), level=level) as sandbox:
            first = await sandbox.run({RENICING!r})
            after = await sandbox.run("import os; print(os.nice(0))")
        print(first.stdout, after.stdout, os.getpriority(0, other.pid), os.nice(0))
        other.kill()
        """)  # fmt: skip
    assert said.split() == ["9", *[str(os.nice(0))] * 3]


EVASIONS = [
    "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); stay()",
    "thread = threading.Thread(target=again); thread.start(); thread.join()",
]
"""Ways out of the kernel's signal at a parent's end."""


@needs_user
def test_no_program_outlives_a_template_that_is_killed():
    mark = f"stay{os.getpid()}"
    stay = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0); time.sleep(300)"
    code = f"import ctypes, os, sys, threading\nSTAY = {stay!r}\n"
    code += "def stay(): exec(STAY)\ndef again(): os.execv(sys.executable, [sys.executable, '-c', STAY])\n"
    said = as_user("landlock", f"""
        async def until(count):
            for _ in range(6000):
                if len(marked({mark!r})) == count:
                    return True
                await asyncio.sleep(0.01)

        async with LocalSandbox(preload=(), level=level) as sandbox:
            running = [asyncio.ensure_future(sandbox.run({code!r} + way, timeout=300)) for way in {EVASIONS!r}]
            print(await until({len(EVASIONS)}))
            os.kill(sandbox.template_ids[0], signal.SIGKILL)
            for one in running:
                one.cancel()
            print(await until(0))
        """)  # fmt: skip
    assert said.split() == ["True", "True"]


BOMB = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
DAEMON = "import os, time\nif not os.fork():\n    if not os.fork():\n        {}        time.sleep(300)\n"
DAEMON += "    os._exit(0)\nos.wait()"
needs_uid = pytest.mark.skipif("uid" not in probe()["levels"], reason="programs have no users of their own here")


@needs_uid
async def test_a_fork_bomb_is_its_own_programs_fault_and_costs_its_neighbours_nothing():
    mark, kept = f"bomb{os.getpid()}", f"kept{os.getpid()}"
    async with beside_a_witness("uid", kind=LocalSandbox) as sandbox, await sandbox.session() as other:
        await other.run_cell(DAEMON.format(marking(kept)))
        templates = sandbox.template_ids
        beside = asyncio.create_task(sandbox.run("import time; time.sleep(2); print('fine')", timeout=60))
        began = time.monotonic()
        bombs = [sandbox.run(marking(mark) + BOMB, timeout=1) for _ in range(2)]
        assert [one.status for one in await asyncio.gather(*bombs)] == [ExecutionStatus.TIMEOUT] * 2
        assert time.monotonic() - began < 15
        assert (await beside).stdout == "fine\n"
        await gone(mark)
        async with await sandbox.session() as session:
            assert (await session.run_cell(marking(mark) + BOMB, timeout=1)).status == "timeout"
        await gone(mark)
        assert sandbox.template_ids == templates
        assert len(marked(kept)) == 1, "what a session started ends with that session, and not with another program"
    await gone(kept)


@needs_uid
async def test_a_fork_bomb_does_not_outlive_a_template_that_is_killed():
    mark = f"bomb{os.getpid()}"
    async with LocalSandbox(preload=(), level="uid", python="/usr/bin/python3", templates=1) as sandbox:
        bomb = asyncio.create_task(sandbox.run(marking(mark) + BOMB, timeout=60))
        while len(marked(mark)) < 10:
            await asyncio.sleep(0.01)
        os.kill(sandbox.template_ids[0], signal.SIGKILL)
        bomb.cancel()
    await gone(mark)


async def test_what_ends_its_template_again_and_again_is_at_fault_and_its_neighbours_are_not(monkeypatch):
    lost, request = [], TemplateProcess.request

    async def ends(self, message, **rest):
        if "ends the template" in message.get("code", ""):
            asyncio.get_running_loop().call_later(0.2, self.kill)
            lost.append(self)
        return await request(self, message, **rest)

    monkeypatch.setattr(TemplateProcess, "request", ends)
    async with LocalSandbox(preload=(), templates=1) as sandbox:
        beside = [asyncio.create_task(sandbox.run("import time; time.sleep(1); print('fine')")) for _ in range(3)]
        result = await sandbox.run("import time; time.sleep(20)  # ends the template")
        assert (result.status, len({*lost})) == (ExecutionStatus.KILLED, 5)
        assert "ended its template process 5 times, 3 of them with no other program beside it" in result.message
        assert [(await one).stdout for one in beside] == ["fine\n"] * 3


TAKING = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
while libc.inotify_init() >= 0: pass
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
while libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, 0) == 0: pass
"""
WANTING = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
timer = ctypes.c_void_p()
print(libc.inotify_init() >= 0, libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, 0), end=" ")
print(libc.timer_create(1, None, ctypes.byref(timer)))
"""


@needs_user
@pytest.mark.skipif("namespaces" not in LEVELS, reason="programs have no users of their own here")
def test_quotas_of_the_user_are_not_for_one_program_to_take():
    said = as_user("namespaces", f"""
        async with LocalSandbox(preload=(), level=level) as sandbox, await sandbox.session() as session:
            assert (await session.run_cell({TAKING!r})).status == "ok"
            print((await sandbox.run({WANTING!r})).stdout, flush=True)
            subprocess.run([sys.executable, "-c", {WANTING!r}])
        """)  # fmt: skip
    assert said.split() == ["True", "0", "0"] * 2


@pytest.mark.parametrize("level", LEVELS)
async def test_no_crash_is_handed_to_a_handler_of_cores(level):
    """What the kernel does for a limit of 1 is in core(5); the machine's pattern is not a test's to change."""
    code = """
import os, resource, signal
core = resource.RLIMIT_CORE
print(resource.getrlimit(core))
for wanted in ((0, 0), (0, 1)):
    resource.setrlimit(core, wanted)
    print(resource.getrlimit(core), resource.prlimit(0, core))
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.prlimit(0, resource.RLIMIT_FSIZE)[0] > 1, flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    async with LocalSandbox(preload=(), level=level) as sandbox:
        result = await sandbox.run(code, fetch_files=["core"])
    assert result.stdout == "(1, 1)\n" + "(1, 1) (1, 1)\n" * 2 + "(50, 50) True\n"
    assert (result.return_code, dict(result.files)) == (-11, {})


LISTENS = """
import socket
there = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
there.bind("\\0tenants")
there.settimeout(25)
"""
SENDS = """
import socket
try: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"hello", "\\0tenants"); print("sent")
except OSError as error: print(type(error).__name__)
"""


@pytest.fixture
def old_landlock(monkeypatch):
    """Template processes see the Landlock of Linux 6.7."""
    from toolgym.tools.sandbox.local.host import template_process

    older = "from toolgym.tools.sandbox.local.kernel import landlock\nlandlock.abi = lambda: 4\n"
    line = "from toolgym.tools.sandbox.local.broker import startup"
    assert line in template_process._BOOT
    monkeypatch.setattr(template_process, "_BOOT", template_process._BOOT.replace(line, older + line))


@pytest.mark.skipif("namespaces" not in LEVELS or landlock.abi() < 4, reason="needs namespaces, and a Landlock to hide")
async def test_abstract_sockets_do_not_join_programs_where_landlock_is_old(old_landlock):
    async with LocalSandbox(preload=(), level="namespaces") as sandbox, await sandbox.session() as session:
        assert sandbox.isolation.landlock == 4
        assert (await session.run_cell(LISTENS)).status == "ok"
        assert (await sandbox.run(SENDS)).stdout == "ConnectionRefusedError\n"
        assert (await session.run_cell(SENDS)).stdout == "sent\n"
        assert (await session.run_cell("there.recv(10)")).result == "b'hello'"
        address = "import socket; socket.socket(socket.AF_INET)"
        assert (await session.run_cell(address)).error.name == "PermissionError"


@pytest.mark.skipif("namespaces" not in LEVELS or landlock.abi() < 4, reason="needs namespaces, and a Landlock to hide")
async def test_what_an_old_landlock_leaves_open_is_told(old_landlock):
    async with LocalSandbox(preload=(), level="namespaces", network="host") as sandbox:
        await sandbox.start()
        assert any("abstract sockets" in sentence for sentence in sandbox.isolation.missing)


FILL_PIPES = """
import fcntl, os
kept = []
try:
    while True:
        kept.append(os.pipe())
        fcntl.fcntl(kept[-1][0], fcntl.F_SETPIPE_SZ, 1 << 20)
except PermissionError:
    print("full")
"""
PIPE_SIZE = "import fcntl, os; print(fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ))"


@pytest.mark.skipif(os.geteuid() != 0 or "namespaces" not in LEVELS, reason="root gives each program its own user")
async def test_a_program_cannot_use_up_the_pipes_of_others():
    async with LocalSandbox(preload=(), level="namespaces") as sandbox, await sandbox.session() as greedy:
        assert not any("quotas" in one for one in sandbox.isolation.missing)
        assert (await greedy.run_cell(FILL_PIPES)).stdout == "full\n"
        assert int((await greedy.run_cell(PIPE_SIZE)).stdout) < 65536
        assert (await sandbox.run(PIPE_SIZE)).stdout == "65536\n"


@needs_user
def test_shared_quotas_of_an_ordinary_user_are_named():
    said = as_user("namespaces", """
        async with LocalSandbox(preload=(), level=level) as sandbox:
            await sandbox.start()
            print(*sandbox.isolation.missing, sep=chr(10))
        """)  # fmt: skip
    assert "share its quotas of pipes" in said
