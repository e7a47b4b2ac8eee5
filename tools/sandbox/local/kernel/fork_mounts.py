"""A root for the copy of a forked session: the same read-only runtime, and new folders to write to.

A forked process cannot leave the mount namespace of its origin: mounting takes rights that it gave up. So the broker
makes a copy of the namespace with other folders in it, and sends the copy a descriptor of its root. The copy copies its
files there and changes to it (`chroot`, the one right that sessions keep). All of it lies below /w, where Landlock lets
a session write, and where its origin sees nothing.
"""

from __future__ import annotations

import os

from toolgym.tools.sandbox.local.kernel import jail, syscalls
from toolgym.tools.sandbox.local.kernel.harden import INSIDE_IMAGE, TERMINALS, Hardening, overlay

BASE = "/w/new"
"""Where the file system of a fork is mounted, in its copy of the namespace."""


def make_root(pidfd: int, origin: int, home: int, hardening: Hardening) -> tuple[list[int], int]:
    """Make a root for a copy. The caller has one thread.

    Args:
        pidfd: handle of the copy.
        origin: descriptor of the namespace that holds the mounts of the copy's origin; -1: it has none of its own.
        home: descriptor of the caller's own mount namespace.

    Returns:
        Descriptors of the root and, with an image, of the origin's changes to it; and of the namespace that holds the
        copy's mounts, which end when that is closed.
    """
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV
    bind = syscalls.MS_BIND | syscalls.MS_REC
    opened: list[int] = []
    below = syscalls.copy_mount(jail.IMAGE_BELOW) if hardening.image else -1
    try:
        if hardening.image and origin >= 0:
            syscalls.setns(origin, syscalls.CLONE_NEWNS)
            opened.append(_open(f"{BASE}/upper"))
        syscalls.setns(pidfd, syscalls.CLONE_NEWNS)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        if hardening.image:
            for folder in (jail.IMAGE_UPPER, jail.IMAGE_ROOT):
                syscalls.detach(folder)
            if not opened:
                opened.append(_open(jail.IMAGE_UPPER))
        owner = os.stat(hardening.mounts[0][1]).st_uid  # of the session, and so of its copy
        for _, folder in hardening.mounts:
            # The origin's: the copy must not reach them, and this namespace must not keep them alive.
            syscalls.detach(folder)
        syscalls.mount("tmpfs", BASE, "tmpfs", safe, hardening.file_system)
        names = ["root", *(name for name, _ in hardening.mounts), *(path[1:] for path in hardening.above_runtime)]
        if hardening.image:
            names += ["upper", "scratch", "empty"]
        for name in names:
            os.mkdir(f"{BASE}/{name}")
            os.chmod(f"{BASE}/{name}", 0o777)
            os.chown(f"{BASE}/{name}", owner, owner)
        if hardening.image:
            os.chmod(f"{BASE}/upper", 0o755)
            syscalls.attach_mount(below, jail.IMAGE_BELOW)
            syscalls.mount("overlay", jail.IMAGE_ROOT, "overlay", safe, overlay(BASE))
            syscalls.detach(jail.IMAGE_BELOW)
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
        opened.insert(0, _open(_inside_image() if hardening.image else f"{BASE}/root"))
        namespace = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=hardening.proc)
        return opened, namespace
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    finally:
        if below >= 0:
            os.close(below)
        syscalls.setns(home, syscalls.CLONE_NEWNS)


def _inside_image() -> str:
    """Mount the rest of a fork's world below its image's root. Returns that."""
    world = f"{BASE}/root"
    syscalls.mount(f"{BASE}/empty", world + jail.IMAGE_UPPER, None, syscalls.MS_BIND)
    for source, target in INSIDE_IMAGE:
        syscalls.mount(world + source, world + jail.IMAGE_ROOT + target, None, syscalls.MS_BIND | syscalls.MS_REC)
    return world + jail.IMAGE_ROOT


def _open(folder: str) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
