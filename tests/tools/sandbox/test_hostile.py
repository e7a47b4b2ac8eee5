"""Programs that speak the sandbox's own protocol, or use what it lent them, against the process that all share.

Each attack runs beside another session, which must not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.sandbox.witness import FORKS, TELL, beside_a_witness
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.protocol import answer_codec

LEVELS = tuple(probe()["levels"])
KILLED = ExecutionStatus.KILLED

needs_namespaces = pytest.mark.skipif("namespaces" not in LEVELS, reason="no namespaces here")
needs_code = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no code for this processor")

FRAMES = {
    "an infinite code": b'{"done": Infinity, "cpu": 0, "rss_kb": 0}',
    "an infinite code in digits": b'{"done": 1e999, "cpu": 0, "rss_kb": 0}',
    "a code of many digits": b'{"done": 1' + b"0" * 4000 + b', "cpu": 0, "rss_kb": 0}',
    "a time that is no number": b'{"done": 0, "cpu": NaN, "rss_kb": 0}',
    "infinite memory": b'{"done": 0, "cpu": 0, "rss_kb": Infinity}',
    "an infinite compiler": b'{"compiled": Infinity}',
    "a folder without a handle": b'{"folder": "."}',
    "words instead of numbers": b'{"done": [], "cpu": {}, "rss_kb": null}',
    "no object": b"[1]",
    "no JSON": b"\xff\xfe",
    "an absurd depth": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "millions of parts": b'{"a": [' + b"[]," * 1_100_000 + b"[]]}",
    "nothing known": b'{"hello": 1}',
    "a failure of the sandbox": b'{"broken": "no memory"}',
}


@pytest.mark.parametrize("level", LEVELS)
async def test_no_frame_of_a_program_ends_the_template(level):
    async with beside_a_witness(level) as sandbox:
        for name, frame in FRAMES.items():
            program = f"{TELL}\nimport sys\ntell(open('frame', 'rb').read())\ntime.sleep(20)"
            result = await sandbox.run(program, files={"frame": frame}, timeout=10)
            assert (name, result.status, result.return_code) == (name, KILLED, result.return_code)
            assert result.message == ""


@pytest.mark.parametrize("level", LEVELS)
async def test_no_program_calls_its_own_failure_the_sandboxs(level):
    """A policy must not escape a bad reward this way."""
    attack = f'{TELL}\ntell(b\'{{"broken": "no memory"}}\')\ntime.sleep(20)'
    async with beside_a_witness(level) as sandbox:
        assert (await sandbox.run(attack, timeout=10)).status is KILLED
        session = await sandbox.session()
        assert (await session.run_cell(attack, timeout=10)).status is KILLED
        await session.close()


@pytest.mark.parametrize("depth", [190, 205, 400, 900, 950, 960, 970, 980, 990, 1000, 5000])
async def test_a_cell_whose_answer_is_deep_harms_no_other(depth):
    """What one process can parse, another cannot always write or parse: the host's stack is another."""
    attack = f"{TELL}\nanswer(b'{{\"display\": ' + b'[' * {depth} + b']' * {depth} + b'}}')\ntime.sleep(20)"
    async with beside_a_witness(None) as sandbox:
        session = await sandbox.session()
        result = await session.run_cell(attack, timeout=10)
        assert result.status in ((ExecutionStatus.OK,) if depth < answer_codec.MAX_DEPTH else (KILLED,))
        await session.close()


FORGED_NUMBERS = {
    "the first process": "1",
    "itself": "os.getpid()",
    "nobody": "99999",
    "a grandchild": "GRANDCHILD",
    "no number": "-1",
    "more than a number": "1 << 70",
    "text": "'one'",
}


@needs_namespaces
@pytest.mark.parametrize("number", FORGED_NUMBERS)
async def test_a_fork_whose_number_is_forged_harms_no_other(number):
    attack = f"{FORKS}\nimport subprocess\n"
    attack += "GRANDCHILD = int(subprocess.check_output('sleep 200 >&- & echo $!', shell=True))\n"
    attack += f"fork_by(lambda: {FORGED_NUMBERS[number]})"
    async with beside_a_witness("namespaces") as sandbox:
        session = await sandbox.session()
        await session.run_cell(attack)
        async with asyncio.timeout(25):  # the broker answers; no timeout is needed to end this
            with pytest.raises(SandboxError, match="cannot be forked: (error|killed)"):
                await session.fork()
        await session.close()


@needs_namespaces
async def test_a_session_that_only_says_that_it_forked_is_answered():
    attack = f"{TELL}{FORKS}\n"
    attack += "def lie():\n    tell(b'{\"done\": true}')\n    time.sleep(200)\nfork_by(lie)"
    async with beside_a_witness("namespaces") as sandbox:
        session = await sandbox.session()
        await session.run_cell(attack)
        async with asyncio.timeout(25):
            with pytest.raises(SandboxError, match="no copy came of it"):
                await session.fork()
        await session.close()


@needs_namespaces
async def test_a_copy_that_fails_leaves_its_origin_alive():
    attack = f"{FORKS}\ndef fork():\n    pid = REAL()\n    if pid == 0:\n        os._exit(1)\n"
    attack += "    return pid\nfork_by(fork)\nx = 1"
    async with beside_a_witness("namespaces") as sandbox, await sandbox.session() as session:
        await session.run_cell(attack)
        async with asyncio.timeout(25):
            with pytest.raises(SandboxError, match="cannot be forked"):
                await session.fork()
        assert session.alive
        assert (await session.run_cell("x")).result == "1"


@needs_namespaces
async def test_a_session_cannot_block_the_template_through_a_fork():
    """The program keeps every descriptor that it is sent, and makes reads from them block."""
    attack = """
import fcntl, os, socket
def keep(real):
    def receive(*arguments):
        data, fds, flags, address = real(*arguments)
        for fd in fds:
            os.dup(fd)
        return data, fds, flags, address
    return receive
socket.recv_fds = keep(socket.recv_fds)
def send(real):
    def sending(where, data, fds):
        for fd in fds:
            os.dup(fd)
        return real(where, data, fds)
    return sending
socket.send_fds = send(socket.send_fds)
"""
    block = """
import fcntl, os
for fd in range(3, 200):
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    except OSError:
        pass
"""
    async with beside_a_witness("namespaces") as sandbox:
        session = await sandbox.session()
        await session.run_cell(attack)
        fork = await session.fork()
        await session.run_cell(block)
        async with asyncio.timeout(25):
            assert (await fork.run_cell("1 + 1")).result == "2"
            assert (await sandbox.run("print(1)")).stdout == "1\n"
        await fork.close()
        await session.close()


@needs_namespaces
async def test_descriptors_are_lent_to_a_fork_alone():
    async with beside_a_witness("namespaces") as sandbox:
        for message in (b'{"ends": true}', b'{"forked": true}'):
            async with await sandbox.session(recover=False) as session:
                result = await session.run_cell(f"{TELL}\ntell({message!r})\ntime.sleep(20)", timeout=10)
                assert result.status is KILLED or message == b'{"forked": true}'
                assert not result.alive


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "landlock"])
async def test_no_program_makes_children_of_the_template(level):
    """The broker would never reap such children, and the namespace could not end."""
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    attack = (
        f"import ctypes, os\ncall = ctypes.CDLL(None).syscall\npid = call({number}, 0x8000 | 17, 0, 0, 0, 0)\n"
        "if pid == 0:\n    os._exit(0)\nprint(pid)"
    )
    async with beside_a_witness(level) as sandbox:
        for _ in range(3):
            assert (await sandbox.run(attack)).stdout == "-1\n"


FIRST_PROCESS = """
import os, signal, sys, time
from toolgym.tools.sandbox.local.kernel import syscalls
from toolgym.tools.sandbox.local.zygote import first_process
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
kept = [os.dup(0) for _ in range(20)]
read, write = os.pipe()
zygote = os.fork()
if zygote == 0:
    maker = first_process.InitMaker(syscalls.thread_id_address())
    os.write(write, f"{maker.make(sibling=True)} {bool(maker._start)}".encode())
    time.sleep(60)
pid, shares_memory = os.read(read, 100).decode().split()
pid = int(pid)
deadline = time.monotonic() + 50
while os.listdir(f"/proc/{pid}/fd") and time.monotonic() < deadline:
    time.sleep(0.01)
status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
left = len(os.listdir(f"/proc/{pid}/fd"))
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV):
    os.kill(pid, number)
time.sleep(0.2)
alive = os.waitpid(pid, os.WNOHANG) == (0, 0)
mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
os.kill(zygote, signal.SIGKILL)
os.waitpid(zygote, 0)
print(shares_memory, left, status["SigBlk"].strip(), alive, caught, len(mask))
"""


@needs_code
def test_the_first_process_holds_nothing_and_hears_nothing():
    """It shares the zygote's memory: a handler of the zygote's would run there, when a program sends the signal."""
    seen = subprocess.run(
        [sys.executable, "-c", FIRST_PROCESS], capture_output=True, text=True, timeout=200, check=False
    )
    # All signals but the two that cannot be blocked.
    every = (1 << 64) - 1 & ~(1 << signal.SIGKILL - 1) & ~(1 << signal.SIGSTOP - 1)
    assert (seen.stdout.split("\n")[0], seen.stderr) == (f"True 0 {every:016x} True [] 0", "")


@needs_namespaces
@needs_code
async def test_the_first_process_cannot_be_reached():
    """No call reads or writes its memory, its files in /proc are closed, and signals do nothing to it."""
    names = ("ptrace", "readv", "writev", "madvise", "getfd", "release", "kcmp")
    known = {"x86_64": (101, 310, 311, 440, 438, 448, 312), "aarch64": (117, 270, 271, 440, 438, 448, 272)}
    numbers = dict(zip(names, known[platform.machine()], strict=True))
    attack = f"""
import ctypes, errno, os, signal
call = ctypes.CDLL(None, use_errno=True).syscall
numbers = {numbers!r}
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 64)
handle = os.pidfd_open(1)
wanted = {{
    "ptrace": (16, 1, 0, 0), "readv": (1, vector, 1, vector, 1, 0), "writev": (1, vector, 1, vector, 1, 0),
    "madvise": (handle, vector, 1, 4, 0), "getfd": (handle, 0, 0), "release": (handle, 0),
    "kcmp": (1, os.getpid(), 1, 0, 0),
}}
for name, arguments in wanted.items():
    ctypes.set_errno(0)
    if call(numbers[name], *arguments) >= 0 or ctypes.get_errno() != errno.EPERM:
        print("reached by", name, ctypes.get_errno())
for name in ("mem", "maps", "fd", "environ", "root", "cwd", "exe", "fdinfo", "map_files", "syscall", "stack", "ns/mnt"):
    try:
        path = f"/proc/1/{{name}}"
        os.listdir(path) if name in ("fd", "fdinfo", "map_files") else os.readlink(path) if name in (
            "root", "cwd", "exe", "ns/mnt") else os.read(os.open(path, os.O_RDWR if name == "mem" else os.O_RDONLY), 1)
        print("opened", name)
    except OSError:
        pass
for number in range(1, 65):
    if number != 19:
        try:
            os.kill(1, number)
        except OSError:
            pass
print("alive")
"""
    async with beside_a_witness("namespaces") as sandbox:
        result = await sandbox.run(attack)
        assert (result.stdout, result.stderr, result.status) == ("alive\n", "", ExecutionStatus.OK)


@needs_namespaces
async def test_of_a_killed_host_nothing_is_left():
    """SIGKILL in the middle of runs, sessions and forks: the kernel ends them all."""
    program = """
import asyncio, os
from toolgym.tools.sandbox.local import LocalSandbox
async def main():
    sandbox = LocalSandbox(preload=[])
    session = await sandbox.session()
    fork = await session.fork()
    runs = [asyncio.create_task(sandbox.run("import time; time.sleep(60)", timeout=60)) for _ in range(3)]
    cells = [asyncio.create_task(one.run_cell("import time; time.sleep(60)", timeout=60)) for one in (session, fork)]
    while sandbox.cpu_slots.executions.in_use < 5:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        below = _below(process.pid)
        assert len(below) > 5
        process.kill()
        process.wait()
    for _ in range(3000):
        left = [pid for pid, started in below.items() if _started(pid) == started]
        if not left:
            break
        await asyncio.sleep(0.02)
    assert left == []


@pytest.mark.skipif("landlock" not in LEVELS, reason="no Landlock here")
async def test_the_folder_of_a_killed_host_is_removed_by_the_next(tmp_path):
    program = """
import asyncio, os, signal
from toolgym.tools.sandbox.local import LocalSandbox
async def main():
    sandbox = LocalSandbox(preload=[], level="landlock")
    await sandbox.run("open('x', 'w')")
    if {kill}:
        os.kill(os.getpid(), signal.SIGKILL)
    await sandbox.close()
asyncio.run(main())
"""
    foreign = tmp_path / "toolgym-sandbox-1-1-1-x"
    foreign.mkdir()

    def play(kill):
        text, environment = program.format(kill=kill), {**os.environ, "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", text], env=environment, check=False, timeout=200)
        return sum(path.name.startswith("toolgym-sandbox-") for path in tmp_path.iterdir())

    assert play(True) == 2
    assert play(False) == 1
    assert foreign.exists()  # of another pid namespace, of which nothing is known


SCARCE = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.local import LocalSandbox
async def main():
    async with LocalSandbox(preload=[], level=sys.argv[1]) as sandbox:
        sessions = [await sandbox.session()]
        await sessions[0].run_cell("x = 1")
        try:
            for _ in range(40):
                sessions.append(await sandbox.session())
            print("there were enough")
        except SandboxError as error:
            print("Too many open files" in str(error), error)
        result = await sandbox.run("print(1)")
        print(result.status.value, result.message)
        for one in sessions[1:]:
            await one.close()
        again = [await sandbox.session() for _ in range(len(sessions) // 2)]
        cell = await sessions[0].run_cell("x")
        print((await sandbox.run("print(1)")).stdout, cell.result or cell, len(again) > 3)
asyncio.run(main())
"""


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "uid"])
def test_a_shortage_of_descriptors_is_told_and_passes(level):
    """Living sessions go on; a call that fails for want of resources is the sandbox's failure and not the program's."""
    seen = subprocess.run(
        [sys.executable, "-c", SCARCE, level], capture_output=True, text=True, timeout=200, check=False
    )
    lines = seen.stdout.splitlines()
    assert lines[0].startswith("True "), seen
    assert lines[1].split()[0] in ("sandbox_error", "ok"), seen
    assert lines[2:] == ["1", " 1 True"], seen


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        pytest.param(30, "30 are allowed", marks=pytest.mark.matrix),
        pytest.param(64, "64 are allowed", marks=pytest.mark.matrix),
        (99, "99 are allowed"),
    ],
)
def test_too_few_descriptors_are_named(limit, message):
    seen = subprocess.run(
        [sys.executable, "-c", SCARCE.replace("(110, 110)", f"({limit}, {limit})"), LEVELS[0]],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    words = seen.stderr.splitlines()[-1]
    assert "SandboxUnavailableError" in words
    assert "at least 100 open files" in words
    assert message in words
    assert "ulimit" in words


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "uid"])
def test_as_few_descriptors_as_are_said_to_do_do(level):
    text = SCARCE.replace("(110, 110)", "(100, 100)")
    seen = subprocess.run([sys.executable, "-c", text, level], capture_output=True, text=True, timeout=200, check=False)
    assert seen.stdout.splitlines()[2:] == ["1", " 1 True"], seen


SCARCE_PIPES = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
from toolgym.tools.errors import SandboxBusyError, SandboxError
from toolgym.tools.sandbox.local import LocalSandbox
async def main():
    async with LocalSandbox(preload=[]) as sandbox:
        session, other = await sandbox.session(), await sandbox.session()
        running = []
        try:
            while True:
                running.append(await session.start(["sleep", "60"]))
        except SandboxBusyError as error:
            print("Too many open files" in str(error))
        for _ in range(3):
            try:
                print((await other.exec(["echo", "1"])).stdout)
            except SandboxError:
                pass
            await end(running.pop())
        for process in running:
            await end(process)
        print((await session.exec(["echo", "2"])).stdout)
async def end(process):
    await process.kill()
    await process.wait(20)
    await process.close()
asyncio.run(main())
"""


def test_a_program_for_which_there_are_no_pipes_is_refused_and_its_session_goes_on():
    seen = subprocess.run(
        [sys.executable, "-c", SCARCE_PIPES], capture_output=True, text=True, timeout=200, check=False
    )
    words = seen.stdout.split()
    assert (words[:1], words[-1:]) == (["True"], ["2"]), seen


def _below(pid: int) -> dict[int, str]:
    """All processes below one, and when they started."""
    found: list[int] = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return {one: _started(one) for one in found[1:]}


def _started(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]
