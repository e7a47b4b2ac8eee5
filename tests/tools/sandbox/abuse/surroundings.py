"""The kinds of place where the suite runs: as root, as an ordinary user, and in something like Docker's container.

Docker's default: the capabilities that it keeps, its seccomp rules that matter here (no new namespaces, no mounts, no
bpf, keys, io_uring...; `clone3` is not there), and no control groups to write. It is an emulation: a real container
differs in its file system.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from pathlib import Path

USER = 61234 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""An ordinary user that owns nothing."""

SURROUNDINGS = ("root", "user", "masked-proc", "docker-root", "docker-user")
"""root; a user; a user with parts of /proc covered, as in Kubernetes; Docker's rules, as its root and as a user."""

_libc = ctypes.CDLL(None, use_errno=True)

# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind, net_raw, sys_chroot, mknod, audit_write,
# setfcap: https://docs.docker.com/engine/security/#linux-kernel-capabilities
_DOCKER_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})

# mount, umount2, pivot_root, unshare, setns, the new mount calls, bpf, perf_event_open, userfaultfd, keys, io_uring,
# modules, kexec, open_by_handle_at, reboot, swap, acct, iopl, ioperm, settimeofday, quotactl, syslog
_DENIED = {
    "x86_64": (165, 166, 155, 272, 308, *range(428, 434), 442, 321, 298, 323, 248, 249, 250, 425, 426, 427, 175, 313,
               176, 246, 320, 304, 169, 167, 168, 163, 172, 173, 164, 179, 103),
    "aarch64": (40, 39, 41, 97, 268, *range(428, 434), 442, 280, 241, 282, 217, 218, 219, 425, 426, 427, 105, 273, 106,
                104, 294, 265, 142, 224, 225, 89, 170, 60, 116),
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020080


def why_not(name: str) -> str:
    """Why this machine cannot offer these surroundings to us, or nothing."""
    root = os.geteuid() == 0
    if name in ("root", "docker-root", "masked-proc") and not root:
        return "needs root to set up"
    if name.startswith("docker") and platform.machine() not in _DENIED:
        return f"no table of system calls for {platform.machine()}"
    if root and name != "root" and not _may_mount():
        return "root may not mount here, so an ordinary user cannot be given what root alone may read"
    return ""


def enter(name: str) -> None:
    """Put this process into them, for good. The interpreter and this checkout stay readable, wherever they are."""
    root = os.geteuid() == 0
    if root and name != "root":
        _check(_libc.unshare(0x20000), "unshare")
        _mount(None, "/", None, 0x4000 | 0x40000)
        _uncover(Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[4])
    if name == "masked-proc":
        _mount("tmpfs", "/proc/scsi" if os.path.isdir("/proc/scsi") else "/proc/tty", "tmpfs", 1)
    if name.startswith("docker"):
        if root:
            _mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 1)
        else:
            _check(_libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
        _install_filter()
        if root:
            _keep_capabilities(_DOCKER_CAPABILITIES)
    if root and name in ("user", "masked-proc", "docker-user"):
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        _check(_libc.prctl(4, 1, 0, 0, 0), "dumpable")
        os.environ["HOME"] = "/nonexistent"


def _uncover(*paths: Path) -> None:
    """Make paths readable that lie below folders of root's alone: cover such a folder, and bind them back."""
    hidden = []
    for path in paths:
        path = path.resolve()
        closed = next((p for p in reversed([path, *path.parents]) if p.stat().st_mode & 5 != 5), None)
        if closed is not None:
            hidden.append((closed, path))
    for folder in dict.fromkeys(folder for folder, _ in hidden):
        kept = [(path, os.open(path, os.O_PATH)) for closed, path in hidden if closed == folder]
        _mount("tmpfs", str(folder), "tmpfs", 2 | 4, "mode=755,size=1m")
        for path, descriptor in kept:
            path.mkdir(parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{descriptor}", str(path), None, 0x1000 | 0x4000)
            os.close(descriptor)


def _may_mount() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> 21 & 1)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    given = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _check(_libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]), f"mount {target}")


def _keep_capabilities(kept: frozenset[int]) -> None:
    for number in range(64):
        if number not in kept and _libc.prctl(24, number, 0, 0, 0) < 0:
            break
    mask = sum(1 << number for number in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("IIIIII", low, low, 0, high, high, 0)
    _check(_libc.capset(struct.pack("Ii", 0x20080522, 0), data), "capset")


def _install_filter() -> None:
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    machine = platform.machine()
    steps = [(load, 0, 0, 0), (equal, 0, 1, _CLONE3), (give, 0, 0, absent)]
    steps += [(equal, 0, 4, _CLONE[machine]), (load, 0, 0, 16), (any_bit, 0, 1, _NEW_NAMESPACES), (give, 0, 0, refuse)]
    steps += [(give, 0, 0, allow)]
    for number in _DENIED[machine]:
        steps += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    steps.append((give, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    _check(_libc.prctl(22, ctypes.c_ulong(2), program, 0, 0), "seccomp")


def _check(value: int, what: str) -> None:
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
