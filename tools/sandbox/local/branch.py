"""A root of its own for the fork of a live session: the same read-only runtime, and a new /tmp and /dev/shm.

A forked process cannot leave the mount namespace of its origin: mounting takes rights that it gave up, and Landlock
forbids it for good. So the template, which is bound by neither, makes a copy of the namespace with other folders in it,
and hands the fork a descriptor of its root. The fork copies its files there and changes to it (`chroot`, the one right
that sessions keep). All of it lives below /w, where Landlock lets a session write, and where its origin sees nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from toolgym.tools.sandbox.local import kernel
from toolgym.tools.sandbox.local.confine import Confinement

BASE = "/w/new"
"""Where the file system of a fork is mounted, in its copy of the namespace."""


@dataclass(frozen=True)
class Branch:
    """What a fork gets.

    Attributes:
        root: descriptor of its root folder.
        namespace: descriptor of the namespace that holds its mounts, which end with it.
    """

    root: int
    namespace: int


def grow(pidfd: int, home: int, confinement: Confinement) -> Branch:
    """Make one. This process changes its mount namespace meanwhile, so it must have one thread.

    Args:
        pidfd: handle of a process of the session.
        home: descriptor of this process's own mount namespace.
        confinement: sizes, and the runtime's folders below /tmp.
    """
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    bind = kernel.MS_BIND | kernel.MS_REC
    root = -1
    try:
        kernel.setns(pidfd, kernel.CLONE_NEWNS)
        kernel.unshare(kernel.CLONE_NEWNS)
        for folder in ("/tmp", "/dev/shm"):
            kernel.detach(folder)  # the origin's: nothing of it shall be in reach, nor be kept by us
        kernel.mount("tmpfs", BASE, "tmpfs", safe, confinement.file_system)
        for name in ("tmp", "shm", "root"):
            os.mkdir(f"{BASE}/{name}")
            os.chmod(f"{BASE}/{name}", 0o777)
        kernel.mount("/", f"{BASE}/root", None, bind)
        kernel.detach(f"{BASE}/root{BASE}")
        for path in confinement.below_tmp:
            os.makedirs(f"{BASE}{path}")
            kernel.mount(path, f"{BASE}{path}", None, bind)
        kernel.mount(f"{BASE}/tmp", f"{BASE}/root/tmp", None, bind)
        kernel.mount(f"{BASE}/shm", f"{BASE}/root/dev/shm", None, bind)
        root = os.open(f"{BASE}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        namespace = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=confinement.proc)
        return Branch(root, namespace)
    except OSError:
        if root >= 0:
            os.close(root)
        raise
    finally:
        kernel.setns(home, kernel.CLONE_NEWNS)
