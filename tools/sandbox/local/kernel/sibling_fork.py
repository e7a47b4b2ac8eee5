"""Forks whose Landlock domain is a sibling of the origin's, so that a session can be forked without end.

A process that a session forks keeps the session's Landlock domain. To part the two, each of them must add a layer, and
the kernel allows 16. So another process forks: the *helper* of an interpreter. It is started before any user code,
shares the interpreter's memory, descriptors and folders, and stays in the domain that the interpreter then leaves by
adding one layer. On request the helper forks. The new process has the interpreter's memory and the helper's domain: it
starts a helper of its own, adds one layer, and continues as the copy, where the interpreter asked. No domain is deeper
than the first interpreter's, however many forks lie between them, and no side can signal or inspect the other, or a
helper.

User code can write to all memory that the helper has, and the helper could signal every fork. So the helper runs a few
instructions of its own, on a page that is sealed (mseal(2)): nothing in the process can change or unmap it. (Only
/proc/self/mem could, so a child's /proc is mounted read-only.) It keeps
its state in registers, has no stack, blocks every signal, and neither jumps to an address nor passes on a descriptor
that it read from memory. What it reads, it only compares, or passes on to the copy. The copy runs on the same page
until it has its own layer. A program that writes to the helper's words gets a copy that the broker does not know: a
process in a domain of its own, which counts as one of the session's.

Source: mseal(2), clone(2), futex(2), rt_sigaction(2), set_tid_address(2), and the kernel's
`Documentation/userspace-api/landlock.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Iterable

from toolgym.tools.sandbox.local.kernel import landlock, syscalls

_PAGE = resource.getpagesize()
_PATIENCE = 5
"""Seconds after which a helper that does not answer counts as lost."""

_ASK_AT = 0x13A
_HELPER_FLAGS = 0x700
"""CLONE_VM, CLONE_FS and CLONE_FILES. Without a signal at its end: `wait` in a program does not see the helper."""

_INSTRUCTIONS = bytes.fromhex(
    # the helper
    "488b1de10100004531f6"  # mov rbx,[rip+0x1e1]; xor r14d,r14d
    # reap copies that have ended
    "b83d00000048c7c7ffffffff31f6"  # mov eax,0x3d; mov rdi,0xffffffffffffffff; xor esi,esi
    "ba010000404531d20f05"  # mov edx,0x40000001; xor r10d,r10d; syscall
    "85c07e05"  # test eax,eax; jle 2b <idle>
    "41ffc6ebdf"  # inc r14d; jmp a <loop>
    # wait for a request
    "b8ca0000004889df31f6ba03000000"  # mov eax,0xca; mov rdi,rbx; xor esi,esi; mov edx,0x3
    "4531d20f05"  # xor r10d,r10d; syscall
    "b803000000870385c00f84e0000000"  # mov eax,0x3; xchg [rbx],eax; test eax,eax; je 12e <end>
    "83f801742e"  # cmp eax,0x1; je 81 <fork>
    "83f80275b2"  # cmp eax,0x2; jne a <loop>
    # reap on request
    "b83d00000048c7c7ffffffff31f6"  # mov eax,0x3d; mov rdi,0xffffffffffffffff; xor esi,esi
    "ba010000404531d20f05"  # mov edx,0x40000001; xor r10d,r10d; syscall
    "85c07e05"  # test eax,eax; jle 79 <reaped>
    "41ffc6ebdf"  # inc r14d; jmp 58 <reap>
    # say how many
    "4489f04531f6eb1c"  # mov eax,r14d; xor r14d,r14d; jmp 9d <reply>
    # fork
    "b838000000bf1100200131f631d2"  # mov eax,0x38; mov edi,0x1200011; xor esi,esi; xor edx,edx
    "4c8b53184531c00f05"  # mov r10,[rbx+0x18]; xor r8d,r8d; syscall
    "4885c07425"  # test rax,rax; je c2 <copy>
    # answer
    "48894308c7430401000000b8ca000000"  # mov [rbx+0x8],rax; mov [rbx+0x4],0x1; mov eax,0xca
    "488d7b04be01000000ba010000000f05"  # lea rdi,[rbx+0x4]; mov esi,0x1; mov edx,0x1; syscall
    "e948ffffff"  # jmp a <loop>
    # the copy: its end is told to its helper, which comes first; then its domain
    "b8da0000004889df0f05"  # mov eax,0xda; mov rdi,rbx; syscall
    "b838000000bf0007000031f631d2"  # mov eax,0x38; mov edi,0x700; xor esi,esi; xor edx,edx
    "4531d24531c00f05"  # xor r10d,r10d; xor r8d,r8d; syscall
    "4885c00f8415ffffff"  # test rax,rax; je 0 <helper>
    "48894320488d3dca000000be18000000"  # mov [rbx+0x20],rax; lea rdi,[rip+0xca]; mov esi,0x18
    "31d2b8bc0100000f05"  # xor edx,edx; mov eax,0x1bc; syscall
    "4885c07825"  # test rax,rax; js 12e <end>
    "4189c489c731f6b8be010000"  # mov r12d,eax; mov edi,eax; xor esi,esi; mov eax,0x1be
    "0f05"  # syscall
    "4885c07512"  # test rax,rax; jne 12e <end>
    "4489e7b8030000000f05"  # mov edi,r12d; mov eax,0x3; syscall
    "488b631031c0eb78"  # mov rsp,[rbx+0x10]; xor eax,eax; jmp 1a6 <resume>
    # the interpreter has ended, or a copy is not complete
    "b8e7000000bf010000000f05"  # mov eax,0xe7; mov edi,0x1; syscall
    # the interpreter: keep the registers, and ask the helper
    "53554154415541564157"  # push rbx; push rbp; push r12; push r13; push r14; push r15
    "4883ec100fae1c24d97c2404"  # sub rsp,0x10; stmxcsr [rsp]; fnstcw WORD PTR [rsp+0x4]
    "488b1d9100000048896310c7430400000000"  # mov rbx,[rip+0x91]; mov [rbx+0x10],rsp; mov [rbx+0x4],0x0
    "8b4b28890bb8ca0000004889df"  # mov ecx,[rbx+0x28]; mov [rbx],ecx; mov eax,0xca; mov rdi,rbx
    "be01000000ba010000000f05"  # mov esi,0x1; mov edx,0x1; syscall
    # wait for the answer
    "8b430485c07520"  # mov eax,[rbx+0x4]; test eax,eax; jne 1a2 <answered>
    "b8ca000000488d7b0431f631d2"  # mov eax,0xca; lea rdi,[rbx+0x4]; xor esi,esi; xor edx,edx
    "4c8d15420000000f05"  # lea r10,[rip+0x42]; syscall
    "83f89275de"  # cmp eax,0xffffff92; jne 17b <wait>
    "4863c0eb04"  # movsxd rax,eax; jmp 1a6 <resume>
    # it has come
    "488b4308"  # mov rax,[rbx+0x8]
    # the interpreter, or its copy, continues
    "0fae1424d96c24044883c410"  # ldmxcsr [rsp]; fldcw WORD PTR [rsp+0x4]; add rsp,0x10
    "415f415e415d415c5d5bc3"  # pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret
    "0f1f00"  # nop [rax]
)
"""For x86_64, assembled by GNU as. What follows them: the attributes of a Landlock domain, the time to wait for an
answer, and the address of the words that helper and interpreter share."""

_REQUEST, _THREAD_ID, _NEXT_HELPER, _QUESTION = 0, 24, 32, 40
_FORK, _REAP, _IDLE = 1, 2, 3
"""Values of the request's word. When the interpreter ends, the kernel sets it to 0 and
wakes the helper, which ends too: it has no other way to learn that, for no signal of that domain reaches it."""

_RT_SIGACTION, _SIGNALS = syscalls.number("rt_sigaction"), 64
_ACTION = 32
"""Bytes of the kernel's `struct sigaction`."""

_FAULTS = (signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)
_LIMITS = [
    getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name not in ("RLIMIT_NPROC", "RLIMIT_CORE")
]
"""Limits that a program may have lowered. The other two are the broker's, see `seccomp`."""


def supported() -> bool:
    """Whether this kernel and processor have all that helpers need; else forks add a layer to both sides."""
    return syscalls.MACHINE == "x86_64" and _PAGE == 4096 and landlock.abi() >= landlock.SCOPED_SINCE


class Helper:
    """The helper of this process. `thread_id` is from `syscalls.thread_id_address`.

    Raises OSError if it cannot be started. Then this process is as before.
    """

    def __init__(self, thread_id: int) -> None:
        self._lost, self._copies = False, 0
        self._shared = syscalls.pages(_PAGE)
        ctypes.c_uint64.from_address(self._shared + _THREAD_ID).value = thread_id
        ctypes.c_uint32.from_address(self._shared + _REQUEST).value = _IDLE
        self._question = ctypes.c_uint32.from_address(self._shared + _QUESTION)
        self._next_helper = ctypes.c_int64.from_address(self._shared + _NEXT_HELPER)
        attributes = struct.pack("3Q", 0, 0, landlock.SCOPES)
        rest = attributes + struct.pack("4Q", _PATIENCE, 0, self._shared, 0)
        code = syscalls.executable(_INSTRUCTIONS + rest)
        syscalls.seal(code, _PAGE)
        self._ask = ctypes.PYFUNCTYPE(ctypes.c_long)(code + _ASK_AT)
        self._actions = ctypes.create_string_buffer(_SIGNALS * _ACTION)
        self._actions_of_helper, self._limits_of_helper = _start(code), _read_limits()
        syscalls.quick_syscall(syscalls.number("set_tid_address"), self._shared, 0, 0, 0, 0, 0)
        landlock.separate()

    def fork(self) -> int:
        """Fork as `os.fork` does, into a domain beside this one. The caller has one thread, and the copy calls `check`.

        Raises OSError if there is no process, or the helper is gone.
        """
        changed, limits = self._changed_actions(), _read_limits()
        name = ctypes.create_string_buffer(16)
        syscalls.prctl(syscalls.PR_GET_NAME, ctypes.addressof(name))
        mask = syscalls.block_signals()
        try:
            ctypes.pythonapi.PyOS_BeforeFork()
            pid = self._answer(_FORK)
            if pid == 0:
                self._copies = 0
                _write_actions(self._actions, changed)
                ctypes.pythonapi.PyOS_AfterFork_Child()
            else:
                ctypes.pythonapi.PyOS_AfterFork_Parent()
        finally:
            syscalls.restore_signals(mask)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        if pid == 0:
            syscalls.prctl(syscalls.PR_SET_NAME, ctypes.addressof(name))
            self._restore_limits(limits)
        else:
            self._copies += 1
        return pid

    def check(self) -> None:
        """Raise OSError in a copy if it has no helper of its own, for there was room for one process only."""
        failure = -self._next_helper.value
        if failure > 0:
            raise OSError(failure, os.strerror(failure))

    def reap(self) -> None:
        """Reap the copies that have ended."""
        if self._copies > 0:
            self._copies -= max(0, self._answer(_REAP))

    def _changed_actions(self) -> list[int]:
        """Read the signals' actions. Returns the numbers of those that a copy does not get from the helper."""
        _read_actions(self._actions)
        new, old = self._actions.raw, self._actions_of_helper
        return [
            at // _ACTION + 1 for at in range(0, len(new), _ACTION) if new[at : at + _ACTION] != old[at : at + _ACTION]
        ]

    def _restore_limits(self, limits: list[tuple[int, int]]) -> None:
        for kind, limit, old in zip(_LIMITS, limits, self._limits_of_helper, strict=True):
            if limit != old:
                resource.setrlimit(kind, limit)

    def _answer(self, question: int) -> int:
        if self._lost:
            return -errno.ESRCH
        self._question.value = question
        answer = int(self._ask())
        self._lost = answer == -errno.ETIMEDOUT
        return answer


def _start(code: int) -> bytes:
    """Start a process on the sealed page. Returns its signals' actions.

    It begins with every signal blocked, and would die of a fault: no handler
    that a preloaded library set may ever run in it.
    """
    actions = ctypes.create_string_buffer(_SIGNALS * _ACTION)
    stack = syscalls.pages(_PAGE) + _PAGE - 64
    mask = syscalls.block_signals()
    try:
        _read_actions(actions)
        default = ctypes.create_string_buffer(_ACTION)
        for number in _FAULTS:
            _set_action(number, ctypes.addressof(default), 0)
        try:
            pid = syscalls.libc.clone(ctypes.c_void_p(code), ctypes.c_void_p(stack), ctypes.c_int(_HELPER_FLAGS), None)
            syscalls.check(pid, "clone")
        finally:
            _write_actions(actions, _FAULTS)
    finally:
        syscalls.restore_signals(mask)
    rows = [actions.raw[at : at + _ACTION] for at in range(0, _SIGNALS * _ACTION, _ACTION)]
    return b"".join(bytes(_ACTION) if at in _FAULTS else row for at, row in enumerate(rows, 1))


def _set_action(number: int, new: int, old: int) -> None:
    syscalls.quick_syscall(_RT_SIGACTION, number, new, old, 8, 0, 0)


def _read_actions(actions: ctypes.Array[ctypes.c_char]) -> None:
    for number in range(1, _SIGNALS + 1):
        _set_action(number, 0, ctypes.addressof(actions) + (number - 1) * _ACTION)


def _write_actions(actions: ctypes.Array[ctypes.c_char], numbers: Iterable[int]) -> None:
    for number in numbers:
        _set_action(number, ctypes.addressof(actions) + (number - 1) * _ACTION, 0)


def _read_limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(kind) for kind in _LIMITS]
