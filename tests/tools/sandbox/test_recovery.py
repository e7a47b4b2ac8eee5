"""A cell that ends or hangs its interpreter costs no variables: the session continues from before the cell."""

from __future__ import annotations

import asyncio
import json

import pytest
import pytest_asyncio

from tests.parameters import first
from tests.tools.sandbox.conformance.sandbox_makers import LEVELS, ThroughServer, local
from tests.tools.sandbox.plain_python import PYTHONS
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHADOWED = [level for level in LEVELS if level != "landlock"]

POOL = "import concurrent.futures, time\nwith concurrent.futures.{0}(2) as pool: list(pool.map(time.sleep, [60] * 2))"
ALARM = "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(60)"
BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
LOCK = "import threading\nlock = threading.Lock()\nlock.acquire(); lock.acquire()"
KILL_OTHERS = """
import os
for pid in range(2, 200):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
        except OSError:
            pass
os._exit(3)
"""
SHADOWS = """
import os
children = open(f'/proc/self/task/{os.getpid()}/children').read().split()
[int(number) for number in children if os.path.exists(f'/proc/{number}/stat')]
"""
KILL_SHADOW = r"""
import os, subprocess
program = '''
while ! [ -e killed ]
do
    sleep 0.01
    for number in $(seq 2 99)
    do [ $number = $$ ] || [ $number = $0 ] || ! kill -9 $number || touch killed
    done
done
'''
killer = subprocess.Popen(['sh', '-c', program, str(os.getpid())], stderr=subprocess.DEVNULL)
"""
SERVER = """
import subprocess
{0} = subprocess.Popen(['sh', '-c', 'setsid sleep 60 & sleep 60'], start_new_session=True)
"""
SERVERS = "[path for path in __import__('glob').glob('/proc/[0-9]*/cmdline') if b'sleep' in open(path, 'rb').read()]"
THREAD = """
import threading, time
turns = 0
def count():
    global turns
    while True:
        turns += 1
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
"""

ENDINGS = {
    # name: the cell, its status, whether the interpreter was lost, its exit code
    "leaves at once": ("import os; os._exit(7)", "killed", True, 7),
    "crashes": ("import ctypes; ctypes.string_at(0)", "killed", True, -11),
    "ignores interrupts": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "timeout",
        True,
        None,
    ),
    "waits for a shell": ("import os; os.system('sleep 60')", "timeout", False, None),
    "floods its output": ("import os\nwhile True: os.write(1, bytes(60_000))", "output_limit", True, None),
    "leaves at once with 0": ("import os; os._exit(0)", "killed", True, 0),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "killed", True, -9),
    "is terminated": ("import os; os.kill(os.getpid(), 15)", "killed", True, -15),
    "aborts": ("import os; os.abort()", "killed", True, -6),
    "crashes in a thread": (
        "import ctypes, threading, time\nthreading.Thread(target=ctypes.string_at, args=[0]).start()\ntime.sleep(60)",
        "killed",
        True,
        -11,
    ),
    "kills its group": ("import os; os.killpg(0, 9)", "killed", True, -9),
    "has an alarm": (ALARM, "killed", True, -14),
    "stops": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout", True, None),
    "becomes another program": ("import os; os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", "killed", True, 5),
    "closes all descriptors": ("import os; os.closerange(3, 256)", "killed", True, 252),
    "writes to every descriptor": ("import os\nos.write(3, b'\\xff' * 100)", "killed", True, None),
    "catches all": (
        "import time\nwhile True:\n    try: time.sleep(1)\n    except BaseException: pass",
        "timeout",
        True,
        None,
    ),
    "forks": ("import os; os.fork()", "ok", False, None),
    "forks without end": (BOMB, "timeout", None, None),
    "sleeps": ("import time; time.sleep(60)", "timeout", False, None),
    "waits for a lock": (LOCK, "timeout", False, None),
    "waits for a shell's program": (
        "import subprocess; subprocess.run('sleep 60; sleep 60', shell=True)",
        "timeout",
        False,
        None,
    ),
    "waits for a pool of threads": (POOL.format("ThreadPoolExecutor"), "timeout", False, None),
    "waits for a pool of processes": (POOL.format("ProcessPoolExecutor"), "timeout", False, None),
    "awaits": ("import asyncio\nawait asyncio.sleep(60)", "timeout", False, None),
    "reads": ("input()", "error", False, None),
    "exits": ("exit()", "ok", False, 0),
    "interrupts itself": ("import os; os.kill(os.getpid(), 2)", "error", False, None),
    "uses too much memory": ("rows = []\nwhile True: rows.append(bytearray(10_000_000))", None, None, None),
    "recurses too deep": ("import sys\nsys.setrecursionlimit(10**8)\ndef f(): f()\nf()", None, None, None),
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sandbox():
    async with local(SHADOWED[0], preload=(), limits=Limits(memory_mb=300, output_bytes=16 * 1024)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def session(sandbox):
    async with await sandbox.session(recover=True) as opened:
        yield opened


@first("name", ENDINGS, short=5)
async def test_each_ending_of_a_cell_keeps_the_variables(session, name):
    code, status, recovered, number = ENDINGS[name]
    assert (await session.run_cell("kept = [1, 2]\nlost = False")).status is ExecutionStatus.OK
    result = await session.run_cell(f"lost = True\n{code}", timeout=0.3)
    assert result.alive
    assert status is None or result.status == status
    assert recovered is None or result.recovered is recovered
    assert result.return_code == number
    after = await session.run_cell("kept, lost, input")
    assert after.result.startswith(f"([1, 2], {not result.recovered}, ")


@pytest.mark.long
@pytest.mark.parametrize("level", SHADOWED[1:])
async def test_each_ending_keeps_the_variables_at_every_level(level):
    limits = Limits(memory_mb=300, output_bytes=16 * 1024)
    async with local(level, preload=(), limits=limits) as sandbox, await sandbox.session(recover=True) as session:
        for name in ENDINGS:
            await test_each_ending_of_a_cell_keeps_the_variables(session, name)


async def test_the_second_loss_reports_its_exit_code_too(session):
    for number in (3, 4):
        result = await session.run_cell(f"import os; os._exit({number})")
        assert (result.recovered, result.return_code) == (True, number)


async def test_files_are_as_the_lost_cell_left_them(session):
    await session.run_cell("open('kept', 'w').write('before')")
    lost = await session.run_cell("import os\nopen('kept', 'w').write('after')\nprint('seen', flush=True)\nos._exit(1)")
    assert lost.stdout == "seen\n"
    assert await session.read_file("kept") == b"after"


async def test_random_numbers_continue_as_before_the_cell(session):
    await session.run_cell("import random, threading, time; random.seed(5); expected = random.random(); random.seed(5)")
    await session.run_cell("threading.Thread(target=time.sleep, args=[60], daemon=True).start()")
    assert (await session.run_cell("import os; random.random(); os._exit(1)")).recovered
    assert (await session.run_cell("random.random() == expected, threading.active_count()")).result == "(True, 1)"


async def test_a_recovered_session_forks_and_runs_programs(sandbox):
    async with await sandbox.session(recover=True) as session:
        await session.run_cell("x = 1")
        program = await session.start("sleep 60; echo late")
        await session.checkpoint("before")
        assert (await session.run_cell("import os; os._exit(1)")).recovered
        (fork,) = await session.fork(n=1)
        (earlier,) = await session.fork("before", n=1)
        for branch in (fork, earlier, session):
            assert (await branch.run_cell("x = x + 1; import os; os._exit(2)")).recovered
            assert (await branch.run_cell("x")).result == "1"
            assert (await branch.exec("echo there")).stdout == "there\n"
        assert (await program.poll()) is None
        for branch in (fork, earlier):
            await branch.close()


async def test_processes_of_a_stopped_cell_are_gone_and_earlier_ones_are_not(sandbox):
    async with await sandbox.session(recover=True) as session:
        await session.run_cell(SERVER.format("server") + f"import time\nwhile len({SERVERS}) < 3: time.sleep(0.01)")
        stopped = await session.run_cell(SERVER.format("other") + "other.wait()", timeout=0.3)
        assert stopped.status is ExecutionStatus.TIMEOUT
        assert (await session.run_cell(f"len({SERVERS}), server.poll()")).result == "(3, None)"


async def test_a_session_without_recovery_is_lost(sandbox):
    async with await sandbox.session() as session:
        lost = await session.run_cell("import os; os._exit(3)")
        assert (lost.alive, lost.recovered, lost.return_code) == (False, False, 3)
    with pytest.raises(ConfigError, match="recover must be true or false"):
        await sandbox.session(recover="yes")


async def test_a_cell_that_kills_its_shadow_loses_the_session(sandbox):
    async with await sandbox.session(recover=True) as session:
        lost = await session.run_cell(KILL_OTHERS)
        assert (lost.alive, lost.recovered, lost.return_code) == (False, False, 3)


async def test_a_shadow_is_not_waited_for(sandbox):
    cell = "import os\ntry: os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: print('no child')"
    async with await sandbox.session(recover=True) as session:
        assert (await session.run_cell(cell)).stdout == "no child\n"


@pytest.mark.parametrize("pause", [0, 0.1])
async def test_a_shadow_holds_no_end_of_a_pipe(session, pause):
    await session.run_cell("import subprocess; cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE)")
    await asyncio.sleep(pause)
    assert (await session.run_cell("cat.stdin.close(); cat.wait()", timeout=5)).result == "0"


async def test_pipes_and_sockets_of_earlier_cells_are_closed_after_a_recovery(session):
    await session.run_cell("import asyncio, os, socket\nawait asyncio.sleep(0)\nread, write = os.pipe()")
    await session.run_cell("ours, theirs = socket.socketpair(); ours.settimeout(5)\nread, write, ours.fileno()")
    assert (await session.run_cell("os._exit(1)")).recovered
    assert (await session.run_cell("os.read(read, 1), ours.recv(1), open('new', 'w').fileno()")).result.startswith(
        "(b'', b'', "
    )
    assert (await session.run_cell("os.write(write, b'x')")).error.name == "BrokenPipeError"
    assert (await session.run_cell("await asyncio.sleep(0.001, 'awaited')")).result == "'awaited'"


@first("before", ["pass", THREAD, "import signal; signal.signal(signal.SIGUSR1, print)", "1 +"], short=2)
async def test_a_shadow_is_made_between_cells(sandbox, before):
    """It is made during the cell where threads or handlers of signals may change variables between two cells."""
    runs_between = before == THREAD or "signal" in before
    async with await sandbox.session(recover=True) as session:
        for pause in (0.1, 0.3, 1, 3):  # on a busy machine it takes longer
            await session.run_cell(before)
            await asyncio.sleep(pause)
            later = int((await session.exec("echo $$")).stdout)
            numbers = json.loads((await session.run_cell(SHADOWS)).result)
            if runs_between or max(numbers) < later:
                break
        assert (max(numbers) > later) is runs_between


async def test_a_shadow_that_was_killed_between_cells_is_made_again(sandbox):
    async with await sandbox.session(recover=True) as session:
        await session.run_cell(f"kept = 1\n{KILL_SHADOW}")
        while not await session.exists("killed"):
            await asyncio.sleep(0.01)
        assert (await session.run_cell("import os; os._exit(1)")).recovered
        assert (await session.run_cell("kept")).result == "1"


async def test_threads_pause_while_nothing_runs(sandbox):
    turns = {}
    for idle in ("pause", "run"):
        async with await sandbox.session(idle=idle) as session:
            await session.run_cell(THREAD)
            before = int((await session.run_cell("turns")).result)
            await asyncio.sleep(0.1)
            turns[idle] = int((await session.run_cell("turns")).result) - before
            await session.exec("sleep 0.1")  # programs may need the threads
            turns[f"{idle} beside a program"] = int((await session.run_cell("turns")).result) - turns[idle] - before
    assert turns["pause"] * 3 < turns["run"]
    assert turns["pause"] * 3 < turns["pause beside a program"]
    with pytest.raises(ConfigError, match="idle must be one of"):
        await sandbox.session(idle="never")


async def test_exit_leaves_standard_input_open(session):
    for leave in ("exit()", "quit()", "raise SystemExit"):
        await session.run_cell(leave)
        assert (await session.run_cell("input()")).error.name == "EOFError"


@pytest.mark.matrix
async def test_a_server_passes_the_options_on():
    async with ThroughServer(local(SHADOWED[0], preload=())) as server:
        for options, recovered in (({"recover": True}, True), ({"idle": "run"}, False)):
            session = await server.session(**options)
            result = await session.run_cell("import os; os._exit(3)")
            assert (result.recovered, result.alive, result.return_code) == (recovered, recovered, 3)
            await session.close()


FILL = "x = 2\nfor number in range(60): open(f'part{number}', 'wb').write(b'a' * (1 << 18)); time.sleep(0.004)"


@pytest.mark.matrix
@pytest.mark.skipif("uid" not in PYTHONS, reason="needs the level uid")
async def test_a_cell_that_fills_the_disk_costs_no_variables_once():
    limits = Limits(disk_mb=8)
    sandbox = LocalSandbox(level="uid", python=PYTHONS["uid"], preload=[], limits=limits)
    async with sandbox, await sandbox.session(recover=True) as session:
        await session.run_cell("import os, time; x = 1")
        for _ in range(2):  # the second time, room was made before
            cell = await session.run_cell(FILL)
            assert (cell.status, cell.alive, cell.recovered) == (ExecutionStatus.DISK_LIMIT, True, True)
            assert (await session.run_cell("x")).result == "1"
            await session.run_cell("for name in os.listdir('.'): os.remove(name)\ntime.sleep(0.3)")
        assert (await session.run_cell(FILL)).recovered
        assert not (await session.run_cell(FILL.replace("part", "more"))).alive
