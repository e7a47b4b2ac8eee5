"""Files of a sandbox for the server: a program that carries out one request after the other, beside cells and programs.

Requests come on standard input, answers go to standard output: two lengths of four bytes (big endian), JSON and bytes.
An answer that is longer than a part is asked for part by part (`more`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import stat
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

HOME = os.environ.get("HOME", "/")
XATTR = "user.e2b."
HEAD = struct.Struct(">II")
EVENT = struct.Struct("iIII")

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, OVERFLOW, IS_FOLDER, NONBLOCK = 0x400, 0x800, 0x4000, 0x40000000, 0o4000
MASK = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
KINDS = (
    (CREATE | MOVED_TO, "EVENT_TYPE_CREATE"),
    (MODIFY, "EVENT_TYPE_WRITE"),
    (DELETE | DELETE_SELF, "EVENT_TYPE_REMOVE"),
    (MOVED_FROM | MOVE_SELF, "EVENT_TYPE_RENAME"),
    (ATTRIB, "EVENT_TYPE_CHMOD"),
)
MOST_EVENTS = 10_000
CODES = {
    "not_found": ("ENOENT",),
    "already_exists": ("EEXIST",),
    "invalid_argument": ("ENOTDIR", "EISDIR", "EINVAL", "ENAMETOOLONG", "ENXIO"),
    "failed_precondition": ("ENOTEMPTY", "ELOOP"),
    "permission_denied": ("EACCES", "EPERM", "EROFS"),
    "resource_exhausted": ("ENOSPC", "EDQUOT", "EFBIG"),
}
Answer = tuple[dict[str, Any], bytes]


class _RefusedError(Exception):
    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code


def place(name: str) -> str:
    """Return the absolute name of a file that a client names; a relative one belongs to the home."""
    if name == "~" or name.startswith("~/"):
        name = HOME + name[1:]
    return os.path.normpath(os.path.join(HOME, name))


def entry(path: str) -> dict[str, Any]:
    about = os.lstat(path)
    kind, target = about.st_mode, None
    if stat.S_ISLNK(kind):
        try:
            kind, target = os.stat(path).st_mode, os.path.realpath(path)
        except OSError:
            target = os.readlink(path)
    name = "DIRECTORY" if stat.S_ISDIR(kind) else "SYMLINK" if stat.S_ISLNK(kind) else "FILE"
    seconds, rest = divmod(about.st_mtime_ns, 1_000_000_000)
    row = {
        "name": os.path.basename(path) or "/",
        "type": f"FILE_TYPE_{name}",
        "path": path,
        "size": str(about.st_size),
        "mode": stat.S_IMODE(about.st_mode) & 0o777,
        "permissions": stat.filemode(about.st_mode),
        "owner": owner("/etc/passwd", about.st_uid),
        "group": owner("/etc/group", about.st_gid),
        "modifiedTime": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z",
    }
    metadata = metadata_of(path)
    return row | ({"symlinkTarget": target} if target else {}) | ({"metadata": metadata} if metadata else {})


def owner(file: str, number: int, names: dict[str, dict[str, str]] = {}) -> str:  # noqa: B006  read once
    """Return the name of a user or group; its number if it has none."""
    if file not in names:
        with open(file, encoding="utf-8", errors="replace") as lines:
            names[file] = {row[2]: row[0] for row in (line.split(":") for line in lines) if len(row) > 2}
    return names[file].get(str(number), str(number))


def metadata_of(path: str) -> dict[str, str]:
    try:
        names = [name for name in os.listxattr(path) if name.startswith(XATTR)]
        return {name.removeprefix(XATTR): os.getxattr(path, name).decode("utf-8", "replace") for name in names}
    except OSError:
        return {}


def folder(name: str) -> str:
    path = place(name)
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise _RefusedError(f"path is not a directory: {path}")
    return path


def listing(path: str, depth: int) -> list[dict[str, Any]]:
    rows = []
    for name in sorted(os.listdir(path)):
        below = os.path.join(path, name)
        try:
            rows.append(entry(below))
        except FileNotFoundError:
            continue
        if depth > 1 and os.path.isdir(below) and not os.path.islink(below):
            rows += listing(below, depth - 1)
    return rows


def do_stat(request: Mapping[str, Any], _: bytes) -> Answer:
    return {"entry": entry(place(request["path"]))}, b""


def do_list(request: Mapping[str, Any], _: bytes) -> Answer:
    return {}, json.dumps(listing(folder(request["path"]), request["depth"])).encode()


def do_mkdir(request: Mapping[str, Any], _: bytes) -> Answer:
    path = place(request["path"])
    if os.path.isdir(path):
        raise _RefusedError(f"directory already exists: {path}", "already_exists")
    if os.path.lexists(path):
        raise _RefusedError(f"path already exists but it is not a directory: {path}")
    os.makedirs(path)
    return {"entry": entry(path)}, b""


def do_move(request: Mapping[str, Any], _: bytes) -> Answer:
    source, target = place(request["source"]), place(request["destination"])
    os.lstat(source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)
    return {"entry": entry(target)}, b""


def do_remove(request: Mapping[str, Any], _: bytes) -> Answer:
    path = place(request["path"])
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    return {}, b""


def do_read(request: Mapping[str, Any], _: bytes) -> Answer:
    path = place(request["path"])
    with open(opened(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if request["at"]:
            file.seek(request["at"])
        return {"size": size, "path": path}, file.read(request["most"])


def do_write(request: Mapping[str, Any], data: bytes) -> Answer:
    """Write a part of a file; the last one sets its metadata, which replaces an older one's."""
    path, at = place(request["path"]), request["at"]
    if not at:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(opened(path, os.O_WRONLY | (0 if at else os.O_CREAT | os.O_TRUNC)), "wb", buffering=0) as file:
        if at:
            file.seek(at)
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        if request["last"]:
            fd = file.fileno()
            for name in metadata_of(path):
                os.removexattr(fd, XATTR + name)
            for name, value in request["metadata"].items():
                os.setxattr(fd, XATTR + name, value.encode())
            os.chown(fd, os.getuid(), os.getgid())  # by it, watchers of E2B's own envd see that a file is complete
    return {"path": path, "name": os.path.basename(path)}, b""


def opened(path: str, flags: int) -> int:
    """Return a descriptor of a file; a pipe would wait for its other end."""
    if os.path.isdir(path):
        raise _RefusedError(f"path '{path}' is a directory")
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


class Watch:
    """The changes below a folder since they were asked for, by inotify."""

    def __init__(self, root: str, recursive: bool) -> None:
        import ctypes

        self.libc, self.errno = ctypes.CDLL(None, use_errno=True), ctypes.get_errno
        self.root, self.recursive = root, recursive
        self.places: dict[int, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.fd: int = self.libc.inotify_init1(NONBLOCK)
        if self.fd < 0 or not self.add(""):
            raise OSError(self.errno(), "the folder cannot be watched", root)

    def add(self, below: str) -> bool:
        path = os.path.join(self.root, below) if below else self.root
        number = self.libc.inotify_add_watch(self.fd, os.fsencode(path), MASK)
        if number < 0:
            return False
        self.places[number] = below
        if self.recursive:
            for item in os.scandir(path):
                if item.is_dir(follow_symlinks=False):
                    self.add(os.path.join(below, item.name))
        return True

    def look(self) -> None:
        """Take what the kernel has to say; new folders are watched from then on."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 65536):
                at = 0
                while at < len(data):
                    number, mask, _, size = EVENT.unpack_from(data, at)
                    name = os.fsdecode(data[at + EVENT.size : at + EVENT.size + size].rstrip(b"\0"))
                    at += EVENT.size + size
                    if mask & OVERFLOW or len(self.rows) >= MOST_EVENTS:
                        self.rows = [{"name": "", "type": "EVENT_TYPE_UNSPECIFIED"}]  # some were lost
                    elif number in self.places and (name or not self.places[number]):
                        self.rows += self.shown(os.path.join(self.places[number], name), mask)

    def shown(self, name: str, mask: int) -> list[dict[str, Any]]:
        if self.recursive and mask & IS_FOLDER and mask & (CREATE | MOVED_TO):
            self.add(name)
        return [{"name": name, "type": kind} for bits, kind in KINDS if mask & bits]


WATCHES: dict[str, Watch] = {}


def do_watch(request: Mapping[str, Any], _: bytes) -> Answer:
    WATCHES[request["id"]] = Watch(folder(request["path"]), bool(request["recursive"]))
    return {}, b""


def do_events(request: Mapping[str, Any], _: bytes) -> Answer:
    watch = WATCHES[request["id"]]
    rows, watch.rows = watch.rows, []
    for row in rows if request["entries"] else ():
        try:
            row["entry"] = entry(os.path.join(watch.root, row["name"]))
        except OSError:
            continue  # it is gone already
    return {}, json.dumps(rows).encode()


def do_unwatch(request: Mapping[str, Any], _: bytes) -> Answer:
    os.close(WATCHES.pop(request["id"]).fd)
    return {}, b""


def do_usage(_: Mapping[str, Any], __: bytes) -> Answer:
    """Measure memory and processor seconds of all processes, and the disk of the home."""
    memory, ticks = 0, 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/statm") as file:
                sizes = file.read().split()
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        memory += int(sizes[1]) - int(sizes[2])
        ticks += int(fields[11]) + int(fields[12])
    disk = os.statvfs(HOME)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
    ms = 1000 * ticks // os.sysconf("SC_CLK_TCK")
    return {
        "memory": memory * os.sysconf("SC_PAGE_SIZE"),
        "ms": ms,
        "used": total - free,
        "total": total,
    }, b""


def carry_out(request: Mapping[str, Any], data: bytes) -> Answer:
    try:
        answer: Answer = globals()[f"do_{request['op']}"](request, data)
        return answer
    except _RefusedError as error:
        return {"code": error.code, "message": str(error)}, b""
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        code = next((code for code, names in CODES.items() if name in names), "internal")
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return {"code": code, "message": text[:1000]}, b""
    except (UnicodeError, KeyError, TypeError, ValueError, MemoryError) as error:
        return {"code": "invalid_argument", "message": f"{type(error).__name__}: {error}"[:1000]}, b""


def arrived(size: int) -> bytes:
    """Return so many bytes of the input, or none at its end, and look at watched folders while they do not come."""
    data = b""
    while len(data) < size:
        places = {watch.fd: watch for watch in WATCHES.values()}
        ready, _, _ = select.select([0, *places], [], [])
        for fd in ready:
            if fd in places:
                places[fd].look()
        if 0 in ready:
            part = os.read(0, size - len(data))
            if not part:
                return b""
            data += part
    return data


def main() -> None:
    target, part, rest = sys.stdout.buffer, int(sys.argv[1]), b""
    while head := arrived(HEAD.size):
        length, size = HEAD.unpack(head)
        request, data = json.loads(arrived(length)), arrived(size)
        meta, data = ({}, rest) if request["op"] == "more" else carry_out(request, data)
        data, rest = data[:part], data[part:]
        shown = json.dumps({**meta, "rest": len(rest)}).encode()
        target.write(HEAD.pack(len(shown), len(data)) + shown + data)
        target.flush()


if __name__ == "__main__":
    main()
