"""The files of a session: the calls, what they return, and how folders are copied in and out."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple, TypeVar

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import (
    ConfigError,
    SandboxError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxIsADirectoryError,
    SandboxNotADirectoryError,
    SandboxPermissionError,
)
from toolgym.tools.sandbox.names import check_path

_T = TypeVar("_T")

BATCH = 4 * 1024 * 1024
"""Bytes of small files that are copied at once; a larger file is copied separately."""

BATCH_FILES = 2000
"""Files and folders that are copied at once."""

MAX_DOWNLOAD = 1 << 30

_HOLE = bytes(4096)
"""A block of zeros, of the size that the kernel keeps files in."""

FileAction = Literal["list", "stat", "walk", "mkdir", "move", "remove"]

ERRORS: Mapping[str, tuple[type[SandboxFileError], tuple[int, ...]]] = {
    "no_file": (SandboxFileNotFoundError, (errno.ENOENT,)),
    "exists": (SandboxFileExistsError, (errno.EEXIST,)),
    "is_folder": (SandboxIsADirectoryError, (errno.EISDIR,)),
    "no_folder": (SandboxNotADirectoryError, (errno.ENOTDIR,)),
    "no_permission": (SandboxPermissionError, (errno.EACCES, errno.EPERM, errno.EROFS)),
    "file": (SandboxFileError, ()),
}
"""By the reason that a server gives: the error, and the kernel's numbers for it."""


def file_error(text: str, *, code: int | None = None, reason: str | None = None) -> SandboxFileError:
    """Make the error for a file from the kernel's number or from a server's reason."""
    for name, (kind, codes) in ERRORS.items():
        if code in codes or reason == name:
            error = kind(text)
            if isinstance(error, OSError):
                error.errno = code or codes[0]
            return error
    return SandboxFileError(text)


def reason_of(error: SandboxFileError) -> str:
    return next(name for name, (kind, _) in ERRORS.items() if isinstance(error, kind))


@dataclass(frozen=True)
class FileInfo:
    """One file, folder or link, by its name in the folder that was listed; for `stat`, as it was asked for.

    The size is in bytes; `changed` is the time of the last change of its content, in seconds since 1970.
    """

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int
    mode: int
    changed: float
    target: str | None = None


class FileRow(NamedTuple):
    """One file, folder or link to make below the folder that is copied, or a mode to set (`mode`).

    `rest` is the bytes of a file, or the place that a link points to.
    """

    name: str
    kind: Literal["file", "folder", "link", "mode"]
    mode: int
    rest: int | str


class SessionFiles(ABC):
    """The part of a session that is about its files.

    A name is relative to the session's folder, or absolute: then it is any place in the world that its programs see. A
    link means what it means to them, too. Every call raises `ConfigError` for an impossible name, `SessionLostError` if
    the session is gone, and `SandboxFileError` for a failure; its subclasses are FileNotFoundError, FileExistsError,
    IsADirectoryError, NotADirectoryError and PermissionError too.
    """

    @abstractmethod
    async def write_file(self, name: str, data: bytes) -> None:
        """Write a file. Folders that it lies in are made."""

    @abstractmethod
    async def read_file(self, name: str) -> bytes:
        """Read a regular file. Raises SandboxError if it is larger than a file may be (`Limits.file_mb`)."""

    @abstractmethod
    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        """Do something with a file whose name was checked. `walk` lists all below a folder."""

    @abstractmethod
    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        """Read files below a folder, at most `BATCH` bytes together; None for one that cannot be read."""

    @abstractmethod
    async def _unpack(self, name: str, rows: Sequence[FileRow], data: bytes) -> None:
        """Make what the rows say below a folder; `data` holds the contents of the files, one after another."""

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return what is in a folder, sorted by name."""
        return await self._act("list", check_path(path), {})

    async def stat(self, path: str) -> FileInfo:
        """Return what is known about a file, folder or link; a link is not followed."""
        (info,) = await self._act("stat", check_path(path), {})
        return info

    async def walk(self, path: str = ".") -> Sequence[FileInfo]:
        """Return all below a folder, a folder before its content. The names are relative to it; links stay links.

        Raises SandboxError if a name leads outside: programs of the session may have made it up.
        """
        infos = await self._act("walk", check_path(path), {})
        for info in infos:
            _check_below(info.name)
        return infos

    async def read_files(self, path: str, files: Sequence[FileInfo]) -> Mapping[str, bytes]:
        """Read files below a folder that `walk` listed, many at once. One that cannot be read is left out."""
        read: dict[str, bytes] = {}
        for batch in _groups(files, lambda info: info.size):
            contents = await self._read_group(path, batch)
            read |= {info.name: data for info, data in zip(batch, contents, strict=True) if data is not None}
        return read

    async def _read_group(self, path: str, group: Sequence[FileInfo]) -> Sequence[bytes | None]:
        if len(group) == 1 and group[0].size > BATCH:
            return [await self.read_file(f"{path.rstrip('/')}/{group[0].name}")]
        return await self._pack(check_path(path), [info.name for info in group])

    async def write_rows(self, path: str, rows: Sequence[FileRow], contents: Sequence[bytes]) -> None:
        """Make the rows below a folder, which is made too, many at once; folders come before their content.

        `contents` are those of the rows that are files, in their order.
        """
        left = iter(contents)
        await self.mkdir(path, parents=True, exist_ok=True)
        for group in _groups(((row, next(left) if row.kind == "file" else b"") for row in rows), _size_of_data):
            await self._write_group(path, group)

    async def _write_group(self, path: str, group: Sequence[tuple[FileRow, bytes]]) -> None:
        row, data = group[0]
        if len(data) > BATCH:
            await self.write_file(f"{path.rstrip('/')}/{row.name}", data)
            group = [(row._replace(kind="mode"), b"")]
        await self._unpack(path, [row for row, _ in group], b"".join(data for _, data in group))

    async def exists(self, path: str) -> bool:
        """Return whether there is a file, folder or link of that name."""
        try:
            await self.stat(path)
        except (SandboxFileNotFoundError, SandboxNotADirectoryError):
            return False
        return True

    async def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a folder; with `parents`, also those that it lies in; with `exist_ok`, unless it is there already."""
        await self._act("mkdir", check_path(path), {"parents": parents, "exist_ok": exist_ok})

    async def move(self, path: str, to: str) -> None:
        """Give a file or folder another name. A file of that name is replaced."""
        await self._act("move", check_path(path), {"to": check_path(to, field=("to",))})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link, or an empty folder; with `recursive`, a folder with all in it."""
        await self._act("remove", check_path(path), {"recursive": recursive})

    async def upload_folder(self, local: str | Path, path: str = ".") -> None:
        """Copy a folder of this machine into the session, with links and permission bits.

        Files that are there already are replaced. What is no file, folder or link is left out. Raises ConfigError if
        there is no folder `local`, and OSError for things that cannot be read here.
        """
        root = Path(local)
        if not root.is_dir():
            raise ConfigError(f"local must be a folder of this machine, got {str(local)!r}")
        await self.mkdir(path, parents=True, exist_ok=True)
        groups = _groups(_rows_below(root), _size_of_data)
        while group := await in_thread(next, groups, None):
            await self._write_group(path, group)

    async def download_folder(self, path: str, local: str | Path, *, max_bytes: int = MAX_DOWNLOAD) -> None:
        """Copy a folder of the session to this machine, with links and permission bits (at most 0o777).

        Programs of the session may have made up its content. Nothing is written outside of `local`: a link that leads
        outside is left out, as is what is no file, folder or link, and a file that cannot be read. Files of `local`
        that are there already are replaced. Raises SandboxError if the files have more than `max_bytes` together or a
        name leads outside, and OSError for things that cannot be written here.
        """
        root = Path(local)
        infos = await self.walk(path)
        await in_thread(_make_folders, root, [info for info in infos if info.kind == "folder"])
        left = max_bytes
        for batch in _groups([info for info in infos if info.kind == "file"], lambda info: info.size):
            contents = await self._read_group(path, batch)
            left -= sum(len(content) for content in contents if content is not None)
            if left < 0:
                raise SandboxError(f"the folder {path!r} in the session has more than {max_bytes} bytes")
            await in_thread(_write_files, root, batch, contents)
        links = [info for info in infos if info.kind == "link" and info.target is not None and stays_inside(info)]
        await in_thread(_make_links, root, links)


def read_listing(data: Any) -> Sequence[FileInfo]:
    """Return the listing of a session from its JSON, untrusted so far. Raises SandboxError if it is none."""
    infos = []
    try:
        for name, kind, size, mode, changed, target in json.loads(data):
            fine = isinstance(name, str) and kind in ("file", "folder", "link", "other")
            if not fine or not (target is None or isinstance(target, str)):
                raise ValueError(name)
            infos.append(FileInfo(name, kind, int(size), int(mode) & 0o7777, float(changed), target))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SandboxError(f"what the session says about its files makes no sense: {error}"[:200]) from None
    return infos


def split(sizes: object, data: object, count: int) -> Sequence[bytes | None]:
    """Return contents that come one after another, from their sizes; -1 stands for None.

    Raises SandboxError for wrong sizes: programs of the session may have written them.
    """
    if not isinstance(sizes, list) or not isinstance(data, bytes) or len(sizes) != count:
        raise SandboxError("what the session says about its files makes no sense")
    contents: list[bytes | None] = []
    at = 0
    for size in sizes:
        if type(size) is not int or size > len(data) - at:
            raise SandboxError("what the session says about its files makes no sense")
        contents.append(None if size < 0 else data[at : at + size])
        at += max(0, size)
    return contents


def stays_inside(link: FileInfo) -> bool:
    """Return whether a link of a folder that is copied leads to a place in that folder.

    Steps up are only allowed at its beginning, because there they lead up from real folders.
    """
    target = PurePosixPath(link.target or "/")
    parts = [part for part in target.parts if part != "."]
    ups = len([*itertools.takewhile(lambda part: part == "..", parts)])
    depth = len(PurePosixPath(link.name).parts) - 1
    return not target.is_absolute() and ups <= depth and ".." not in parts[ups:] and "\0" not in str(target)


def _check_below(name: str) -> None:
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise SandboxError(f"the session lists a name that leads outside of its folder: {name[:200]!r}")


def _rows_below(root: Path) -> Iterator[tuple[FileRow, bytes]]:
    for place, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = os.path.join(place, name)
            about = os.lstat(path)
            relative, mode = os.path.relpath(path, root), stat.S_IMODE(about.st_mode)
            if stat.S_ISDIR(about.st_mode):
                yield FileRow(relative, "folder", mode, 0), b""
            elif stat.S_ISLNK(about.st_mode):
                yield FileRow(relative, "link", mode, os.readlink(path)), b""
            elif stat.S_ISREG(about.st_mode):
                data = Path(path).read_bytes()
                yield FileRow(relative, "file", mode, len(data)), data


def _size_of_data(item: tuple[FileRow, bytes]) -> int:
    return len(item[1])


def _groups(items: Iterable[_T], size_of: Callable[[_T], int]) -> Iterator[Sequence[_T]]:
    """Yield groups of at most `BATCH` bytes and `BATCH_FILES` items; a larger item comes in a group without others."""
    group: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (total + size > BATCH or len(group) >= BATCH_FILES):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _make_folders(root: Path, folders: Sequence[FileInfo]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        (root / folder.name).mkdir(mode=folder.mode & 0o777 | stat.S_IRWXU, parents=True, exist_ok=True)


def _write_files(root: Path, files: Sequence[FileInfo], contents: Sequence[bytes | None]) -> None:
    for info, content in zip(files, contents, strict=True):
        if content is None:
            continue
        path = root / info.name
        path.unlink(missing_ok=True)  # it may be a link
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            _write(file, content)
            os.fchmod(fd, info.mode & 0o777)


def _write(file: IO[bytes], content: bytes) -> None:
    """Write a file, with holes for blocks of zeros: holes that it has in the session would fill this machine's disk."""
    end = 0
    while end < len(content):
        start = end
        while end < len(content) and not content.startswith(_HOLE, end):
            end += len(_HOLE)
        if end > start:
            file.seek(start)
            file.write(memoryview(content)[start:end])
        while content.startswith(_HOLE, end):
            end += len(_HOLE)
    file.truncate(len(content))


def _make_links(root: Path, links: Sequence[FileInfo]) -> None:
    for link in links:
        path = root / link.name
        path.unlink(missing_ok=True)
        os.symlink(link.target or "", path)
