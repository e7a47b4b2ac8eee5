"""`Images`: the unpacked images of this user, one copy each, shared by all its processes.

Each lies in a folder by its id, with a lock beside it: shared while a sandbox uses the image, exclusive while it is
made or removed. It appears by a rename once it is whole. If all together exceed `TOOLGYM_IMAGES_GB`, those that were
not used for longest go. While no sandbox runs, the folder may simply be deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from toolgym.tools.errors import ConfigError, SandboxUnavailableError
from toolgym.tools.sandbox.local.images.archive import ImageArchive, ImageInfo
from toolgym.tools.sandbox.local.images.unpack import Unpacker
from toolgym.tools.sandbox.local.kernel import folders, jail
from toolgym.tools.sandbox.local.kernel.users import SANDBOX_UID

FOLDER_VARIABLE, SIZE_VARIABLE = "TOOLGYM_IMAGES", "TOOLGYM_IMAGES_GB"

UNPACK_TIMEOUT = 3600.0
"""Seconds that a sandbox waits for another process that unpacks the same image."""


class Images:
    """The images that one sandbox uses, which stay until `close`. Its calls block, and may come from any thread."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int, int], ImageInfo] = {}
        self._locks: dict[str, int] = {}
        self._mutex = threading.Lock()

    def open(self, reference: str) -> ImageInfo:
        """Unpack the image `FILE` or `FILE#NAME`, unless it is there. Raises ImageError, and SandboxUnavailableError if
        there is no room."""
        place, _, name = reference.partition("#")
        path = Path(place).expanduser().resolve()
        with contextlib.suppress(OSError):
            about = (path / "index.json" if path.is_dir() else path).stat()
            key = reference, about.st_mtime_ns, about.st_ino
            if key in self._open:
                return self._open[key]
        with self._mutex, ImageArchive(path) as archive:
            info = archive.info(name)
            self._open[key] = replace(info, root=str(self._unpacked(archive, info)))
            return self._open[key]

    def close(self) -> None:
        for lock in self._locks.values():
            os.close(lock)
        self._locks, self._open = {}, {}

    def _unpacked(self, archive: ImageArchive, info: ImageInfo) -> Path:
        owner = SANDBOX_UID if jail.becomes_another() else -1
        cache = _folder()
        name = f"{info.id}-{os.geteuid() if owner < 0 else owner}"
        home = cache / name
        if name not in self._locks:
            lock = os.open(cache / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while True:
                    _wait(lock, fcntl.LOCK_SH, home)
                    if (home / "image.json").exists():
                        break
                    _wait(lock, fcntl.LOCK_EX, home)
                    if not (home / "image.json").exists():
                        _make(archive, info, home, owner)
            except BaseException:
                os.close(lock)
                raise
            self._locks[name] = lock
            os.utime(home / "image.json")
            _make_room(cache)
        return home / "root"


def _folder() -> Path:
    base = os.environ.get(FOLDER_VARIABLE)
    cache = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolgym/images"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailableError(f"no folder for images: {error}; name one in {FOLDER_VARIABLE}") from error
    if cache.stat().st_uid != os.geteuid() or cache.stat().st_mode & 0o022:
        raise SandboxUnavailableError(f"{cache} must be this user's, and writable for no other: chmod 700 it")
    return cache.resolve()


def most_bytes() -> int:
    text = os.environ.get(SIZE_VARIABLE, "100")
    try:
        return int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        raise ConfigError(f"{SIZE_VARIABLE} must be a number of GiB, got {text!r}") from None


def _make(archive: ImageArchive, info: ImageInfo, home: Path, owner: int) -> None:
    """Unpack all layers beside the place, and move the whole there; the caller has the exclusive lock."""
    part = home.with_name(f"{home.name}.part")
    for leftover in (part, home):  # of a process that was killed
        folders.remove(str(leftover))
    try:
        (part / "root").mkdir(parents=True)
        if owner >= 0:
            os.chown(part / "root", owner, owner)
        with contextlib.closing(Unpacker(str(part / "root"), owner, most_bytes())) as unpacker, archive.failing():
            for blob, digest in info.layers:
                with archive.layer(blob) as layer:
                    unpacker.add(layer, digest)
            unpacker.complete()
        (part / "image.json").write_text(json.dumps({**asdict(info), "bytes": unpacker.size}))
        os.rename(part, home)
    except BaseException as error:
        folders.remove(str(part))
        if isinstance(error, OSError):
            raise SandboxUnavailableError(
                f"no image can be unpacked in {home.parent}: {error}; make room, or name a folder in {FOLDER_VARIABLE}"
            ) from error
        raise


def _make_room(cache: Path) -> None:
    """Remove the images that were not used for longest and are not in use, until the rest is small enough."""
    rows = []
    for about in cache.glob("*/image.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            rows.append((about.stat().st_mtime, int(json.loads(about.read_text())["bytes"]), about.parent))
    total, most = sum(size for _, size, _ in rows), most_bytes()
    for _, size, home in sorted(rows):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            lock = os.open(f"{home}.lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (home / "image.json").unlink()
                folders.remove(str(home))
                total -= size
            finally:
                os.close(lock)


def _wait(lock: int, kind: int, home: Path) -> None:
    deadline = time.monotonic() + UNPACK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SandboxUnavailableError(f"another process has been unpacking {home.name} for too long") from None
            time.sleep(0.05)
