"""The interpreter of a session: answers the requests for cells, files and forks."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import os
import select
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.child import (
    fork_renewal,
    image_root,
    launcher,
    notebook,
    program,
    session_files,
    shadow,
)
from toolgym.tools.sandbox.local.kernel import harden, sibling_fork
from toolgym.tools.sandbox.local.protocol import answer_codec, frames

MAX_REASON = 1000

SHADOW_STAYS_MS = 20
"""Milliseconds that a shadow outlives a cell which ended well. Then the next shadow is made, if no request has come."""

# Programs can replace them.
_own_id, _exit, _count_threads, _poll = os.getpid, os._exit, _thread._count, select.poll
_get_handler, _DEFAULT_HANDLER = _signal.getsignal, _signal.default_int_handler
_SIGNALS = sorted(map(int, _signal.valid_signals()))


def serve(request: Mapping[str, Any], writable: tuple[str, ...], thread_id: int) -> NoReturn:
    """Become a session: prepare its folder and environment, then answer requests until the broker closes the socket.

    Args:
        writable: the folders that it can write to, all of which a fork copies.
        thread_id: where the C library keeps the id of the main thread, from `syscalls.thread_id_address`.
    """
    if request.get("image"):
        image_root.enter(request["image"])
    if request.get("env"):
        os.environ.update(request["env"])
    if request.get("files"):
        program.place_files(request["files"])
    shadows = shadow.Shadows(thread_id) if request["recover"] else None
    forker = Forker(thread_id, with_helper=request["siblings"])
    session = Repl(writable, shadows, forker, in_image=bool(request.get("image")))
    frames.send_all(harden.CONTROL_FD, frames.encode({"ready": True, "helper": session.forker.has_helper}))
    session.run()


class Repl:
    """The loop of a session. Each cell has a shadow, if the session has `shadows`."""

    def __init__(
        self, writable: tuple[str, ...], shadows: shadow.Shadows | None, forker: Forker, *, in_image: bool
    ) -> None:
        self._writable, self._shadows, self.forker, self._in_image = writable, shadows, forker, in_image
        self._notebook = notebook.Notebook(program.fresh_main("<session>"))
        self._pid = os.getpid()
        self._forks: list[int] = []
        self._prepares_shadow = shadows is not None
        self._home, self._environment = os.getcwd(), dict(os.environ)
        files = session_files.FileOperations(self._home)
        self._operations: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
            "cell": self._notebook.run,
            "launch": self._launch,
            **dict.fromkeys(("files", "read", "write", "pack", "unpack"), files.carry_out),
            "fork": self._fork,
        }

    def run(self) -> NoReturn:
        while True:
            program.ignore_interrupts()
            if self._shadows is not None and self._renew_shadow(self._shadows):
                continue
            request = frames.receive(harden.CONTROL_FD)
            if request is None:
                os._exit(0)
            self._reap_forks()
            if request["op"] in ("cell", "launch"):
                self._part_from_copies()
            if request["op"] == "cell" and self._shadows is not None and self._continues_as_shadow(self._shadows):
                continue
            try:
                answer = self._operations[request["op"]](request)
            except BaseException as error:  # noqa: BLE001  a request that fails is an answer
                program.ignore_interrupts()
                answer = {"failed": _describe(error)}
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            program.ignore_interrupts()
            if _own_id() != self._pid:
                _exit(0)  # a process that a cell has forked, and that has come to the end of the cell
            if request["op"] == "cell" and _count_threads():
                frames.send_all(harden.CONTROL_FD, frames.encode({"threads": True}))
            packs = request["op"] not in ("fork", "launch")
            frames.send_all(harden.CONTROL_FD, frames.encode_answer(_pack(answer)) if packs else frames.encode(answer))

    def _renew_shadow(self, shadows: shadow.Shadows) -> bool:
        """End the shadow of the last cell, and make the next cell's, unless a request comes first.

        Returns:
            Whether this is the shadow, whose interpreter has ended.
        """
        if shadows.current and not shadows.is_used:
            return False
        prepares = self._prepares_shadow and not _runs_between_cells()
        if not shadows.current and not prepares:
            return False
        # The broker may not accept the last answer, and end the interpreter. Then its shadow is still needed.
        has_request = _await_request(SHADOW_STAYS_MS)
        shadows.end()
        if has_request or not prepares:
            return False
        shadows.await_end()
        return self._fork_shadow(shadows)

    def _continues_as_shadow(self, shadows: shadow.Shadows) -> bool:
        """Have a shadow for the next cell.

        Returns:
            False in the interpreter, and True in the shadow when the cell has ended the interpreter.
        """
        self._prepares_shadow = True
        if not shadows.can_take_over():
            shadows.end()
            if self._fork_shadow(shadows):
                return True
        if shadows.current:
            shadows.is_used = True
            frames.send_all(harden.CONTROL_FD, frames.encode({"shadow": shadows.current, "mb": shadows.size_mb}))
        return False

    def _fork_shadow(self, shadows: shadow.Shadows) -> bool:
        """Fork a shadow, if there is room for it. Returns True in the shadow, once it is the interpreter."""
        try:
            if shadows.start():
                return False
        except OSError:
            return False
        if _await_request() and not _peek():
            _exit(0)  # the session is closed
        self._pid, self._forks = _own_id(), []  # the others were the children of the interpreter
        self.forker.be_shadow()
        self._notebook.be_shadow()
        return True

    def _part_from_copies(self) -> None:
        """Part this interpreter, and the shadow to be, from the copies that it forked itself."""
        if self.forker.is_near_copies:
            if self._shadows is not None:
                self._shadows.end()
            self.forker.part_from_copies()

    def _launch(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fork the launcher, which runs the session's programs. Its control socket comes over this session's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads: they stay here
            pid, ends = _fork_with_ends(1, os.fork)
        if pid == 0:
            launcher.run(ends[0], self._home, self._environment)
        self._forks.append(pid)
        return {"done": True}

    def _fork(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fork this interpreter. The copy gets a control socket, pipes and a root of its own. The ends of the first
        three come over this session's control socket. The root goes only to the copy, over its own control socket, see
        `fork_mounts`. The session never sends a descriptor."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid, ends = _fork_with_ends(3, self.forker.fork)
        if pid == 0:
            try:
                outputs = fork_renewal.take_ends(ends)
                self.forker.be_copy()
                fork_renewal.become_copy(outputs, self._writable, image=self._in_image)
                self._notebook.be_copy()
                self._pid, self._forks = os.getpid(), []
                if self._shadows is not None:
                    self._shadows.be_copy()
                    self._prepares_shadow = False  # a checkpoint never runs a cell
            except BaseException as error:  # noqa: BLE001  a copy that is not complete must not go on
                with contextlib.suppress(BaseException):
                    frames.send_all(harden.CONTROL_FD, frames.encode({"failed": _describe(error)}))
                os._exit(1)
            return {"ready": True}  # goes out on the new control socket: the copy is in place
        self._forks.append(pid)
        frames.send_all(harden.CONTROL_FD, frames.encode({"forked": pid}))
        return {"done": True}

    def _reap_forks(self) -> None:
        """Reap the copies and launchers that have ended: they count until then. Copies are the helper's children."""
        self.forker.reap()
        for pid in [*self._forks]:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._forks.remove(pid)


class Forker:
    """Forks an interpreter into copies that it can neither signal nor inspect, nor they it.

    Its helper does that without end (see `sibling_fork`), but not while the interpreter has further threads: these may
    be changing the memory. Then, and where there is no helper, the interpreter forks itself, and both sides add a layer
    of Landlock, the origin once for all copies made since code last ran in it.
    """

    def __init__(self, thread_id: int, *, with_helper: bool) -> None:
        self._thread_id, self._with_helper = thread_id, with_helper and sibling_fork.supported()
        self._helper = self._start_helper()
        self._by_helper = self.is_near_copies = False

    @property
    def has_helper(self) -> bool:
        return self._helper is not None

    def fork(self) -> int:
        """Fork as `os.fork` does. Then the copy calls `be_copy` before it runs any code."""
        self._by_helper = self._helper is not None and _threads() == 1
        if self._helper is not None and self._by_helper:
            return self._helper.fork()
        pid = os.fork()
        self.is_near_copies = pid != 0
        return pid

    def be_copy(self) -> None:
        """Part a copy from its origin.

        Raises OSError if the kernel cannot. The copy must not continue then.
        """
        if self._helper is not None and self._by_helper:
            self._helper.check()
        else:
            self.is_near_copies = False
            self._helper = self._start_helper()  # leaves the origin's domain
            if self._helper is None:
                fork_renewal.separate()

    def be_shadow(self) -> None:
        """Start a helper for a shadow that has taken its interpreter's place: the last one ended with that."""
        self._helper = self._start_helper()

    def part_from_copies(self) -> None:
        """Part this interpreter from the copies that it forked itself, before code runs in it."""
        with contextlib.suppress(OSError):  # where this fails, it failed in every copy too, and none is alive
            fork_renewal.separate()
        self.is_near_copies = False

    def reap(self) -> None:
        if self._helper is not None:
            self._helper.reap()

    def _start_helper(self) -> sibling_fork.Helper | None:
        with contextlib.suppress(OSError):
            return sibling_fork.Helper(self._thread_id) if self._with_helper else None
        return None


def _threads() -> int:
    """Count the threads of this process, those of libraries included."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:  # no /proc
        return 1 + _thread._count()


def _fork_with_ends(count: int, fork: Callable[[], int]) -> tuple[int, list[int]]:
    """Fork, with descriptors for the new process, which come over the control socket."""
    frames.send_all(harden.CONTROL_FD, frames.encode({"ends": True}))
    ends, pid = fork_renewal.receive_descriptors(count), -1
    try:
        pid = fork()
    finally:
        if pid:
            for fd in ends:
                os.close(fd)
    return pid, ends


def _await_request(milliseconds: int | None = None) -> bool:
    """Wait until there is a request, or the session is closed. Returns whether that was in time."""
    poll = _poll()
    poll.register(harden.CONTROL_FD, select.POLLIN)
    with contextlib.suppress(OSError):
        return bool(poll.poll(milliseconds))
    return False


def _peek() -> bytes:
    """Return the first byte of the next request, or nothing if the session is closed."""
    with socket.socket(fileno=os.dup(harden.CONTROL_FD)) as control:
        try:
            return control.recv(1, socket.MSG_PEEK)
        except OSError:
            return b""


def _runs_between_cells() -> bool:
    """Return whether code of earlier cells may change variables between two cells, in a thread or a signal handler."""
    handlers = map(_get_handler, _SIGNALS)
    return bool(_count_threads()) or any(callable(handler) and handler != _DEFAULT_HANDLER for handler in handlers)


def _describe(error: BaseException) -> str:
    """An exception in a sentence, even if its own `__str__` fails."""
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
        return answer_codec.pack({**answer, "display": shown, "serials": []})
    except BaseException as error:  # noqa: BLE001  above all, too little memory
        return answer_codec.pack({"failed": _describe(error)})
