"""28 ways in which a cell can end, with what its observation must show."""

from __future__ import annotations

from toolgym.testing.observations.case import ObservedProgram, cell, program

TIMEOUT = 1.0
"""Wall seconds of the cells that never end."""

_LIMIT = rf"(?i)timed? ?out.*\b{TIMEOUT:g}(\.0)? ?s"
_STATE = r"(?i)variables"


def _stopped(name: str, code: str, *, harmful: bool = False) -> ObservedProgram:
    return program(name, cell(code, timeout=TIMEOUT, line="# here", limit=_LIMIT), harmful=harmful)


_TIME_LIMITS = (
    _stopped("timeout_in_python", "number = 0\nwhile True: number += 1  # here"),
    _stopped("timeout_in_sleep", "import time\ntime.sleep(60)  # here"),
    _stopped("timeout_in_c", "from itertools import repeat\ntotal = sum(repeat(1))  # here"),
    _stopped("timeout_in_os_system", "import os\nos.system('sleep 60')  # here"),
    _stopped("timeout_in_subprocess", "import subprocess\nsubprocess.run(['sleep', '60'])  # here"),
    _stopped(
        "timeout_in_threads",
        "import time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool:\n    list(pool.map(time.sleep, [60, 60]))  # here",
    ),
    _stopped("timeout_in_asyncio", "import asyncio\nawait asyncio.sleep(60)  # here"),
    _stopped(
        "timeout_that_is_ignored",
        "import time\nwhile True:\n    try:\n        time.sleep(60)  # here\n    except BaseException:\n        pass",
    ),
)

_EXITS = (
    program(
        "exit_0", cell("import sys\nprint('before')\nsys.exit(0)", output="before", exit=r"exit code 0|SystemExit: 0")
    ),
    program("exit_3", cell("import sys\nsys.exit(3)", exit=r"exit code 3|SystemExit: 3")),
    program(
        "exit_with_a_text",
        cell("import sys\nsys.exit('no data left')", exit=r"exit code 1|SystemExit", error="no data left"),
    ),
    program("exit_of_the_interpreter", cell("print('before')\nexit()", output="before")),
    program("exit_of_the_process", cell("import os\nos._exit(7)", exit=r"\b7\b", state=_STATE)),
)

_SIGNALS = (
    program(
        "signal_term",
        cell("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", exit=r"SIGTERM|\b15\b", state=_STATE),
    ),
    program(
        "signal_kill",
        cell("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", exit=r"SIGKILL|\b9\b", state=_STATE),
    ),
    program(
        "segmentation_fault",
        cell("import ctypes\nctypes.string_at(0)  # here", exit=r"SIGSEGV|\b11\b", line="# here", state=_STATE),
    ),
    program("abort", cell("import os\nos.abort()  # here", exit=r"SIGABRT|\b6\b", line="# here", state=_STATE)),
)

_SIZES = (
    program(
        "memory_that_grows",
        cell(
            "held = []\nwhile True:\n    held.append(bytearray(20_000_000))  # here",
            limit=r"memory.*\b\d+ MiB|\b\d+ MiB.*memory",
        ),
        harmful=True,
    ),
    program(
        "memory_at_once",
        cell(
            "held = bytearray(1 << 42)  # here",
            line="# here",
            error="MemoryError",
            limit=r"memory.*\b\d+ MiB|\b\d+ MiB.*memory",
        ),
    ),
    program(
        "output_without_end",
        cell(
            "print('first')\nwhile True:\n    print('x' * 1000)",
            output="first",
            limit=r"(?i)print\w* too much.*\d+ MiB",
        ),
        harmful=True,
    ),
    program(
        "processes_without_end",
        cell("import os\nwhile True:\n    os.fork()  # here", limit=r"\b\d+ processes", timeout=5.0),
        harmful=True,
    ),
    program(
        "open_files_without_end",
        cell(
            "files = [open('/dev/null') for _ in range(100_000)]  # here",
            line="# here",
            error="Too many open files",
            limit=r"\b\d+ open files",
        ),
        harmful=True,
    ),
    program(
        "file_without_end",
        cell(
            "with open('big', 'wb') as file:\n    for _ in range(10_000):\n"
            "        file.write(bytes(10_000_000))  # here",
            limit=r"\b\d+ MiB",
        ),
        harmful=True,
    ),
)

_RAISED = (
    program(
        "recursion_without_end",
        cell("def down(n):\n    return down(n + 1)  # here\ndown(0)", line="# here", error="RecursionError"),
    ),
    program(
        "interrupt_that_is_raised", cell("raise KeyboardInterrupt  # here", line="# here", error="KeyboardInterrupt")
    ),
    program(
        "error_in_a_finalizer",
        cell(
            "class Held:\n    def __del__(self):\n        raise ValueError('late')  # here\nHeld()\nprint('after')",
            error="ValueError: late",
            output="after",
            line="# here",
        ),
    ),
    program(
        "syntax_error_early",
        cell("print('never')\ntotal = = 3  # here", line="# here", error="SyntaxError", absent=r"^never"),
    ),
    program(
        "syntax_error_late",
        cell("total = 1\nreturn total  # here", line="# here", error="SyntaxError: 'return' outside function"),
    ),
)

ENDINGS: tuple[ObservedProgram, ...] = (*_TIME_LIMITS, *_EXITS, *_SIGNALS, *_SIZES, *_RAISED)
"""All endings, each a program of one cell."""
