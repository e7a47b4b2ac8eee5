"""A child's reports of a run: where its files are, when user code begins, and how the program ended."""

from __future__ import annotations

import builtins
import os
import resource
from contextlib import suppress
from typing import NoReturn

from toolgym.tools.sandbox.local.kernel import harden
from toolgym.tools.sandbox.local.protocol import frames

# Programs can replace anything, `len` too; the report of how one ended must not depend on that.
globals()["__builtins__"] = dict(vars(builtins))
_exit, _write, _usage = os._exit, os.write, resource.getrusage


def announce_user_code() -> None:
    """Tell the broker that user code begins: from here on it must not believe this socket about sandbox failures."""
    frames.send_all(harden.CONTROL_FD, frames.encode({"begins": True}))


def announce_folder(base: str) -> None:
    """Have the broker open the working folder before any user code runs; it fetches files through that descriptor."""
    frames.send_all(harden.CONTROL_FD, frames.encode({"folder": os.path.relpath(".", base)}))
    if frames.receive(harden.CONTROL_FD) is None:
        os._exit(0)


def report_and_exit(status: int, why: str = "") -> NoReturn:
    """Report how the program ended, and exit without the interpreter's slow teardown. The report comes first, so that
    the host can answer while the kernel still tears this process down. `why` is the status of the limit that the
    program met, if it met one."""
    with suppress(OSError):  # the program may have closed the socket; then the broker goes by the exit code
        _write(harden.CONTROL_FD, _report(status, why))
    _exit(status & 0xFF)


def _report(status: int, why: str = "") -> bytes:
    """The frame that says how a program ended, and what it and its children used."""
    used = _usage(resource.RUSAGE_SELF)
    below = _usage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime
    # Without `json`, which the program may have changed.
    body = f'{{"done":{status},"why":"{why}","cpu":{cpu},"rss_kb":{used.ru_maxrss}}}'.encode()
    return frames.HEADER.pack(len(body)) + body


def report_command(status: int, used: resource.struct_rusage) -> NoReturn:
    """Report how a program ended that ran as a process below this one and what it used, and exit."""
    report = {"done": status, "cpu": used.ru_utime + used.ru_stime, "rss_kb": used.ru_maxrss}
    frames.send_all(harden.CONTROL_FD, frames.encode(report))
    os._exit(0)
