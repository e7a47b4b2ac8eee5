"""Programs that do not end when they should."""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import PRELUDE, Judge, Program, abuse, both, ended, held
from toolgym.tools.sandbox.base import ExecutionStatus

SOON = 20.0
"""Seconds within which a call comes back, on a busy machine too. What the programs wait for takes longer."""

_timed_out = ended(ExecutionStatus.TIMEOUT, within=SOON)


def _endless(name: str, code: str, judge: Judge = _timed_out) -> Program:
    return Program(name, "time", PRELUDE + code, judge=judge, bare="held", timeout=1.5)


DEADLINES: tuple[Program, ...] = (
    _endless("endless_loop", "while True: pass"),
    _endless("sleep", "time.sleep(100)"),
    _endless("endless_c_call", "sum(range(10 ** 12))"),
    _endless("catches_everything", "while True:\n    try: time.sleep(100)\n    except BaseException: pass"),
    _endless(
        "ignores_signals",
        """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
""",
    ),
    # As the first process of its namespace a program cannot stop itself; then it simply ends.
    _endless(
        "stops_itself",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        ended(ExecutionStatus.TIMEOUT, ExecutionStatus.OK, within=SOON),
    ),
    _endless("thread_that_never_ends", "import threading\nthreading.Thread(target=time.sleep, args=(100,)).start()"),
    _endless("exit_handler_that_never_ends", "import atexit\natexit.register(time.sleep, 100)"),
    _endless("finalizer_that_never_ends", "class A:\n    def __del__(self):\n        time.sleep(100)\na = A()\ndel a"),
    _endless(
        "output_before_the_deadline",
        "print('before')\ntime.sleep(100)",
        both(_timed_out, ended(ExecutionStatus.TIMEOUT, out="before\n")),
    ),
    _endless(
        "stopped_child",
        """
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(100)
os.waitpid(pid, 0)
""",
        # Where a program cannot fork it ends with an error instead.
        ended(ExecutionStatus.TIMEOUT, ExecutionStatus.ERROR, within=SOON),
    ),
    Program(
        "daemon_grandchild",
        "time",
        PRELUDE
        + """
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(3):
                os.close(fd)
            time.sleep(100)
        os._exit(0)
except OSError:
    pass
time.sleep(0.3)
""",
        judge=both(held, ended(ExecutionStatus.OK, within=SOON)),
        timeout=30,
        bare="held",  # a subreaper kills daemons there too
    ),
    Program(
        "grandchild_that_holds_the_output",
        "time",
        PRELUDE
        + """
try:
    if os.fork() == 0:
        os.setsid()
        time.sleep(100)
        os._exit(0)
except OSError:
    pass
""",
        judge=both(held, ended(ExecutionStatus.OK, within=SOON)),
        timeout=30,
        bare="held",
    ),
    abuse(
        "grandchild_after_the_deadline",
        "time",
        """
try:
    if os.fork() == 0:
        os.setsid()
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(100)
        os._exit(0)
except OSError:
    pass
time.sleep(100)
""",
        judge=both(held, ended(ExecutionStatus.TIMEOUT, within=SOON)),
        timeout=1.5,
        bare="held",
    ),
    abuse(
        "children_that_keep_forking",
        "time",
        """
# Each child forks the next and ends: no list of processes is ever complete.
try:
    end = time.monotonic() + 60
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < end:
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
except OSError:
    pass
time.sleep(0.2)
""",
        alone=True,
        bare="held",
    ),
)
