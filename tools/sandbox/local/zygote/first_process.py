"""The first process of a pid namespace, so that a program need not be it.

The kernel spares process 1 of a namespace every signal that it has no handler for, even one that it sends itself: a
program in that place would end in other ways than elsewhere. So process 1 is another process, which reaps orphans and
sleeps. It shares the memory of the zygote (`CLONE_VM`), so that starting and ending it copies nothing, and takes some
60 microseconds (`benchmarks/sandbox.py --without first-process`). It runs no Python, only a few instructions of its
own: they ignore SIGCHLD, whereupon the kernel reaps every orphan by itself, close all descriptors, and then wait for
ever. When it ends, the namespace ends.

Programs cannot reach the zygote through it: it belongs to the zygote's user namespace, where they have no capability,
and to no Landlock domain of theirs, so that neither `ptrace` nor its files in /proc are open to them. It blocks every
signal from its first instruction on: a handler of a preloaded library would run in it, with the zygote's memory. And it
holds no descriptor: not the zygote's socket, nor the files and mounts of other children.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import struct

from toolgym.tools.sandbox.local.kernel import syscalls

_PAGE = mmap.PAGESIZE
_SETTLED_MS = 5

_IGNORE = struct.pack("QQQQ", 1, 0, 0, 0)
"""The kernel's `struct sigaction` for SIG_IGN: handler, flags, restorer, mask."""

_INSTRUCTIONS = {
    "x86_64": bytes.fromhex(
        "b80d000000"  # mov  eax, 13        rt_sigaction
        "bf11000000"  # mov  edi, 17        SIGCHLD
        "488d3527000000"  # lea  rsi, [rip+39]  the structure below
        "31d2"  # xor  edx, edx
        "41ba08000000"  # mov  r10d, 8
        "0f05"  # syscall
        "b8b4010000"  # mov  eax, 436       close_range
        "31ff"  # xor  edi, edi
        "beffffffff"  # mov  esi, ~0
        "31d2"  # xor  edx, edx
        "0f05"  # syscall
        "b822000000"  # mov  eax, 34        pause
        "0f05"  # syscall
        "ebf7"  # jmp  to pause
        "00000000"
    )
    + _IGNORE,
    "aarch64": struct.pack(
        "<18I",
        0xD2800220,  # mov  x0, 17         SIGCHLD
        0x10000221,  # adr  x1, +68        the structure below
        0xD2800002,  # mov  x2, 0
        0xD2800103,  # mov  x3, 8
        0xD28010C8,  # mov  x8, 134        rt_sigaction
        0xD4000001,  # svc  0
        0xD2800000,  # mov  x0, 0
        0x92800001,  # mov  x1, ~0
        0xD2800002,  # mov  x2, 0
        0xD2803688,  # mov  x8, 436        close_range
        0xD4000001,  # svc  0
        0xD2800000,  # mov  x0, 0
        0xD2800001,  # mov  x1, 0
        0xD2800002,  # mov  x2, 0
        0xD2800003,  # mov  x3, 0
        0xD2800928,  # mov  x8, 73         ppoll of nothing, without end
        0xD4000001,  # svc  0
        0x17FFFFFA,  # b    to ppoll
    )
    + _IGNORE,
}


class InitMaker:
    """Makes first processes. If these instructions cannot run (another processor, a system that forbids new executable
    memory), it forks instead: just as correct, and slower by a copy of the zygote's page tables."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._start = self._top = 0
        code = _INSTRUCTIONS.get(syscalls.MACHINE)
        if code is None or not hasattr(syscalls.libc, "clone"):
            return
        try:
            self._start = syscalls.executable(code)
        except OSError:
            return
        # One stack for all: each pushes the same two words, and never returns to read them.
        self._top = syscalls.pages(_PAGE) + _PAGE - 64
        if not self._works():
            self._start = 0

    def make(self, *, sibling: bool = False) -> int:
        """Start one in the namespace of this process's next child, whose `sibling` it may be, and return its process
        id."""
        if not self._start:
            return self._fork(sibling=sibling)
        flags = syscalls.CLONE_VM | signal.SIGCHLD | (syscalls.CLONE_PARENT if sibling else 0)
        before = syscalls.block_signals()
        try:
            pid = syscalls.libc.clone(
                ctypes.c_void_p(self._start), ctypes.c_void_p(self._top), ctypes.c_int(flags), None
            )
            return syscalls.check(pid, "clone")
        finally:
            syscalls.restore_signals(before)

    def _fork(self, *, sibling: bool) -> int:
        pid = syscalls.fork_sibling(self._thread_id) if sibling else syscalls.fork()
        if pid:
            return pid
        try:
            syscalls.close_from(0)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                signal.pause()
        finally:
            os._exit(1)

    def _works(self) -> bool:
        try:
            pid = self.make()
        except OSError:
            return False
        handle = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        alive = not poll.poll(_SETTLED_MS)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(handle)
        return alive
