"""The interpreter of a session: cells in, results out, and forks of itself."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import answers, confine, copying, notebook, program, wire

MOST_SAID = 1000
"""Characters of what went wrong with a fork."""


def serve(request: Mapping[str, Any]) -> NoReturn:
    """Become a session."""
    if request.get("env"):
        os.environ.update(request["env"])
    if request.get("files"):
        program.place_files(request["files"])
    session = Repl()
    wire.send_all(confine.CONTROL_FD, wire.encode({"ready": True}))
    session.run()


class Repl:
    """Keeps the state of a session."""

    def __init__(self) -> None:
        self._notebook = notebook.Notebook(program.fresh_main("<session>"))
        self._near_copies = False
        self._copies: list[int] = []

    def run(self) -> NoReturn:
        """Answer requests until the control socket closes."""
        while True:
            program.ignore_interrupts()
            request = wire.receive(confine.CONTROL_FD)
            if request is None:
                os._exit(0)
            self._reap_copies()
            if self._near_copies and request["op"] in ("cell", "exec"):
                with contextlib.suppress(OSError):  # where this cannot, no copy could, and none lives
                    copying.separate()  # once for all copies that were made since code ran here
                self._near_copies = False
            try:
                answer = getattr(self, f"_on_{request['op']}")(request)
            except BaseException as error:  # noqa: BLE001  a request that fails is an answer
                program.ignore_interrupts()
                answer = {"failed": _told(error)}
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            program.ignore_interrupts()
            frame = wire.encode(answer) if request["op"] == "fork" else wire.encode_answer(_pack(answer))
            wire.send_all(confine.CONTROL_FD, frame)

    def _on_cell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._notebook.run(request["code"])

    # ------------------------------------------------------------------ programs and files

    def _on_exec(self, request: Mapping[str, Any]) -> dict[str, Any]:
        data = (request.get("stdin") or "").encode("utf-8", "surrogatepass")
        interrupts = program.note_interrupts()  # one while it starts would leave it running
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
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, but for what has left its group
            process.wait()
            return {"status": None}
        return {"status": process.returncode}

    def _on_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if not request["at"]:
            _check_regular(request["name"], missing_is_fine=True)
            program.place_files({request["name"]: request["data"]})
            return {}
        with open(request["name"], "r+b") as file:
            file.seek(request["at"])
            file.write(base64.b64decode(request["data"]))
        return {}

    def _on_read(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            _check_regular(request["name"])
            with open(request["name"], "rb") as file:
                file.seek(request["at"])
                return {"data": file.read(request["most"])}
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, _NotRegularError):
            return {"absent": True}

    # ------------------------------------------------------------------ fork

    def _on_fork(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Fork this interpreter. The copy gets pipes, a control socket and a root of its own.

        Its ends come over the control socket: control, stdout and stderr. Its root comes to it alone, over its own
        control socket, see `branch`. No descriptor ever goes the other way.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        wire.send_all(confine.CONTROL_FD, wire.encode({"ends": True}))
        ends = copying.receive_descriptors(3)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                for fd in ends:
                    os.close(fd)
        if pid == 0:
            try:
                copying.become_copy(*ends)
                self._notebook.be_copy()
                self._near_copies = False
                self._copies = []
            except BaseException as error:  # noqa: BLE001  half a copy must not go on
                with contextlib.suppress(BaseException):
                    wire.send_all(confine.CONTROL_FD, wire.encode({"failed": _told(error)}))
                os._exit(1)
            return {"ready": True}  # sent on the new control socket: the copy is in place
        self._near_copies = True
        self._copies.append(pid)
        wire.send_all(confine.CONTROL_FD, wire.encode({"forked": pid}))
        return {"done": True}

    def _reap_copies(self) -> None:
        """Those that have ended are children of this process still, and count as processes until it asks for them."""
        for pid in [*self._copies]:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._copies.remove(pid)


class _NotRegularError(OSError):
    """A pipe, whose other end would be waited for; a socket, a device, a folder."""


def _check_regular(name: str, *, missing_is_fine: bool = False) -> None:
    """Raises _NotRegularError for what is there and is no regular file, FileNotFoundError where nothing is."""
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        if missing_is_fine:
            return
        raise
    if not stat.S_ISREG(mode):
        raise _NotRegularError(errno.EINVAL, "not a regular file", name)


def _told(error: BaseException) -> str:
    """A failure in a sentence, whatever its own code makes of it."""
    try:
        return f"{type(error).__name__}: {error}"[:MOST_SAID]
    except BaseException:  # noqa: BLE001
        return type(error).__name__[:MOST_SAID]


def _pack(answer: dict[str, Any]) -> bytes:
    """An answer's bytes. One that is too large loses its rich output, with a word about it."""
    try:
        return answers.pack(answer)
    except answers.TooLarge as error:
        why = f"[left out: {error}, more than the {wire.MAX_ANSWER} bytes and {answers.MAX_PARTS} parts that may be]"
        shown = [{"text/plain": why}] if answer.get("display") else []
        failed = answer.get("error")
        if failed:
            failed["traceback"] = [*failed["traceback"][:20], why, *failed["traceback"][-20:]]
        return answers.pack({**answer, "display": shown})
    except BaseException as error:  # noqa: BLE001  want of memory, above all
        return answers.pack({"failed": _told(error)})
