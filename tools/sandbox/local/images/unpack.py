"""Unpacking of layers into a folder. Their entries are untrusted: the kernel resolves every name inside of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import struct
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, NoReturn, Self

from toolgym.tools.errors import shorten
from toolgym.tools.sandbox.local.kernel import jail, syscalls

_RESOLVE_IN_ROOT = 0x10
_WHITEOUT, _OPAQUE, _OWN = ".wh.", ".wh..wh..opq", ".wh..wh."
_CHUNK = 1 << 20

MOST_ENTRIES, MOST_LEVELS, MOST_NAMES = 2_000_000, 256, 1 << 30
"""Entries of an image, folders above one of them, and bytes of all names, to each of which its inode adds 256."""

_MOST_HEADER = 1 << 20
_LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def bounded_entries(most: int) -> type[tarfile.TarInfo]:
    """Return a class for the entries of tar archives, so that a hostile one takes little memory: more than `most`
    entries, long headers, and sparse files, which no builder of images writes, are a ValueError."""
    count = itertools.count(1)

    class Entry(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            entry = super().frombuf(buf, encoding, errors)
            if next(count) > most:
                raise ValueError(f"it has more than {most} entries")
            if entry.type in _LONG and entry.size > _MOST_HEADER:
                raise ValueError(f"an entry has a header of {entry.size} bytes, more than {_MOST_HEADER}")
            return entry

        def _proc_sparse(self, *_: object) -> NoReturn:
            raise ValueError("it has a sparse file: write it again without `tar --sparse`")

        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _proc_sparse

    return Entry


class Unpacker:
    """Puts layers on top of each other in a folder, which only this process changes.

    Files belong to `owner` (-1: this user), and lose setuid, setgid and attributes; devices and pipes are left out. A
    layer that leads outside, has another digest, or together with the others more than `most` bytes or too many names,
    is a ValueError; one that would fill the disk, an OSError.
    """

    def __init__(self, folder: str, owner: int, most: int) -> None:
        self._root = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        disk = os.fstatvfs(self._root)
        self._owner, self._most, self._room = owner, most, disk.f_bavail * disk.f_frsize * 9 // 10
        self._entries, self._names = bounded_entries(MOST_ENTRIES), 0
        self.size = 0
        self._made: set[str] = set()  # by the layer that is unpacked now

    def close(self) -> None:
        os.close(self._root)

    def add(self, stream: IO[bytes], digest: str) -> None:
        self._made = set()
        hashing = _Hashing(stream, self._take)
        with tarfile.open(fileobj=hashing, mode="r|", tarinfo=self._entries) as layer:  # type: ignore[call-overload]
            for entry in layer:
                self._put(layer, entry)
                layer.members.clear()  # it keeps all
        while hashing.read(_CHUNK):
            pass
        if hashing.hash.hexdigest() != digest:
            raise ValueError(f"a layer has other content than its digest sha256:{digest} says")

    def _put(self, layer: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        parts = [part for part in entry.name.split("/") if part not in ("", ".")]
        if ".." in parts or len(parts) > MOST_LEVELS:
            raise ValueError(f"the entry {shorten(entry.name, 200)!r} leads outside, or too deep")
        if not parts:
            return
        *above, name = parts
        if name.startswith(_WHITEOUT):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._folder(above, make=False) as folder:
                self._erase(folder, "/".join(above), name)
            return
        with self._folder(above) as folder:
            if entry.isdir():
                self._make_folder(folder, name, entry.mode)
            elif entry.isreg():
                self._remove(folder, name)
                self._write(folder, name, layer.extractfile(entry), entry)
            elif entry.issym():
                self._remove(folder, name)
                os.symlink(entry.linkname, name, dir_fd=folder)
            elif entry.islnk():
                self._link(folder, name, entry)
            else:
                return
            os.chown(name, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)
        new = {"/".join(parts[: at + 1]) for at in range(len(parts))} - self._made
        self._made |= new
        self._names += sum(256 + len(path) for path in new)
        if self._names > MOST_NAMES:
            raise ValueError("it has too many files, or too long names")

    def _take(self, size: int) -> None:
        self.size += size
        if self.size > self._most:
            raise ValueError(f"it unpacks to more than the {self._most >> 20} MiB that all images may take")
        if self.size > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _erase(self, folder: int, above: str, name: str) -> None:
        """Remove what a whiteout names, in the layers below alone."""
        prefix = f"{above}/" if above else ""
        if name == _OPAQUE:
            self._empty(folder, prefix)
        elif not name.startswith(_OWN) and prefix + name[len(_WHITEOUT) :] not in self._made:
            gone = name[len(_WHITEOUT) :]
            if gone in ("", ".", ".."):
                raise ValueError(f"the whiteout {prefix}{name} names no file")
            self._remove(folder, gone)

    def _empty(self, folder: int, prefix: str) -> None:
        with syscalls.opened(".", os.O_RDONLY | os.O_DIRECTORY, folder) as listed:
            for name in os.listdir(listed):
                if prefix + name not in self._made:
                    self._remove(folder, name)
                elif stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    with syscalls.opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as inner:
                        self._empty(inner, f"{prefix}{name}/")

    def _make_folder(self, folder: int, name: str, mode: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                self._remove(folder, name)
                os.mkdir(name, 0o700, dir_fd=folder)
        with syscalls.opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as handle:
            os.fchmod(handle, mode & 0o1777 | 0o700)
            os.fchown(handle, self._owner, self._owner)

    def _write(self, folder: int, name: str, source: IO[bytes] | None, entry: tarfile.TarInfo) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as target:
            if source is not None:
                shutil.copyfileobj(source, target, _CHUNK)
            os.fchmod(target.fileno(), entry.mode & 0o777 | 0o400)
            target.flush()
            with contextlib.suppress(OverflowError, OSError):  # a time that no file can have
                os.utime(target.fileno(), (entry.mtime, entry.mtime))

    def _link(self, folder: int, name: str, entry: tarfile.TarInfo) -> None:
        *above, origin = [part for part in entry.linkname.split("/") if part not in ("", ".")] or [""]
        if ".." in (*above, origin):
            raise ValueError(f"the link {entry.name!r} leads outside, to {entry.linkname!r}")
        with self._folder(above, make=False) as other:
            if stat.S_ISDIR(os.stat(origin, dir_fd=other, follow_symlinks=False).st_mode):
                raise ValueError(f"the link {entry.name!r} leads to {entry.linkname!r}, which is a folder")
            self._remove(folder, name)
            os.link(origin, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _folder(self, parts: list[str], *, make: bool = True) -> Iterator[int]:
        """A descriptor of a folder; links in its name are followed, and end inside of the root."""
        fd = self._open(parts, make)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, parts: list[str], make: bool) -> int:
        how = struct.pack("QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        path = os.fsencode("/".join(parts) or ".")
        try:
            number = syscalls.number("openat2")
            return int(syscalls.check(syscalls.syscall(number, self._root, path, how, len(how)), os.fsdecode(path)))
        except FileNotFoundError:
            if not make or not parts:
                raise
        with self._folder(parts[:-1]) as above:
            self._make_folder(above, parts[-1], 0o755)
        return self._open(parts, make=False)

    @staticmethod
    def _remove(folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=folder)

    def complete(self) -> None:
        """Make the folders that a session mounts something on, whatever the layers have there."""
        for name in ("tmp", "dev", "proc", jail.HOST_PYTHON[1:]):
            self._make_folder(self._root, name, 0o755)


class _Hashing:
    def __init__(self, stream: IO[bytes], take: Callable[[int], None]) -> None:
        self._stream, self._take, self.hash = stream, take, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._take(len(data))
        self.hash.update(data)
        return data
