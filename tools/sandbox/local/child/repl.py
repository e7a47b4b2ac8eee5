"""The interpreter of a session: answers the requests for cells, programs, files and forks."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.child import fork_renewal, notebook, program
from toolgym.tools.sandbox.local.kernel import harden
from toolgym.tools.sandbox.local.protocol import answer_codec, frames

MAX_REASON = 1000
"""Characters of the reason why a request failed."""


def serve(request: Mapping[str, Any]) -> NoReturn:
    """Become a session: prepare its folder and environment, then answer requests until the broker closes the socket."""
    if request.get("env"):
        os.environ.update(request["env"])
    if request.get("files"):
        program.place_files(request["files"])
    session = Repl()
    frames.send_all(harden.CONTROL_FD, frames.encode({"ready": True}))
    session.run()


class Repl:
    """Keeps the state of a session."""

    def __init__(self) -> None:
        self._notebook = notebook.Notebook(program.fresh_main("<session>"))
        self._near_copies = False
        self._copies: list[int] = []
        self._operations: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
            "cell": self._notebook.run,
            "exec": self._exec,
            "read": self._read,
            "write": self._write,
            "fork": self._fork,
        }

    def run(self) -> NoReturn:
        """Answer requests until the control socket closes."""
        while True:
            program.ignore_interrupts()
            request = frames.receive(harden.CONTROL_FD)
            if request is None:
                os._exit(0)
            self._reap_copies()
            if self._near_copies and request["op"] in ("cell", "exec"):
                with contextlib.suppress(OSError):  # where this fails, it failed in every copy too, and none is alive
                    fork_renewal.separate()  # once for all copies made since code last ran here
                self._near_copies = False
            try:
                answer = self._operations[request["op"]](request)
            except BaseException as error:  # noqa: BLE001  a request that fails is an answer
                program.ignore_interrupts()
                answer = {"failed": _describe(error)}
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            program.ignore_interrupts()
            frame = frames.encode(answer) if request["op"] == "fork" else frames.encode_answer(_pack(answer))
            frames.send_all(harden.CONTROL_FD, frame)

    # ------------------------------------------------------------------ programs and files

    def _exec(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        data = (request.get("stdin") or "").encode("utf-8", "surrogatepass")
        interrupts = program.note_interrupts()  # an interrupt during the start would leave the program running
        try:
            process = subprocess.Popen(request["argv"], stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            print(f"{request['argv'][0]}: {error.strerror}", file=sys.stderr)
            return {"status": 127}
        try:
            program.catch_interrupts()
            if interrupts:
                raise KeyboardInterrupt
            process.communicate(data)
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it started, except what has left its process group
            process.wait()
            return {"status": None}
        return {"status": process.returncode}

    def _write(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if not request["at"]:
            _check_regular(request["name"], missing_is_fine=True)
            program.place_files({request["name"]: request["data"]})
            return {}
        with open(request["name"], "r+b") as file:
            file.seek(request["at"])
            file.write(base64.b64decode(request["data"]))
        return {}

    def _read(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            _check_regular(request["name"])
            with open(request["name"], "rb") as file:
                file.seek(request["at"])
                return {"data": file.read(request["most"])}
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, _NotRegularError):
            return {"absent": True}

    # ------------------------------------------------------------------ fork

    def _fork(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fork this interpreter. The copy gets a control socket, pipes and a root of its own.

        The ends of the first three come over this session's control socket. The root goes to the copy alone, over its
        own control socket, see `fork_mounts`. The session never sends a descriptor.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        frames.send_all(harden.CONTROL_FD, frames.encode({"ends": True}))
        ends = fork_renewal.receive_descriptors(3)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                for fd in ends:
                    os.close(fd)
        if pid == 0:
            try:
                fork_renewal.become_copy(*ends)
                self._notebook.be_copy()
                self._near_copies = False
                self._copies = []
            except BaseException as error:  # noqa: BLE001  a copy that is not complete must not go on
                with contextlib.suppress(BaseException):
                    frames.send_all(harden.CONTROL_FD, frames.encode({"failed": _describe(error)}))
                os._exit(1)
            return {"ready": True}  # goes out on the new control socket: the copy is in place
        self._near_copies = True
        self._copies.append(pid)
        frames.send_all(harden.CONTROL_FD, frames.encode({"forked": pid}))
        return {"done": True}

    def _reap_copies(self) -> None:
        """Reap the copies that have ended: they are children of this process, and count as processes until then."""
        for pid in [*self._copies]:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._copies.remove(pid)


class _NotRegularError(OSError):
    """The name is of a pipe, which would wait for its other end, or of a socket, a device or a folder."""


def _check_regular(name: str, *, missing_is_fine: bool = False) -> None:
    """Raises _NotRegularError where the name is of anything but a regular file, FileNotFoundError where of nothing."""
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        if missing_is_fine:
            return
        raise
    if not stat.S_ISREG(mode):
        raise _NotRegularError(errno.EINVAL, "not a regular file", name)


def _describe(error: BaseException) -> str:
    """An exception in a sentence, even where its own `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_REASON]
    except BaseException:  # noqa: BLE001
        return type(error).__name__[:MAX_REASON]


def _pack(answer: Mapping[str, Any]) -> bytes:
    """An answer's bytes. One that is too large loses its rich output, and says so instead."""
    try:
        return answer_codec.pack(answer)
    except answer_codec.TooLargeError as error:
        most = f"{frames.MAX_ANSWER} bytes and {answer_codec.MAX_PARTS} parts"
        why = f"[left out: {error}, more than the {most} that may be]"
        shown = [{"text/plain": why}] if answer.get("display") else []
        failed = answer.get("error")
        if failed:
            failed["traceback"] = [*failed["traceback"][:20], why, *failed["traceback"][-20:]]
        return answer_codec.pack({**answer, "display": shown})
    except BaseException as error:  # noqa: BLE001  above all, too little memory
        return answer_codec.pack({"failed": _describe(error)})
