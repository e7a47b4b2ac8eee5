"""A program ends in the sandbox as without one: the same return code, signal and messages, at every level."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
import pytest_asyncio

from tests.tools.sandbox.plain_python import PYTHONS, comparable, plainly
from toolgym.tools.sandbox.base import ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.host.stack_dumps import take_dump

pytestmark = pytest.mark.asyncio(loop_scope="module")

FATAL = ("SIGKILL", "SIGABRT", "SIGSEGV", "SIGTERM", "SIGXCPU", "SIGFPE", "SIGILL", "SIGBUS", "SIGHUP", "SIGQUIT",
         "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGSYS", "SIGTRAP", "SIGINT")  # fmt: skip
CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
HARMLESS = ("SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH")

PROGRAMS = {
    **{
        f"sends itself {name}": f"import os, signal\nprint('a')\nos.kill(os.getpid(), signal.{name})\nprint('survived')"
        for name in (*FATAL, *HARMLESS)
    },
    "raises a signal": "import signal\nsignal.raise_signal(signal.SIGTERM)",
    "from a thread": "import os, signal, threading\nthreading.Thread(target=lambda: os.kill(os.getpid(), 9)).start()\n"
    "import time; time.sleep(100)",
    "aborts": "import os\nprint('before')\nos.abort()",
    "reads nothing": "import ctypes\nctypes.string_at(0)",
    "exits with 0": "import sys\nsys.exit(0)",
    "exits with None": "import sys\nsys.exit()",
    "exits with 3": "import sys\nsys.exit(3)",
    "exits with -1": "import sys\nsys.exit(-1)",
    "exits with 258": "import sys\nsys.exit(258)",
    "exits with True": "import sys\nsys.exit(True)",
    "exits with a text": "import sys\nsys.exit('so long')",
    "exits with a list": "import sys\nsys.exit([1, 2])",
    "leaves at once": "import os\nos._exit(7)",
    "leaves at once with a large code": "import os\nos._exit(300)",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "raises a group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "is interrupted": "print('a')\nraise KeyboardInterrupt",
    "does not compile": "print('a'\n",
    "raises in an exit function": "import atexit\natexit.register(lambda: 1 / 0)\nprint('a')",
    "handles a signal": "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    "os.kill(os.getpid(), signal.SIGTERM)",
    "catches an interrupt": "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    [0] * 100\n"
    "except KeyboardInterrupt:\n    print('caught')",
}
WITH_CHILDREN = {
    **{
        f"is sent {name} by its child": f"import os, signal, time\nif os.fork() == 0:\n"
        f"    os.kill(os.getppid(), signal.{name})\n    os._exit(0)\ntime.sleep(100)"
        for name in ("SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV")
    },
    "sees how its children end": "# sees how its children end\nimport os, signal\n"
    "for n in (9, 6, 11, 15, 24, 8):\n    pid = os.fork()\n"
    "    if pid == 0:\n        os.kill(os.getpid(), n)\n        os._exit(0)\n    print(os.waitpid(pid, 0)[1] & 127)",
    "has no children but its own": "import os, subprocess, sys\nsubprocess.run(['/bin/sh', '-c', 'sleep 0.1 &'])\n"
    "import time; time.sleep(0.3)\ntry:\n    print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError:\n"
    "    print('none')",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PYTHONS)
async def sandbox(request):
    made = LocalSandbox(level=request.param, python=PYTHONS[request.param], preload=(), limits=Limits(cpu_seconds=2))
    async with made:
        yield made


async def compare(sandbox, code, folder):
    python = PYTHONS[sandbox.level]
    expected, result = await asyncio.gather(
        asyncio.to_thread(plainly, python, code, folder), sandbox.run(code, timeout=60)
    )
    assert result.return_code == expected.returncode
    status = {0: ExecutionStatus.OK}.get(expected.returncode, ExecutionStatus.ERROR)
    assert result.status is (ExecutionStatus.KILLED if expected.returncode < 0 else status)
    assert result.stdout == expected.stdout or expected.returncode < 0  # what a killed one had not flushed is kept
    crashed = -expected.returncode in CRASHES
    assert ("Fatal Python error" in result.stderr) is (crashed or "sees how its children end" in code)
    assert comparable(without_stacks(result.stderr)) == comparable(expected.stderr)


def without_stacks(stderr):
    """The errors of a program, or of its children, without the stacks of crashes, which plain Python does not show."""
    stderr = re.sub(r"Traceback [^\n]*\n(?:  [^\n]*\n)*Fatal Python error: [^\n]*\n", "", stderr)
    while (dump := take_dump(stderr, "main.py", "")) is not None:
        stderr = dump.stderr
    return stderr


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_ends_as_it_does_without_a_sandbox(sandbox, name, tmp_path):
    await compare(sandbox, PROGRAMS[name], tmp_path)


@pytest.mark.parametrize("name", WITH_CHILDREN)
async def test_its_children_too(sandbox, name, tmp_path):
    if sandbox.level == "landlock":
        pytest.skip("no processes at this level")
    await compare(sandbox, WITH_CHILDREN[name], tmp_path)


@pytest.mark.parametrize("number", [9, 6, 11, 15])
async def test_a_shell_too(sandbox, number):
    if sandbox.level == "landlock":
        pytest.skip("no processes at this level")
    result = await sandbox.run(f"echo before; kill -{number} $$; sleep 5; echo after", language="bash", timeout=60)
    assert (result.status, result.return_code) == (ExecutionStatus.KILLED, -number)
    assert result.stdout == "before\n"


async def test_the_cpu_limit_is_told_from_a_signal(sandbox):
    spent = await sandbox.run("while True: pass", timeout=120)
    assert (spent.status, spent.return_code) == (ExecutionStatus.CPU_LIMIT, None)
    sent = await sandbox.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert sent.status is ExecutionStatus.KILLED


async def test_orphans_do_not_pile_up(sandbox):
    """They count as processes until they are reaped, and 64 are allowed."""
    if sandbox.level == "landlock":
        pytest.skip("no processes at this level")
    code = (
        "import os, time\nfor n in range(100):\n    pid = os.fork()\n    if pid == 0:\n        if os.fork() == 0:\n"
        "            os._exit(0)\n        os._exit(0)\n    os.waitpid(pid, 0)\n    time.sleep(0.002)\nprint('done')"
    )
    result = await sandbox.run(code, timeout=120)
    if sandbox.level == "uid":
        assert result.status in (ExecutionStatus.OK, ExecutionStatus.ERROR)  # collected when the run has ended
    else:
        assert (result.status, result.stdout) == (ExecutionStatus.OK, "done\n")


async def test_a_session_that_kills_itself_is_over(sandbox):
    async with await sandbox.session(recover=False) as session:
        cell = await session.run_cell(f"print('a', flush=True)\nimport os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
        assert (cell.status, cell.alive) == (ExecutionStatus.KILLED, False)
        assert cell.stdout == "a\n"
