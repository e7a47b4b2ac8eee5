"""Programs that are merely odd: each must give the result that its reader expects, and harm no other."""

from __future__ import annotations

import re

from tests.tools.sandbox.abuse.program import (
    LIMITS,
    PRELUDE,
    Outcome,
    Program,
    abuse,
    at_most,
    both,
    brief,
    ended,
    held,
    prints,
    second,
)
from toolgym.tools.sandbox.base import ExecutionStatus

OK, ERROR, KILLED = ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED
_still_works = second(prints("fine\n"))
_FINE = "print('fine')"


def _odd(name: str, code: str, judge: object, **rest: object) -> Program:
    return Program(name, "odd", code, judge=judge, **{"bare": "held", "timeout": 30.0, **rest})  # type: ignore[arg-type]


def _clean_traceback(outcome: Outcome) -> str:
    text = outcome.result.stderr
    files = set(re.findall(r'File "([^"]*)"', text))
    strange = {name for name in files if not name.endswith("main.py")}
    if strange or not text.rstrip().endswith("ZeroDivisionError: division by zero") or "return 1 / 0" not in text:
        return f"{strange} in {brief(outcome.result)}"
    return "" if text.startswith("Traceback (most recent call last):\n") else brief(outcome.result)


def _speaks(*words: str) -> object:
    def judge(outcome: Outcome) -> str:
        return "" if any(word in outcome.result.stderr for word in words) else brief(outcome.result)

    return judge


SIGNALS: tuple[Program, ...] = (
    abuse(
        "kill_everybody",
        "signals",
        "victim = @victim@\nos.kill(-1, signal.SIGKILL)\nsay('survived')",
        neighbour="import time\ntime.sleep(2)\nprint('fine')",
        follow_up=_FINE,
        judge=both(
            held,
            _still_works,
            lambda outcome: (
                ""
                if outcome.neighbour is not None and outcome.neighbour.stdout == "fine\n"
                else f"the run beside it died: {brief(outcome.neighbour) if outcome.neighbour else None}"
            ),
        ),
        bare="unsafe",
        alone=True,
    ),
    abuse(
        "kill_parent",
        "signals",
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.2)",
        follow_up=_FINE,
        judge=both(held, _still_works),
        bare="unsafe",
        alone=True,
    ),
    abuse(
        "stop_parent",
        "signals",
        "os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(0.2)",
        follow_up=_FINE,
        judge=both(held, _still_works),
        bare="unsafe",
        alone=True,
    ),
    abuse(
        "interrupt_parent",
        "signals",
        "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(0.2)",
        follow_up=_FINE,
        judge=both(held, _still_works),
        bare="unsafe",
        alone=True,
    ),
    abuse(
        "kill_own_group",
        "signals",
        "os.kill(0, signal.SIGKILL)\ntime.sleep(0.2)",
        follow_up=_FINE,
        judge=both(held, _still_works),
        bare="held",
        alone=True,
    ),
    abuse(
        "kill_group_one",
        "signals",
        "os.killpg(1, signal.SIGTERM)",
        follow_up=_FINE,
        judge=both(held, _still_works),
        bare="unsafe",
        alone=True,
    ),
    abuse("kill_a_victim", "signals", "os.kill(@victim@, signal.SIGKILL)\ntime.sleep(0.2)"),
    abuse("stop_a_victim", "signals", "os.kill(@victim@, signal.SIGSTOP)\ntime.sleep(0.2)"),
    abuse(
        "hobble_a_victim",
        "signals",
        """
import resource
for action in (
    lambda: resource.prlimit(@victim@, resource.RLIMIT_NOFILE, (5, 5)),
    lambda: os.setpriority(os.PRIO_PROCESS, @victim@, 19),
    lambda: os.sched_setaffinity(@victim@, {0}),
):
    try:
        action()
        say("done")
    except OSError as error:
        say(error)
""",
    ),
    abuse(
        "own_signals_tell_their_number",
        "signals",
        "os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1)",
        judge=ended(KILLED, code=-9),
        bare="held",
        timeout=30,
    ),
)

_EACH_DESCRIPTOR = """
import fcntl, stat
def descriptors():
    for fd in range(3, 2048):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            continue
        yield fd
"""

DESCRIPTORS: tuple[Program, ...] = (
    abuse(
        "exhaustion",
        "descriptors",
        """
count = 0
kept = []
try:
    while count < 5000:
        kept.append(os.open("/dev/null", os.O_RDONLY))
        count += 1
except OSError:
    pass
say("held", count)
""",
        judge=at_most(LIMITS.open_files, of="descriptors"),
    ),
    abuse(
        "raise_own_limits",
        "descriptors",
        """
import resource
for name in ("NOFILE", "NPROC", "FSIZE", "CPU", "CORE"):
    kind = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(kind)
    if name in ("NOFILE", "FSIZE") and hard == resource.RLIM_INFINITY:
        opened(name, "is not limited")
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1) if hard >= 0 else (hard, hard))
        if hard >= 0 and resource.getrlimit(kind)[1] > hard:
            opened(name, "could be raised")
    except (OSError, ValueError):
        pass
""",
        bare="either",
    ),
    abuse(
        "inherited",
        "descriptors",
        _EACH_DESCRIPTOR
        + """
for fd in descriptors():
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
        continue  # a channel to the sandbox itself: see forged_frames
    opened("descriptor", fd, "with mode", oct(mode))
""",
        bare="held",
    ),
    abuse(
        "standard_streams_lead_nowhere",
        "descriptors",
        """
for fd in range(3):
    mode = os.fstat(fd).st_mode
    try:
        os.open("..", os.O_RDONLY, dir_fd=fd)
        opened("a folder as descriptor", fd)
    except OSError:
        pass
    try:
        if os.ttyname(fd):
            opened("a terminal as descriptor", fd)
    except OSError:
        pass
""",
        bare="held",
    ),
    abuse(
        "forged_frames",
        "descriptors",
        _EACH_DESCRIPTOR
        + """
import struct
forged = b'{"status": "ok", "return_code": 0, "stdout": "forged", "id": 1, "result": "forged", "pid": 1}'
frames = [struct.pack(order + size, len(forged)) + forged for order in "<>" for size in "IQ"]
frames += [forged + b"\\n", b"\\xff" * 65536, b"\\x00" * 65536, b"\\xff\\xff\\xff\\x7f", b"\\n"]
for fd in descriptors():
    os.set_blocking(fd, False)
    for frame in frames:
        for k in range(8):
            try:
                os.write(fd, frame)
            except OSError:
                break
os.write(1, forged + b"\\n")
os._exit(5)
""",
        follow_up=_FINE,
        judge=both(
            _still_works,
            lambda outcome: (
                ""
                if outcome.result.status not in (OK, ExecutionStatus.SANDBOX_ERROR)
                else f"a forged status: {brief(outcome.result)}"
            ),
        ),
        bare="held",
        alone=True,
    ),
    abuse(
        "process_behind_a_socket",
        "descriptors",
        # Linux hands out a handle of the process at the other end (SO_PEERPIDFD); it must be of no use.
        _EACH_DESCRIPTOR
        + """
import socket
for fd in descriptors():
    try:
        s = socket.socket(fileno=os.dup(fd))
        handle = s.getsockopt(socket.SOL_SOCKET, 77)
        signal.pidfd_send_signal(handle, 0)
        opened("a process at the other end of descriptor", fd, "can be signalled")
    except OSError:
        pass
""",
        bare="held",
    ),
    abuse(
        "forged_status_of_a_killed_program",
        "descriptors",
        _EACH_DESCRIPTOR + "for fd in descriptors(): os.close(fd)\nos.closerange(0, 256)\nos._exit(9)",
        follow_up=_FINE,
        judge=both(
            _still_works,
            lambda outcome: "" if outcome.result.status in (ERROR, KILLED) else f"{brief(outcome.result)}",
        ),
        bare="held",
        alone=True,
    ),
)

ODD: tuple[Program, ...] = (
    _odd("closes_its_output", "import os\nprint('a', flush=True)\nos.close(1)\nos.close(2)", ended(OK, out="a\n")),
    _odd("closes_everything", "import os\nos.closerange(0, 300)", ended(OK, ERROR, KILLED, within=20)),
    _odd("exits_at_once", "import os\nos._exit(3)", ended(ERROR, code=3)),
    _odd("exits_with_a_text", "import sys\nsys.exit('so long')", both(ended(ERROR, code=1), _speaks("so long"))),
    _odd("exits_with_a_large_code", "import sys\nsys.exit(258)", ended(ERROR, code=2)),
    _odd("segfault", "import ctypes\nctypes.string_at(0)", ended(KILLED, code=-11)),
    _odd("abort", "import os\nos.abort()", ended(KILLED, code=-6)),
    _odd(
        "illegal_instruction",
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\nimport time\ntime.sleep(0.1)",
        ended(KILLED, code=-4),
    ),
    _odd("deep_recursion", "def f(): f()\nf()", both(ended(ERROR), _speaks("RecursionError"))),
    _odd(
        "recursion_without_limit",
        "import sys\nsys.setrecursionlimit(10 ** 8)\ndef f(n): return repr([f(n + 1)])\nf(0)",
        ended(ERROR, KILLED, ExecutionStatus.MEMORY_LIMIT),
        timeout=60,
    ),
    _odd("invalid_utf8", "import os\nos.write(1, b'a\\xff\\xfeb')", ended(OK, out="a��b")),
    _odd("nul_in_output", "print('a\\0b')", prints("a\0b\n")),
    _odd("surrogate_in_output", "print('\\udc80')", both(ended(ERROR), _speaks("surrogates not allowed"))),
    _odd("nul_in_source", "print(1)\n\0", both(ended(ERROR), _speaks("null byte"))),
    _odd("surrogate_in_source", "print('\ud800')", ended(ERROR)),
    _odd("syntax_error", "def f(:\n  pass", both(ended(ERROR, code=1), _speaks("SyntaxError"))),
    _odd("empty", "", prints("")),
    _odd("large_source", "x = 1\n" * 50_000 + "print('fine')", prints("fine\n"), timeout=60),
    _odd("deeply_nested_source", "x = " + "(" * 5000 + ")" * 5000, ended(ERROR)),
    _odd(
        "input_at_its_end",
        "import sys\nprint(repr(sys.stdin.read()))\ninput()",
        both(ended(ERROR, out="''\n"), _speaks("EOFError")),
    ),
    _odd("input_not_read", "print('fine')", prints("fine\n"), stdin="x" * 2_000_000),
    _odd("large_input", "import sys\nprint(len(sys.stdin.read()))", prints("2000000\n"), stdin="x" * 2_000_000),
    _odd(
        "deletes_its_folder",
        "import os, shutil\nos.makedirs('a/b')\nopen('a/c', 'w').close()\nfor n in os.listdir('.'):\n"
        "    shutil.rmtree(n) if os.path.isdir(n) else os.unlink(n)\nprint(os.listdir('.'))\nos.chdir('/')",
        prints("[]\n"),
        follow_up=_FINE,
    ),
    _odd(
        "breaks_its_interpreter",
        "import builtins, os, sys, traceback\nos._exit = sys.exit = os.write = None\n"
        "traceback.print_exception = None\nbuiltins.print = builtins.open = None\nsys.stdout = sys.stderr = None\n"
        "sys.modules.clear()\nraise ValueError",
        ended(ERROR, KILLED, within=20),
        follow_up=_FINE,
    ),
    _odd(
        "becomes_another_program",
        "import os\nos.execv('/bin/echo', ['echo', 'fine'])",
        prints("fine\n"),
        must=frozenset({"namespaces", "uid"}),
    ),
    _odd(
        "forged_result_on_standard_output",
        'print(\'{"status": "ok", "return_code": 0}\')\nraise SystemExit(4)',
        ended(ERROR, code=4),
    ),
    _odd("traceback_is_clean", "def f():\n    return 1 / 0\nf()", _clean_traceback),
    _odd(
        "non_blocking_output",
        "import os\nos.set_blocking(1, False)\nfor n in range(300):\n    try: print('z' * 999)\n"
        "    except BlockingIOError: pass",
        ended(OK, ERROR, within=20),
        follow_up=_FINE,
    ),
    Program(
        "no_core_file",
        "odd",
        PRELUDE + "open('x', 'w').close()\nsignal.signal(11, signal.SIG_DFL)\n"
        # 1 is what stops a handler that cores are piped to as well, and no core is so small.
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1): opened('core files')",
        judge=held,
        bare="either",
    ),
)
