"""The program of a `ProcessPool`: it calls the functions of one Python file, whose arguments hold hostile text.

It is started by its path with the path of that file, and imports no package of toolgym, which would take long. The
parent sends pickles, because the parent is trusted; answers are JSON, because this process is not.

A call that exceeds its CPU time is ended by the kernel, also inside of C code. The limits do not need the parent: a
call also ends if the parent has died.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import pickle
import resource
import select
import signal
import socket
import sys
import types
from types import ModuleType
from typing import Any

IDLE = 30.0
"""Seconds without a call after which the process ends."""

ALARM = 5
"""Seconds after the parent's deadline at which a call ends the process by itself."""

MAX_TEXT = 300
"""Characters of an exception's text that the parent is sent."""

_HEAD = 8


def _load(path: str) -> ModuleType:
    """Import the file of the functions, and call its `load` if it has one."""
    spec = importlib.util.spec_from_file_location("toolgym_confined_work", path)
    assert spec is not None
    assert spec.loader is not None
    work = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = work
    spec.loader.exec_module(work)
    if hasattr(work, "load"):
        work.load()
    return work


def _confine(work: str) -> None:
    """Call `confine`, which stands beside this file, without importing the packages that it is in."""
    here = os.path.dirname(os.path.abspath(__file__))
    tools = os.path.dirname(here)
    before = {*sys.modules}
    folders = {
        "toolgym": [],
        "toolgym.tools": [],
        "toolgym.tools.confined": [here],
        "toolgym.tools.sandbox": [],
        "toolgym.tools.sandbox.local": [os.path.join(tools, "sandbox", "local")],
    }
    for name, path in folders.items():
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = path
            sys.modules[name] = module
    from toolgym.tools.confined.confinement import confine

    confine([sys.prefix, sys.base_prefix, tools, os.path.dirname(work), *sys.path])
    for name in [name for name in sys.modules if name not in before and name.partition(".")[0] == "toolgym"]:
        del sys.modules[name]  # some are empty


def _serve(link: socket.socket, work: ModuleType) -> None:
    while select.select([link], [], [], IDLE)[0]:
        head = _receive(link, _HEAD)
        body = _receive(link, int.from_bytes(head)) if head else b""
        if not body:
            return
        name, args, cpu_seconds, wall_seconds = pickle.loads(body)
        # Neither signal has a handler, so each ends the process, whatever runs.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.alarm(math.ceil(wall_seconds) + ALARM)
        answer = _call(work, name, args)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        _send(link, answer)
        if answer == _OUT_OF_MEMORY:
            return


def _call(work: ModuleType, name: str, args: tuple[Any, ...]) -> bytes:
    try:
        return json.dumps({"value": getattr(work, name)(*args)}).encode()
    except MemoryError:
        return _OUT_OF_MEMORY
    except BaseException as error:  # noqa: BLE001  the parent decides what it means
        return _refusal("raised", error)


_OUT_OF_MEMORY = json.dumps({"memory": True}).encode()


def _refusal(kind: str, error: BaseException) -> bytes:
    text = "its text cannot be made"
    with contextlib.suppress(Exception):
        text = str(error)[:MAX_TEXT]
    return json.dumps({kind: f"{type(error).__name__}: {text}"}).encode()


def _receive(link: socket.socket, size: int) -> bytes:
    """Return this many bytes; none if the parent has gone."""
    data = bytearray()
    while len(data) < size:
        piece = link.recv(min(size - len(data), 1 << 20))
        if not piece:
            return b""
        data += piece
    return bytes(data)


def _send(link: socket.socket, answer: bytes) -> None:
    link.sendall(len(answer).to_bytes(_HEAD) + answer)


def main() -> None:
    path, memory = sys.argv[1], int(sys.argv[2])
    link = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # what a library prints is not an answer
        os.dup2(null, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides when this process ends
    sys.setrecursionlimit(5000)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.WARNING)
    try:
        work = _load(path)
        _confine(path)
    except BaseException as error:  # noqa: BLE001  the parent raises it
        _send(link, _refusal("failed", error))
        return
    _send(link, json.dumps({"value": "ready"}).encode())
    with contextlib.suppress(ConnectionError):  # the parent has gone
        _serve(link, work)


if __name__ == "__main__":
    main()
