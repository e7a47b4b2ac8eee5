"""What the fork of a session does to be a session of its own: whatever a fork of a process still shares, it renews.

A forked process has its own memory, but shares files with their positions, mapped files and shared memory, and pipes.
Here each becomes a copy in the state that it had:

- the files below /tmp and /dev/shm, by name, and those without a name that are open;
- what is open and what is mapped of these; shared memory;
- pipes with both ends in the session, with what is in them. One whose other end a program or thread of the origin
  holds is closed there: that program stays with the origin;
- numpy's global generator, which is seeded anew, as Python does with its own.

Sockets stay shared, as after any fork. Locks on files stay with the origin, and so do all threads but the one that runs
cells.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import shutil
import socket
import stat
import sys

from toolgym.tools.sandbox.local import confine, landlock

Place = tuple[int, int]
"""Device and number of a file."""

_FOLDERS = ("/tmp", "/dev/shm")

_STEP = 1 << 20

_MERSENNE = 624

_SHARED, _ANONYMOUS, _FIXED = 0x01, 0x20, 0x10
_MOVE = 0x03  # MREMAP_MAYMOVE | MREMAP_FIXED
_READ, _WRITE, _EXECUTE = 1, 2, 4
_FAILED = ctypes.c_void_p(-1).value
_DO_NOT_WAIT = 2  # SPLICE_F_NONBLOCK

_SHARED_MAPPING = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-])s ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$", re.MULTILINE
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.tee.restype = ctypes.c_ssize_t
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)


def become_copy(control: int, out: int, err: int) -> None:
    """In the copy: take these descriptors, and the root that comes over the first, and renew what is shared.

    Raises:
        OSError: something cannot be renewed; half a copy must not go on.
    """
    outputs = {_place(os.fstat(fd)): fd for fd in (1, 2)}
    for old, new in ((control, confine.CONTROL_FD), (out, 1), (err, 2)):
        os.dup2(old, new)
        os.close(old)
    separate()
    working = os.getcwd()
    (root,) = receive_descriptors(1)
    os.fchdir(root)
    os.close(root)
    copied: dict[Place, str] = {}

    def copy(source: str, target: str) -> None:
        shutil.copy2(source, target, follow_symlinks=False)
        copied[_place(os.lstat(source))] = source

    for folder in _FOLDERS:
        shutil.copytree(
            folder, folder[1:], symlinks=True, ignore=_not_copied, copy_function=copy, dirs_exist_ok=True
        )  # fmt: skip
    files = _open_files()
    folders = {fd: _name(fd) for fd, about in files.items() if stat.S_ISDIR(about.st_mode)}
    os.chroot(".")
    os.chdir(working)
    nameless = _copy_nameless(files, copied)
    pipes: dict[Place, list[int]] = {}
    for fd, about in files.items():
        place = _place(about)
        if place in copied:
            _reopen(fd, copied[place])
        elif folders.get(fd, "").startswith(_FOLDERS):
            with contextlib.suppress(FileNotFoundError):
                _reopen(fd, folders[fd])
        elif place in outputs:
            os.dup2(outputs[place], fd, os.get_inheritable(fd))
        elif stat.S_ISFIFO(about.st_mode):
            pipes.setdefault(place, []).append(fd)
    for ends in pipes.values():
        _renew_pipe(ends)
    _renew_mappings(copied)
    for path in nameless:
        os.unlink(path)
    random = sys.modules.get("numpy.random")
    if random is not None:
        key = sys.modules["numpy"].frombuffer(os.urandom(4 * _MERSENNE), "uint32")  # see `program.fresh_main`
        random.set_state(("MT19937", key, _MERSENNE))


def receive_descriptors(count: int) -> list[int]:
    """Wait for descriptors on the control socket."""
    with socket.socket(fileno=os.dup(confine.CONTROL_FD)) as waiting:
        _, fds, _, _ = socket.recv_fds(waiting, 1, count)
    if len(fds) != count:
        raise OSError(f"{len(fds)} descriptors came, {count} were expected")
    return fds


def separate() -> None:
    """Keep origin and copies from signalling each other, where the kernel can (see `Isolation.missing`).

    Raises:
        OSError: it can, but not once more in the history of this process.
    """
    if landlock.abi() < landlock.SCOPED_SINCE:
        return
    try:
        landlock.separate()
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise OSError(
            errno.E2BIG,
            "too many forks lie between this session and the first one: the kernel keeps about 15 generations from "
            "signalling each other, and no more; open a new session, or fork one of an earlier generation",
        ) from None


# ---------------------------------------------------------------------- files


def _place(about: os.stat_result) -> Place:
    return about.st_dev, about.st_ino


def _open_files() -> dict[int, os.stat_result]:
    """What the session has open, but for its input, outputs and control socket."""
    found = {}
    for fd in range(confine.CONTROL_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with contextlib.suppress(OSError):
            found[fd] = os.fstat(fd)
    return found


def _name(fd: int) -> str:
    """A folder's path; nothing where there is no /proc."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def _not_copied(where: str, names: list[str]) -> list[str]:
    """What is mounted there (an interpreter that lives below /tmp), what is neither file, folder nor link, and what
    its owner may not read himself."""
    skipped = []
    for name in names:
        path = os.path.join(where, name)
        mode = os.lstat(path).st_mode
        needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
        plain = stat.S_ISLNK(mode) or ((stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and os.access(path, needed))
        if not plain or os.path.ismount(path):
            skipped.append(name)
    return skipped


def _copy_nameless(files: dict[int, os.stat_result], copied: dict[Place, str]) -> list[str]:
    """Copy the open files that are deleted, adding them to `copied`. Returns the names that the copies have for now."""
    names = []
    for fd, about in files.items():
        place = _place(about)
        readable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
        if not stat.S_ISREG(about.st_mode) or about.st_nlink or place in copied or not readable:
            continue
        path = copied[place] = f"/tmp/.{os.urandom(8).hex()}"
        names.append(path)
        with open(path, "xb") as file:
            for at in range(0, about.st_size, _STEP):
                file.write(os.pread(fd, _STEP, at))
    return names


def _reopen(fd: int, path: str) -> None:
    """Point a descriptor at the copy of its file, at the same position."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    position = os.lseek(fd, 0, os.SEEK_CUR)
    fresh = os.open(path, flags)
    os.lseek(fresh, position, os.SEEK_SET)
    os.dup2(fresh, fd, os.get_inheritable(fd))
    os.close(fresh)


def _renew_pipe(ends: list[int]) -> None:
    """Make a new pipe of those ends of one that are here, with what is in it where both are."""
    modes = {fd: fcntl.fcntl(fd, fcntl.F_GETFL) for fd in ends}
    sides = {mode & os.O_ACCMODE for mode in modes.values()}
    if os.O_RDWR in sides:
        return
    fresh = os.pipe()
    if len(sides) == 2:
        read = next(fd for fd in ends if modes[fd] & os.O_ACCMODE == os.O_RDONLY)
        _libc.tee(read, fresh[1], _STEP, _DO_NOT_WAIT)
    for fd in ends:
        os.dup2(fresh[modes[fd] & os.O_ACCMODE], fd, os.get_inheritable(fd))
        os.set_blocking(fd, not modes[fd] & os.O_NONBLOCK)
    for fd in fresh:
        os.close(fd)


# ---------------------------------------------------------------------- memory


def _renew_mappings(copied: dict[Place, str]) -> None:
    """Map the copies of files instead, and copies of shared memory. What is mapped of the runtime stays."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            mapped = file.readall()
    except FileNotFoundError:
        return  # see `Isolation.missing`
    for found in _SHARED_MAPPING.finditer(mapped):
        start, end, offset, major, minor = (int(found[one], 16) for one in (1, 2, 4, 5, 6))
        path = copied.get((os.makedev(major, minor), int(found[7])))
        access = sum(bit for letter, bit in zip(b"rwx", (_READ, _WRITE, _EXECUTE), strict=True) if letter in found[3])
        if path is not None:
            fd = os.open(path, os.O_RDWR if access & _WRITE else os.O_RDONLY)
            _check(_libc.mmap(start, end - start, access, _SHARED | _FIXED, fd, offset))
            os.close(fd)
        elif access & _READ and found[8].endswith(b"(deleted)"):
            size = end - start
            fresh = _libc.mmap(None, size, _READ | _WRITE, _SHARED | _ANONYMOUS, -1, 0)
            _check(fresh)
            ctypes.memmove(fresh, start, size)
            _libc.mprotect(fresh, size, access)
            _check(_libc.mremap(fresh, size, size, _MOVE, start))


def _check(address: int | None) -> None:
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"memory cannot be copied: {os.strerror(code)}")
