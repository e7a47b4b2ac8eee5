"""What a child tells its template of a run: when it is the user's, where its files are, and how it ended."""

from __future__ import annotations

import builtins
import os
import resource
from contextlib import suppress
from typing import NoReturn

from toolgym.tools.sandbox.local import confine, wire

# Programs replace what they like, `len` too; how one ends must not hang on that.
globals()["__builtins__"] = dict(vars(builtins))
_exit, _write, _usage = os._exit, os.write, resource.getrusage


def hand_over() -> None:
    """Say that what follows is the user's: from now on no failure is the sandbox's because somebody says so here."""
    wire.send_all(confine.CONTROL_FD, wire.encode({"begins": True}))


def hand_over_folder(base: str) -> None:
    """Have the template take hold of a folder before any foreign code runs; it fetches files through it."""
    wire.send_all(confine.CONTROL_FD, wire.encode({"folder": os.path.relpath(".", base)}))
    if wire.receive(confine.CONTROL_FD) is None:
        os._exit(0)


def tell_and_exit(status: int, why: str = "") -> NoReturn:
    """Say how it went and leave, without the slow dismantling.

    Said first, it lets the host answer while the kernel still clears away. A negative status stands for a signal.
    """
    with suppress(OSError):  # the program may have closed it; then its status tells
        _write(confine.CONTROL_FD, _last_words(status, why))
    _exit(status & 0xFF)


def _last_words(status: int, why: str = "") -> bytes:
    """The frame that tells how a program ended, and what it and its children used."""
    used = _usage(resource.RUSAGE_SELF)
    below = _usage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime
    # Without `json`, which may be no longer what it was.
    body = f'{{"done":{status},"why":"{why}","cpu":{cpu},"rss_kb":{used.ru_maxrss}}}'.encode()
    return wire.HEADER.pack(len(body)) + body


def tell_of_command(status: int) -> NoReturn:
    """Say how a program that ran as a process below this one ended, and leave."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    message = {"done": status, "cpu": used.ru_utime + used.ru_stime, "rss_kb": used.ru_maxrss}
    wire.send_all(confine.CONTROL_FD, wire.encode(message))
    os._exit(0)
