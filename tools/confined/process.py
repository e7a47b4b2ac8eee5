"""`WorkProcess`: one child of a `ProcessPool`, as the parent sees it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MAX_ANSWER = 16 << 20
"""Bytes of an answer that are read."""

_CHILD = Path(__file__).with_name("child.py")
_HEAD = 8
_PIECE = 1 << 16


class WorkProcess:
    """A process that calls functions, one after another, for whichever event loop awaits `ask`.

    Args:
        work: the Python file whose functions it calls.
        memory: bytes of address space that it may have.
    """

    def __init__(self, work: Path, memory: int) -> None:
        self._link, theirs = socket.socketpair()
        try:
            # By its path, and not by multiprocessing, which would import the user's main module, a whole trainer.
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD), str(work), str(memory)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()
        self._link.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def overran(self) -> bool:
        """Whether its CPU time or its wall time ended it. Known after `end`."""
        return self._process.returncode in (-signal.SIGPROF, -signal.SIGALRM, -signal.SIGXCPU)

    async def ask(self, function: str, args: tuple[Any, ...], cpu_seconds: float, wall_seconds: float) -> Any:
        """Call a function and return the child's answer as JSON. Raises EOFError if the process has ended."""
        request = pickle.dumps((function, args, cpu_seconds, wall_seconds))
        try:
            await asyncio.get_running_loop().sock_sendall(self._link, len(request).to_bytes(_HEAD) + request)
        except OSError as error:
            raise EOFError(str(error)) from error
        return await self.answer()

    async def answer(self) -> Any:
        """Return the next answer; the first one says whether the process is ready. Raises EOFError."""
        loop, data = asyncio.get_running_loop(), bytearray()
        size = MAX_ANSWER
        while len(data) < _HEAD or len(data) < _HEAD + size:
            try:
                piece = await loop.sock_recv(self._link, _PIECE)
            except OSError as error:
                raise EOFError(str(error)) from error
            if not piece:
                raise EOFError("the process ended without an answer")
            data += piece
            if len(data) >= _HEAD and (size := int.from_bytes(data[:_HEAD])) > MAX_ANSWER:
                raise EOFError(f"the process sent an answer of {size} bytes")
        try:
            return json.loads(data[_HEAD:])
        except (ValueError, RecursionError) as error:  # hostile code may have written it
            raise EOFError(f"the process sent an answer that is not JSON: {error}") from error

    def end(self) -> None:
        """Kill the process, which takes long if it has much memory, and reap it. `overran` keeps an earlier cause."""
        self._process.kill()
        self._process.wait()
        self._link.close()

    def forget(self) -> None:
        """In a fork of the parent: let go of the process, which is the parent's to end."""
        self._link.close()
        self._process.returncode = 0


def _environment() -> dict[str, str]:
    """The parent's environment without its secrets, of which nobody knows the names: with what Python needs."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    kept |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # their threads would need the address space
    return kept | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
