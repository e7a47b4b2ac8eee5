"""A root for the copy of a forked session: the same read-only runtime, and new folders to write to.

A forked process cannot leave the mount namespace of its origin: mounting takes rights that it gave up. So the broker
makes a copy of the namespace with other folders in it, and sends the copy a descriptor of its root. The copy copies its
files there and changes to it (`chroot`, the one right that sessions keep). All of it lies below /w, where Landlock lets
a session write, and where its origin sees nothing.
"""

from __future__ import annotations

import os

from toolgym.tools.sandbox.local.kernel import syscalls
from toolgym.tools.sandbox.local.kernel.harden import TERMINALS, Hardening

BASE = "/w/new"
"""Where the file system of a fork is mounted, in its copy of the namespace."""


def make_root(pidfd: int, home: int, hardening: Hardening) -> tuple[int, int]:
    """Make a root for the process behind `pidfd`. Returns descriptors of it, and of the namespace that holds its
    mounts: they end when that is closed. The caller has one thread; `home` is a descriptor of its own mount namespace.
    """
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV
    bind = syscalls.MS_BIND | syscalls.MS_REC
    root = -1
    try:
        syscalls.setns(pidfd, syscalls.CLONE_NEWNS)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        owner = os.stat(hardening.mounts[0][1]).st_uid  # of the session, and so of its copy
        for _, folder in hardening.mounts:
            # The origin's: the copy must not reach them, and this namespace must not keep them alive.
            syscalls.detach(folder)
        syscalls.mount("tmpfs", BASE, "tmpfs", safe, hardening.file_system)
        for name in ("root", *(name for name, _ in hardening.mounts), *(path[1:] for path in hardening.above_runtime)):
            os.mkdir(f"{BASE}/{name}")
            os.chmod(f"{BASE}/{name}", 0o777)
            os.chown(f"{BASE}/{name}", owner, owner)
        syscalls.mount("/", f"{BASE}/root", None, bind)
        syscalls.detach(f"{BASE}/root{BASE}")
        for path in hardening.below_tmp:
            os.makedirs(f"{BASE}{path}")
            syscalls.mount(path, f"{BASE}{path}", None, bind)
        for name, folder in hardening.mounts:
            syscalls.mount(f"{BASE}/{name}", f"{BASE}/root{folder}", None, bind)
        if hardening.terminals:
            syscalls.detach(f"{BASE}/root/dev/pts")
            options = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
            syscalls.mount("devpts", f"{BASE}/root/dev/pts", "devpts", options, TERMINALS)
        root = os.open(f"{BASE}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        namespace = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=hardening.proc)
        return root, namespace
    except OSError:
        if root >= 0:
            os.close(root)
        raise
    finally:
        syscalls.setns(home, syscalls.CLONE_NEWNS)
