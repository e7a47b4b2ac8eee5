"""Files of a sandbox for the server: a program that carries out one request after the other, beside cells and programs.

Requests come on standard input and answers go to standard output, each as JSON on a line, and a file's content of that
`length`. `op` is the name of a call of E2B's `filesystem.Filesystem`, with the fields of its message and answer; or a
further one.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import select
import shutil
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

HOME = os.environ.get("HOME", "/")
XATTR = "user.e2b."
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
MOST_EVENTS, MOST_WATCHES = 10_000, 64
CODES = {
    "already_exists": ("EEXIST",),
    "invalid_argument": ("ENOTDIR", "EISDIR", "EINVAL", "ENAMETOOLONG", "ENXIO"),
    "failed_precondition": ("ENOTEMPTY", "ELOOP"),
    "permission_denied": ("EACCES", "EPERM", "EROFS"),
    "resource_exhausted": ("ENOSPC", "EDQUOT", "EFBIG"),
}
Request = Mapping[str, Any]
Answer = dict[str, Any]


class _RefusedError(Exception):
    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code


def place(request: Request, field: str = "path") -> str:
    """Return the absolute name of a file that a client names; a relative one belongs to the home."""
    name = request.get(field)
    if not isinstance(name, str) or not name:
        raise _RefusedError(f"{field} should be a path, got {name!r}")
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
        "owner": owner(pwd.getpwuid, about.st_uid),
        "group": owner(grp.getgrgid, about.st_gid),
        "modifiedTime": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z",
    }
    metadata = metadata_of(path)
    return row | ({"symlinkTarget": target} if target else {}) | ({"metadata": metadata} if metadata else {})


def owner(find: Callable[[int], Any], number: int) -> str:
    """Return the name of a user or group; its number if it has none."""
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def metadata_of(path: str) -> dict[str, str]:
    try:
        names = [name for name in os.listxattr(path) if name.startswith(XATTR)]
        return {name.removeprefix(XATTR): os.getxattr(path, name).decode("utf-8", "replace") for name in names}
    except OSError:
        return {}


def folder(request: Request) -> str:
    path = place(request)
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


def do_stat(request: Request) -> Answer:
    return {"entry": entry(place(request))}


def do_listdir(request: Request) -> Answer:
    depth = request.get("depth") or 1
    if type(depth) is not int or depth < 1:
        raise _RefusedError(f"depth should be at least 1, got {depth!r}")
    return {"entries": listing(folder(request), depth)}


def do_makedir(request: Request) -> Answer:
    path, is_folder = place(request), os.path.isdir(place(request))
    if is_folder and not request.get("exist_ok"):
        raise _RefusedError(f"directory already exists: {path}", "already_exists")
    if os.path.lexists(path) and not is_folder:
        raise _RefusedError(f"path already exists but it is not a directory: {path}")
    os.makedirs(path, exist_ok=is_folder)
    return {"entry": entry(path)}


def do_move(request: Request) -> Answer:
    source, target = place(request, "source"), place(request, "destination")
    os.lstat(source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)
    return {"entry": entry(target)}


def do_remove(request: Request) -> Answer:
    path = place(request)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    return {}


def do_read(request: Request) -> Answer:
    with open(opened(place(request), os.O_RDONLY), "rb") as file:
        if request["at"]:
            file.seek(request["at"])
        return {"size": os.fstat(file.fileno()).st_size, "content": file.read(request["most"])}


def do_write(request: Request) -> Answer:
    """Write a part of a file; the last one sets its metadata, which replaces an older one's."""
    path, at, metadata = place(request), request["at"], request["metadata"]
    if not at:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(opened(path, os.O_WRONLY | (0 if at else os.O_CREAT | os.O_TRUNC)), "wb", buffering=0) as file:
        if at:
            file.seek(at)
        left = memoryview(request["content"])
        while left:
            left = left[file.write(left) :]
        if request["last"]:
            fd = file.fileno()
            for name in metadata_of(path):
                os.removexattr(fd, XATTR + name)
            for name, value in metadata.items():
                os.setxattr(fd, XATTR + name, value.encode())
            os.chown(fd, os.getuid(), os.getgid())  # by it, watchers of E2B's own envd see that a file is complete
    row = {"name": os.path.basename(path), "type": "file", "path": path}
    return row | ({"metadata": metadata} if metadata else {})


def do_chmod(request: Request) -> Answer:
    path = place(request)
    for kind, find, number in (("owner", pwd.getpwuid, os.getuid()), ("group", grp.getgrgid, os.getgid())):
        if request[kind] not in (None, "", owner(find, number), str(number)):
            message = f"{kind} {request[kind]!r} of {path}: files belong to {owner(find, number)!r} here"
            raise _RefusedError(message, "unimplemented")
    if request["mode"] is not None:
        os.chmod(path, request["mode"])
    return {}


def do_search(request: Request) -> Answer:
    """Find the files below a folder whose name, or path from the folder on, fits a pattern of the shell."""
    import fnmatch

    root, rows = folder(request), []
    for parent, folders, names in os.walk(root):
        folders.sort()
        for path in (os.path.join(parent, name) for name in sorted(names)):
            texts = (os.path.basename(path), os.path.relpath(path, root))
            if any(fnmatch.fnmatchcase(text, request["pattern"]) for text in texts):
                with contextlib.suppress(FileNotFoundError):
                    rows.append(entry(path))
    return {"entries": rows}


def do_replace(request: Request) -> Answer:
    """Replace a text everywhere in a file, which stays the same file."""
    old, new = request["old"].encode(), request["new"].encode()
    if not old:
        raise _RefusedError("the text to replace is empty")
    with open(opened(place(request), os.O_RDWR), "r+b") as file:
        content = file.read()
        count = content.count(old)
        if count:
            file.seek(0)
            file.write(content.replace(old, new))
            file.truncate()
    return {"count": count}


def opened(path: str, flags: int) -> int:
    """Return a descriptor of a file; a pipe would wait for its other end."""
    if os.path.isdir(path):
        raise _RefusedError(f"path '{path}' is a directory")
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


class Watch:
    """The changes below a folder since they were asked for, by inotify."""

    def __init__(self, root: str, *, recursive: bool, with_entries: bool) -> None:
        import ctypes

        self.libc, self.errno = ctypes.CDLL(None, use_errno=True), ctypes.get_errno
        self.root, self.recursive, self.with_entries = root, recursive, with_entries
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


def do_createwatcher(request: Request) -> Answer:
    if len(WATCHES) >= MOST_WATCHES:
        raise _RefusedError(f"a sandbox has at most {MOST_WATCHES} watches at once", "resource_exhausted")
    recursive, with_entries = (bool(request.get(name)) for name in ("recursive", "includeEntry"))
    watch = Watch(folder(request), recursive=recursive, with_entries=with_entries)
    name = os.urandom(8).hex()
    WATCHES[name] = watch
    return {"watcherId": name}


def watch_of(request: Request) -> Watch:
    name = str(request.get("watcherId"))
    if name not in WATCHES:
        raise _RefusedError(f"watcher with id {name[:100]} not found", "not_found")
    return WATCHES[name]


def do_getwatcherevents(request: Request) -> Answer:
    watch = watch_of(request)
    rows, watch.rows = watch.rows, []
    for row in rows if watch.with_entries else ():
        with contextlib.suppress(OSError):  # it is gone already
            row["entry"] = entry(os.path.join(watch.root, row["name"]))
    return {"events": rows}


def do_removewatcher(request: Request) -> Answer:
    os.close(watch_of(request).fd)
    del WATCHES[request["watcherId"]]
    return {}


def do_usage(_: Request) -> Answer:
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
    memory, ms = memory * os.sysconf("SC_PAGE_SIZE"), 1000 * ticks // os.sysconf("SC_CLK_TCK")
    return {"memory": memory, "ms": ms, "used": total - free, "total": total}


def carry_out(request: Request) -> Answer:
    try:
        answer: Answer = globals()[f"do_{request['op'].lower()}"](request)
        return answer
    except _RefusedError as error:
        return {"code": error.code, "message": str(error)}
    except FileNotFoundError as error:
        return {"code": "not_found", "message": f"path '{error.filename}' does not exist"[:1000]}
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        code = next((code for code, names in CODES.items() if name in names), "internal")
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return {"code": code, "message": text[:1000]}
    except (UnicodeError, KeyError, TypeError, ValueError, MemoryError) as error:
        return {"code": "invalid_argument", "message": f"{type(error).__name__}: {error}"[:1000]}


def requests() -> Iterator[Request]:
    """Yield requests while they come, and look at watched folders between them."""
    arrived = bytearray()
    while True:
        watches = {watch.fd: watch for watch in WATCHES.values()}
        ready, _, _ = select.select([0, *watches], [], [])
        for fd in watches.keys() & ready:
            watches[fd].look()
        if 0 in ready:
            part = os.read(0, 1 << 20)
            if not part:
                return
            arrived += part
            begin = arrived.find(b"\n") + 1
            request = json.loads(arrived[:begin]) if begin else {"length": 0}
            end = begin + request["length"]
            if len(arrived) >= end and begin:
                request["content"] = bytes(arrived[begin:end])
                del arrived[:end]
                yield request


def main() -> None:
    target = sys.stdout.buffer
    for request in requests():
        answer = carry_out(request)
        content = answer.pop("content", b"")
        target.write(json.dumps({**answer, "length": len(content)}).encode() + b"\n" + content)
        target.flush()


if __name__ == "__main__":
    main()
