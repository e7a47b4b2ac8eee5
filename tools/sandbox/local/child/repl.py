"""The interpreter of a session: answers the requests for cells, files and forks."""

from __future__ import annotations

import _thread
import contextlib
import os
import select
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
"""Milliseconds that a shadow outlives a cell which ended well."""

# Programs can replace them.
_own_id, _exit, _count_threads, _poll = os.getpid, os._exit, _thread._count, select.poll


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
    """The loop of a session. Before each cell it forks a shadow, if it has `shadows`."""

    def __init__(
        self, writable: tuple[str, ...], shadows: shadow.Shadows | None, forker: Forker, *, in_image: bool
    ) -> None:
        self._writable, self._shadows, self.forker, self._in_image = writable, shadows, forker, in_image
        self._notebook = notebook.Notebook(program.fresh_main("<session>"))
        self._pid = os.getpid()
        self._forks: list[int] = []
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
            request = frames.receive(harden.CONTROL_FD)
            if request is None:
                os._exit(0)
            self._reap_forks()
            if request["op"] in ("cell", "launch"):
                self.forker.part_from_copies()
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
            if self._shadows is not None and self._shadows.any:
                # The broker may not accept the answer, and end the interpreter: then the shadow is needed yet.
                _await_request()
                self._shadows.end()

    def _continues_as_shadow(self, shadows: shadow.Shadows) -> bool:
        """Fork a shadow. Returns False in the interpreter, at once, and True in the shadow, when the cell has ended the
        interpreter: the shadow is the interpreter then."""
        try:
            pid = shadows.start()
        except OSError:
            return False
        if pid:
            frames.send_all(harden.CONTROL_FD, frames.encode({"shadow": pid, "mb": shadows.size_mb}))
            return False
        self._pid, self._forks = _own_id(), []  # the others were the children of the interpreter
        self.forker.be_shadow()
        self._notebook.be_shadow()
        return True

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
        self._by_helper = self._near_copies = False

    @property
    def has_helper(self) -> bool:
        return self._helper is not None

    def fork(self) -> int:
        """Fork as `os.fork` does. Then the copy calls `be_copy` before it runs any code."""
        self._by_helper = self._helper is not None and _threads() == 1
        if self._helper is not None and self._by_helper:
            return self._helper.fork()
        pid = os.fork()
        self._near_copies = pid != 0
        return pid

    def be_copy(self) -> None:
        """Part a copy from its origin.

        Raises OSError if the kernel cannot. The copy must not continue then.
        """
        if self._helper is not None and self._by_helper:
            self._helper.check()
        else:
            self._near_copies = False
            self._helper = self._start_helper()  # leaves the origin's domain
            if self._helper is None:
                fork_renewal.separate()

    def be_shadow(self) -> None:
        """Start a helper for a shadow that has taken its interpreter's place: the last one ended with that."""
        self._helper = self._start_helper()

    def part_from_copies(self) -> None:
        """Part this interpreter from the copies that it forked itself, before code runs in it."""
        if self._near_copies:
            with contextlib.suppress(OSError):  # where this fails, it failed in every copy too, and none is alive
                fork_renewal.separate()
            self._near_copies = False

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


def _await_request() -> None:
    """Wait until there is a request, but not for long."""
    poll = _poll()
    poll.register(harden.CONTROL_FD, select.POLLIN)
    with contextlib.suppress(OSError):
        poll.poll(SHADOW_STAYS_MS)


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
