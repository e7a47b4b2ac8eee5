"""File operations of a session, carried out in its own process: names and links mean what they mean to its programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_LISTING = 8 * 1024 * 1024
"""Bytes of a listing: the host parses it while other sessions wait."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class FileOperations:
    """Carries out messages that name files; relative names belong to the folder `home`."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._operations: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "files": self._act,
            "read": self._read,
            "write": self._write,
            "pack": self._pack,
            "unpack": self._unpack,
        }
        self._actions: Mapping[str, Callable[..., Any]] = {
            "list": self._list,
            "stat": lambda path: [_row(path, path)],
            "walk": self._walk,
            "mkdir": self._mkdir,
            "move": self._move,
            "remove": self._remove,
        }

    def carry_out(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._operations[request["op"]](request)
        except OSError as error:
            return {"failed": f"{error.strerror or error}"[:1000], "errno": error.errno or errno.EIO}
        except UnicodeError as error:  # a file's name that is no text
            return {"failed": f"a name is not valid UTF-8: {error}"[:1000], "errno": errno.EILSEQ}

    def _path(self, name: str) -> str:
        return os.path.join(self._home, name)

    def _act(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = self._actions[request["what"]](self._path(request["name"]), **request["rest"])
        listing = json.dumps(rows or [], separators=(",", ":")).encode()
        if len(listing) > MAX_LISTING:
            raise OSError(errno.EFBIG, "too many files to list at once", request["name"])
        return {"data": listing}

    def _list(self, path: str) -> list[Any]:
        return [_row(os.path.join(path, name), name) for name in sorted(os.listdir(path))]

    def _walk(self, path: str) -> list[Any]:
        if not os.path.isdir(path):
            os.listdir(path)  # raises
        return [_row(os.path.join(path, name), name) for name in _below(path)]

    def _mkdir(self, path: str, *, parents: bool, exist_ok: bool) -> None:
        if parents:
            os.makedirs(path, exist_ok=exist_ok)
        elif not (exist_ok and os.path.isdir(path)):
            os.mkdir(path)

    def _move(self, path: str, *, to: str) -> None:
        target = self._path(to)
        if os.path.isdir(target) and not os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), to)
        try:
            os.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.move(path, target)  # to another file system: it copies

    def _remove(self, path: str, *, recursive: bool) -> None:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif recursive:
            shutil.rmtree(path)
        else:
            os.rmdir(path)

    def _read(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with open(_open_regular(self._path(request["name"]), os.O_RDONLY), "rb") as file:
            file.seek(request["at"])
            return {"data": file.read(request["most"])}

    def _write(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        path = self._path(request["name"])
        if not request["at"]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | (0 if request["at"] else os.O_CREAT | os.O_TRUNC)
        with open(_open_regular(path, flags), "wb") as file:
            file.seek(request["at"])
            file.write(request["data"])
        return {}

    def _pack(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The contents of files, one after another. One that is gone, or no file any more, has the size -1."""
        sizes, parts, left = [], [], request["most"]
        for name in request["names"]:
            try:
                with open(_open_regular(os.path.join(self._path(request["name"]), name), os.O_RDONLY), "rb") as file:
                    data = file.read(left + 1)
            except OSError:
                data = None
            if data is None or len(data) > left:
                sizes.append(-1)
                continue
            left -= len(data)
            sizes.append(len(data))
            parts.append(data)
        return {"sizes": sizes, "data": b"".join(parts)}

    def _unpack(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        root, at = self._path(request["name"]), 0
        data = memoryview(request["data"])
        for name, kind, mode, rest in request["rows"]:
            path = os.path.join(root, name)
            if kind == "folder":
                os.makedirs(path, exist_ok=True)
                os.chmod(path, mode | stat.S_IRWXU)
            elif kind == "link":
                if os.path.islink(path):
                    os.unlink(path)
                os.symlink(rest, path)
            elif kind == "mode":
                os.chmod(path, mode)
            else:
                with open(_open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                    file.write(data[at : at + rest])
                    os.fchmod(file.fileno(), mode)
                at += rest
        return {}


def _row(path: str, name: str) -> list[Any]:
    about = os.lstat(path)
    kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
    target = os.readlink(path) if kind == "link" else None
    return [name, kind, about.st_size, stat.S_IMODE(about.st_mode), about.st_mtime, target]


def _below(root: str) -> Iterator[str]:
    """Yield the names below a folder, a folder before its content. Not recursive: programs choose the depth."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                entries_by_name = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            continue  # a folder that may not be read, as with `os.walk`
        yield from (os.path.join(folder, name) for name, _ in entries_by_name)
        waiting += [os.path.join(folder, name) for name, is_folder in reversed(entries_by_name) if is_folder]


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file; a pipe would wait for its other end."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that is not read from
            raise OSError(errno.EINVAL, "not a regular file", path) from None
        raise
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind == stat.S_IFREG:
        return fd
    os.close(fd)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)
