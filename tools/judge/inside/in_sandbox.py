"""Runs inside a sandbox: a program in some processes, its tests in another.

The judge sends the files of this folder, followed by a call of `main`, which forks first. The child becomes the
*loader*: it waits, and later loads the program once and forks a process for each test. The parent reads the tests and a
secret word from standard input, runs the tests, and prints the word with each outcome. So the program's processes never
hold the tests or the word in any object, nor the descriptors of the parent, and the kernel refuses them the parent's
memory (`PR_SET_DUMPABLE`). A failure before the program runs is no fault of the program.

Only plain data crosses between the program and assertions: see `link`. The tests hold a `Remote` of each other object.
The folder needs only Linux and the standard library.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.judge.inside import processes
from toolgym.tools.judge.inside.compiled import CompiledProgram
from toolgym.tools.judge.inside.files import Folder
from toolgym.tools.judge.inside.kinds import SandboxTest, prepare
from toolgym.tools.judge.inside.limits import SliceOverError, TestLimits, cpu_clock, prepare_alarm
from toolgym.tools.judge.inside.loader import Loader


def main(kind: str, setup: str, program: str, file_name: str, command: Mapping[str, Any] | None) -> types.CodeType:
    """Judge a program. Returns the code to run in this process, which is empty in that of the tests.

    Args:
        kind: `functions` if tests call the program's functions, `script` if it reads and prints, and `command` if it is
            a program of another language.
        setup: source that runs before a program with functions.
        program: source of the program.
        file_name: name of the file that calls this.
        command: how a program of another language is compiled and run.
    """
    sys.set_int_max_str_digits(0)
    subject: Loader | CompiledProgram
    try:
        processes.guard()
        if command is not None:
            processes.check_can_fork()
            subject = CompiledProgram(command, program)
        else:
            subject = Loader(setup, program, file_name if kind == "script" else "")
            if subject.script is not None:
                return subject.script
    except (OSError, AttributeError) as error:  # the program has not run, so it is not to blame
        _say(_read_task(), {"status": "no_fork", "error": str(error)})
        return compile("", file_name, "exec")
    # The program may write modules to its folder.
    sys.path[:] = [folder for folder in sys.path if folder and folder != os.getcwd()]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    prepare_alarm()
    task = _read_task()
    try:
        _judge(task, subject)
    finally:
        subject.end()
    return compile("", file_name, "exec")


def _read_task() -> dict[str, Any]:
    task: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(sys.stdin.read())))
    return task


def _say(task: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{task['word']}{json.dumps(report)}\n")
    sys.stdout.flush()


def _judge(task: dict[str, Any], subject: Loader | CompiledProgram) -> None:
    """Run tests in their order and report each outcome, until one may have left something behind for the next."""
    tests = [prepare(test) for test in task["tests"]]
    status, error = subject.load(TestLimits(task["load"]), task["memory_mb"])
    if status:
        _say(task, {"load": status, "error": error, "unprepared": _unprepared(tests)})
        return
    folder = Folder()
    left = max(task["slice"], 3 * cpu_clock(subject.pid))
    for number, test in enumerate(tests):
        try:
            outcome = test.outcome or test.run(subject, left if number else None)
        except SliceOverError:
            return
        _say(task, {"test": number, **outcome})
        if outcome["status"] not in ("value", "output", "passed") and task["stop"]:
            return
        left -= outcome.get("seconds", 0.0)
        if left < 0 or not (subject.is_ready() and processes.end_leftovers() and folder.is_clean()):
            return


def _unprepared(tests: Sequence[SandboxTest]) -> dict[int, str]:
    return {number: test.outcome["error"] for number, test in enumerate(tests) if test.outcome is not None}
