"""Turns the fork of a session into a session of its own: it replaces all that a forked process still shares.

Each is replaced by a copy in its current state:

- the files below the folders that it can write to, and deleted ones that are open; descriptors and mappings of these;
  shared memory;
- pipes with both ends in the session, with their content; those to a program or thread of the origin are closed;
- sockets, which would connect all forks: in the copy their other end is closed;
- `eventfd`s, with their count, and the generators of random numbers that `generators` knows, which are seeded again.

Other objects of the kernel that have a descriptor stay shared, see SECURITY.md. Locks on files stay with the origin, as
do all threads but the one that runs cells.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import re
import resource
import shutil
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolgym.tools.sandbox.local.child import generators, image_changes
from toolgym.tools.sandbox.local.kernel import harden, landlock, syscalls

FileId = tuple[int, int]


class _Mapping(NamedTuple):
    start: int
    end: int
    access: int
    offset: int
    file_id: FileId
    name: bytes


_STEP = 1 << 20

_SHARED, _ANONYMOUS, _FIXED = 0x01, 0x20, 0x10
_MOVE = 0x03  # MREMAP_MAYMOVE | MREMAP_FIXED
_READ, _WRITE, _EXECUTE = 1, 2, 4
_FAILED = ctypes.c_void_p(-1).value
_DO_NOT_WAIT = 2  # SPLICE_F_NONBLOCK

_SHARED_MAPPING = re.compile(
    rb"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-])s ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)"
)

_QUERY = struct.Struct("9Q4I2Q")  # struct procmap_query
_NEXT_SHARED = 0x8 | 0x10  # PROCMAP_QUERY_VMA_SHARED | PROCMAP_QUERY_COVERING_OR_NEXT_VMA
_PROCMAP_QUERY = 0xC0006611 | _QUERY.size << 16
_PATH_MAX = 4096

_libc = syscalls.libc
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.tee.restype = ctypes.c_ssize_t
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)


def take_ends(ends: Sequence[int]) -> dict[FileId, int]:
    """In the copy: take its control socket, standard output and standard error. Returns the old files of the outputs
    with the descriptors that replace them."""
    control, out, err = ends
    outputs = {_file_id(os.fstat(fd)): fd for fd in (1, 2)}
    for old, new in ((control, harden.CONTROL_FD), (out, 1), (err, 2)):
        os.dup2(old, new)
        os.close(old)
    return outputs


def become_copy(outputs: Mapping[FileId, int], writable: tuple[str, ...], *, image: bool) -> None:
    """In the copy: take the root that comes over the control socket, and replace what is shared below `writable`.
    `outputs` is from `take_ends`. With an `image`, a folder comes along that has the origin's changes to it.

    Raises OSError if the copy is not complete. It must not continue then.
    """
    working = os.getcwd()
    root, *upper = receive_descriptors(1 + image)
    os.fchdir(root)
    os.close(root)
    copied: dict[FileId, str] = {}
    for changes in upper:
        image_changes.copy(changes, writable, copied)
        os.close(changes)

    def copy(source: str, target: str) -> None:
        shutil.copy2(source, target, follow_symlinks=False)
        copied[_file_id(os.lstat(source))] = source

    for folder in writable:
        shutil.copytree(folder, folder[1:], symlinks=True, ignore=_not_copied, copy_function=copy, dirs_exist_ok=True)
    files = {}
    for fd in _descriptors():
        with contextlib.suppress(OSError):
            files[fd] = os.fstat(fd)
    folders = {fd: _name(fd) for fd, about in files.items() if stat.S_ISDIR(about.st_mode)}
    os.chroot(".")
    os.chdir(working)
    nameless = _copy_nameless(files, copied)
    pipes: dict[FileId, list[int]] = {}
    for fd, about in files.items():
        file_id = _file_id(about)
        if file_id in copied:
            _reopen(fd, copied[file_id])
        elif folders.get(fd, "").startswith(writable):
            with contextlib.suppress(FileNotFoundError):
                _reopen(fd, folders[fd])
        elif file_id in outputs:
            os.dup2(outputs[file_id], fd, os.get_inheritable(fd))
        elif stat.S_ISFIFO(about.st_mode):
            pipes.setdefault(file_id, []).append(fd)
        elif stat.S_ISSOCK(about.st_mode):
            _disconnect(fd)
        elif not stat.S_IFMT(about.st_mode) and _name(fd) == "anon_inode:[eventfd]":
            _renew_counter(fd)
    for ends in pipes.values():
        _renew_pipe(ends)
    _renew_mappings(copied)
    for path in nameless:
        os.unlink(path)
    generators.renew()


def receive_descriptors(count: int) -> list[int]:
    with socket.socket(fileno=os.dup(harden.CONTROL_FD)) as waiting:
        _, fds, _, _ = socket.recv_fds(waiting, 1, count)
    if len(fds) != count:
        raise OSError(f"{len(fds)} descriptors came, {count} were expected")
    return fds


def separate() -> None:
    """Keep origin and copies from signalling each other, if the kernel supports it (see `Isolation.missing`). This is
    for copies that the interpreter forks itself; those that its helper forks are apart (see `sibling_fork`)."""
    if landlock.abi() < landlock.SCOPED_SINCE:
        return
    try:
        landlock.separate()
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise OSError(
            errno.E2BIG,
            "this session was forked in too many states while it had threads, or was recovered too often: each time "
            "costs a layer of Landlock for the rest of its life, and the kernel has 16; end its threads before it is "
            "forked, fork it without a cell in between (`fork(n=)`), or open a new session",
        ) from None


def _descriptors() -> Iterable[int]:
    """Descriptors that may be open, above those that a copy gets; without a /proc, all that there can be."""
    first = harden.CONTROL_FD + 1
    try:
        return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd >= first]
    except FileNotFoundError:
        return range(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _file_id(about: os.stat_result) -> FileId:
    return about.st_dev, about.st_ino


def _name(fd: int) -> str:
    """A folder's path; empty: there is no /proc."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def _not_copied(where: str, names: list[str]) -> list[str]:
    """Names to leave out: mount points (an interpreter below /tmp), what is no file, folder or link, the unreadable."""
    skipped = []
    for name in names:
        path = os.path.join(where, name)
        mode = os.lstat(path).st_mode
        needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
        plain = stat.S_ISLNK(mode) or ((stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and os.access(path, needed))
        if not plain or os.path.ismount(path):
            skipped.append(name)
    return skipped


def _copy_nameless(files: dict[int, os.stat_result], copied: dict[FileId, str]) -> list[str]:
    """Copy the open files that are deleted, and add them to `copied`. Returns the temporary names of the copies."""
    names = []
    for fd, about in files.items():
        file_id = _file_id(about)
        readable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
        if not stat.S_ISREG(about.st_mode) or about.st_nlink or file_id in copied or not readable:
            continue
        path = copied[file_id] = f"/tmp/.{os.urandom(8).hex()}"
        names.append(path)
        with open(path, "xb") as file:
            for at in range(0, about.st_size, _STEP):
                file.write(os.pread(fd, _STEP, at))
    return names


def _reopen(fd: int, path: str) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    position = os.lseek(fd, 0, os.SEEK_CUR)
    fresh = os.open(path, flags)
    os.lseek(fresh, position, os.SEEK_SET)
    os.dup2(fresh, fd, os.get_inheritable(fd))
    os.close(fresh)


def _renew_pipe(ends: list[int]) -> None:
    """Replace the ends of a pipe that this process has by those of a new one; if it has both, with the content."""
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


def _disconnect(fd: int) -> None:
    """Point a socket's descriptor at a socket whose other end is closed: it has nothing to read, and writing fails."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(os.get_blocking(fd))
        os.dup2(ours.fileno(), fd, os.get_inheritable(fd))


def _renew_counter(fd: int) -> None:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        about = dict(line.split(":", 1) for line in file if ":" in line)
    kept = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    kept |= os.EFD_SEMAPHORE if int(about.get("eventfd-semaphore", "0")) else 0
    fresh = os.eventfd(0, kept)
    count = int(about["eventfd-count"], 16)
    if count:
        os.eventfd_write(fresh, count)
    os.dup2(fresh, fd, os.get_inheritable(fd))
    os.close(fresh)


def _renew_mappings(copied: dict[FileId, str]) -> None:
    """Replace mappings of copied files, and of shared memory, by mappings of copies. Those of the runtime stay."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            mappings = [*_shared_mappings(file)]
    except FileNotFoundError:
        return  # see `Isolation.missing`
    for mapping in mappings:
        start, size, access = mapping.start, mapping.end - mapping.start, mapping.access
        path = copied.get(mapping.file_id)
        if path is not None:
            fd = os.open(path, os.O_RDWR if access & _WRITE else os.O_RDONLY)
            _check(_libc.mmap(start, size, access, _SHARED | _FIXED, fd, mapping.offset))
            os.close(fd)
        elif access & _READ and mapping.name.endswith(b"(deleted)"):
            fresh = _libc.mmap(None, size, _READ | _WRITE, _SHARED | _ANONYMOUS, -1, 0)
            _check(fresh)
            ctypes.memmove(fresh, start, size)
            _libc.mprotect(fresh, size, access)
            _check(_libc.mremap(fresh, size, size, _MOVE, start))


def _shared_mappings(maps: io.FileIO) -> Iterator[_Mapping]:
    """The shared ones of this process's mappings. Since Linux 6.11 the kernel can be asked for these alone; to write a
    line for each of hundreds takes it milliseconds. Source: proc_pid_maps(5), and PROCMAP_QUERY in <linux/fs.h>."""
    name, at = ctypes.create_string_buffer(_PATH_MAX), 0
    while True:
        query = bytearray(_QUERY.pack(_QUERY.size, _NEXT_SHARED, at, *[0] * 8, _PATH_MAX, 0, ctypes.addressof(name), 0))
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query)
        except OSError as error:
            if error.errno == errno.ENOTTY:
                yield from filter(None, map(_parse_mapping, maps.readall().splitlines()))
            elif error.errno != errno.ENOENT:  # there is no further one
                raise
            return
        _, _, _, start, at, access, _, offset, inode, major, minor, *_ = _QUERY.unpack(query)
        yield _Mapping(start, at, access & 7, offset, (os.makedev(major, minor), inode), name.value)


def _parse_mapping(line: bytes) -> _Mapping | None:
    row = _SHARED_MAPPING.match(line) if b"s " in line[:40] else None
    if row is None:
        return None
    start, end, offset, major, minor = (int(row[column], 16) for column in (1, 2, 4, 5, 6))
    access = sum(bit for letter, bit in zip(b"rwx", (_READ, _WRITE, _EXECUTE), strict=True) if letter in row[3])
    return _Mapping(start, end, access, offset, (os.makedev(major, minor), int(row[7])), row[8])


def _check(address: int | None) -> None:
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"memory cannot be copied: {os.strerror(code)}")
