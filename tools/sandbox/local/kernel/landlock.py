"""Landlock: which files a process and all its children may touch, without any privilege.

Source: the kernel's `Documentation/userspace-api/landlock.rst`, ABI 1 to 6.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from toolgym.tools.sandbox.local.kernel import syscalls
from toolgym.tools.sandbox.local.kernel.syscall_batch import AT_FDCWD, SyscallBatch, high_descriptor

_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_SINCE_5 = (1 << 16) - 1
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 14, 1 << 15

READ_ONLY = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_NET_BIND_CONNECT = 3
SCOPES = 3
"""Abstract UNIX sockets, and signals."""
SCOPED_SINCE = 6
"""The first ABI that confines signals and abstract sockets."""


def abi() -> int:
    """The kernel's Landlock ABI; 0: it has none."""
    return max(
        0, int(syscalls.syscall(syscalls.number("landlock_create_ruleset"), None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    )


def separate() -> None:
    """Confine signals and abstract sockets of this process, and of all that it starts, to these processes for good. A
    process that stays in the domain that this one leaves may still signal it. Fails before ABI 6, and above 16 layers.
    """
    attributes = struct.pack("QQQ", 0, 0, SCOPES)
    ruleset = syscalls.check(
        syscalls.syscall(syscalls.number("landlock_create_ruleset"), attributes, ctypes.c_size_t(24), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )
    try:
        syscalls.check(
            syscalls.syscall(syscalls.number("landlock_restrict_self"), ruleset, ctypes.c_uint(0)),
            "landlock_restrict_self",
        )
    finally:
        os.close(ruleset)


def around(read_only: Iterable[str], hidden: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split what may be read so that it leaves hidden folders out: a rule holds for all that is below its path. Returns
    what may be read, and the folders above the hidden ones, which may only be listed."""
    readable, listed = [os.path.realpath(path) for path in read_only], list[str]()
    for folder in filter(os.path.isdir, map(os.path.realpath, hidden)):
        while above := next((path for path in readable if f"{folder}/".startswith(f"{path}/")), None):
            readable.remove(above)
            if above != folder and above not in listed:  # else it is another name, such as lib64 for lib
                listed.append(above)
                readable += [os.path.realpath(f"{above}/{name}") for name in os.listdir(above)]
    return readable, listed


class Ruleset:
    """A set of rules, prepared once and applied in many children. What is `read_only` may be executed too; in
    `writable` folders everything but devices may be made, changed and removed, and devices used; `listed` folders may
    be listed, and no more."""

    def __init__(
        self,
        read_only: Iterable[str],
        devices: Iterable[str] = (),
        writable: Iterable[str] = (),
        listed: Iterable[str] = (),
    ) -> None:
        self._abi = abi()
        self._handled = _ALL.get(self._abi, _ALL_SINCE_5)
        self._writable = self._handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        self._rules = []
        with_devices = self._writable | _IOCTL_DEV
        kinds = ((read_only, READ_ONLY), (devices, DEVICE), (writable, with_devices), (listed, READ_DIR))
        for paths, access in kinds:
            for path in paths:
                if not os.path.exists(path):
                    continue
                allowed = access if os.path.isdir(path) else access & ~READ_DIR
                self._rules.append((high_descriptor(os.open(path, os.O_PATH | os.O_CLOEXEC)), allowed & self._handled))
        self.descriptors = [fd for fd, _ in self._rules]

    def write(
        self,
        batch: SyscallBatch,
        writable: Iterable[str],
        devices: Iterable[str],
        free: int,
        *,
        network: bool,
        itself: Iterable[str] = (),
    ) -> None:
        """Add to a batch the calls that restrict the calling process for good.

        They need no-new-privileges. Without `network`, the kernel refuses TCP's bind and connect, since ABI 4.

        Args:
            batch: the batch. It opens all paths below, in the process that it restricts.
            writable: folders that may be written to.
            devices: folders whose devices may be used.
            free: the lowest descriptor that is free by then.
            network: whether TCP may be used.
            itself: files that may be read, and folders that may only be listed, such as `/proc/self/status`.
        """
        net = 0 if network or self._abi < 4 else _NET_BIND_CONNECT
        scoped = SCOPES if self._abi >= SCOPED_SINCE else 0
        attributes = struct.pack("QQQ", self._handled, net, scoped)
        size = 24 if self._abi >= SCOPED_SINCE else 16 if self._abi >= 4 else 8
        batch.add("landlock_create_ruleset", attributes, size, 0, expect=free)
        for fd, access in self._rules:
            batch.add("landlock_add_rule", free, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
        opened = [(folder, self._writable) for folder in writable]
        opened += [(folder, (DEVICE | READ_DIR) & self._handled) for folder in devices]
        opened += [(path, READ_DIR if os.path.isdir(path) else READ_FILE) for path in itself]
        for folder, access in opened:
            handle = free + 1
            batch.add("openat", AT_FDCWD, folder, os.O_PATH | os.O_CLOEXEC, 0, expect=handle, about=folder)
            batch.add("landlock_add_rule", free, _PATH_BENEATH, struct.pack("=Qi", access, handle), 0)
            batch.add("close", handle)
        batch.add("landlock_restrict_self", free, 0)
        batch.add("close", free)
