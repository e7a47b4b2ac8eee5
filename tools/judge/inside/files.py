"""The files of a program: its folder, and those of its standard streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.judge.inside.limits import LimitError


class Folder:
    """The files that the program can write. It notices what a test leaves behind."""

    def __init__(self) -> None:
        self.places = [os.getcwd()]
        with contextlib.suppress(OSError, RecursionError):
            if os.stat("/tmp").st_dev == os.stat("/dev/shm").st_dev:  # one private file system, not the host's
                self.places = [*dict.fromkeys([*self.places, "/tmp", "/dev/shm"])]
        self._before = self._look()

    def _look(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for place in self.places:
            with contextlib.suppress(OSError, RecursionError), os.scandir(place) as listing:
                for entry in listing:
                    about = entry.stat(follow_symlinks=False)
                    entries[entry.path] = about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode
        return entries

    def is_clean(self) -> bool:
        """Whether all is as it was at the beginning. New plain files are removed."""
        after = self._look()
        for path, about in after.items():
            if path not in self._before and stat.S_ISREG(about[3]):
                with contextlib.suppress(OSError, RecursionError):
                    os.unlink(path)
        return after == self._before or self._look() == self._before

    @staticmethod
    def place(files: Mapping[str, str]) -> None:
        """Write the files of a test."""
        for name, text in files.items():
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            with open(name, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
                file.write(text)

    @staticmethod
    def read(name: str, most: int) -> tuple[bytes, bool]:
        """Return a file that the program wrote, and whether it is longer than `most` bytes. Absent: empty."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b"", False
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b"", False
            data = file.read(most + 1)
        return data[:most], len(data) > most

    @staticmethod
    def remove(names: Sequence[str]) -> None:
        for name in names:
            top = name.partition("/")[0]
            with contextlib.suppress(OSError, RecursionError):
                shutil.rmtree(top) if os.path.isdir(top) and not os.path.islink(top) else os.unlink(top)


class Streams:
    """Standard input, output and error of a program, as files without names, which all its tests use in turn."""

    def __init__(self) -> None:
        name = f".stream-{os.getpid()}"
        self.files: list[int] = []
        for at in range(3):
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_APPEND if at else 0), 0o600)
            if at == 0:
                self._input = fd
                fd = os.open(name, os.O_RDONLY)
            self.files.append(fd)
            os.unlink(name)

    def begin(self, stdin: str) -> None:
        """Empty the files, and write the input of a test. Raises OSError if it does not fit."""
        for fd in (self._input, *self.files[1:]):
            os.ftruncate(fd, 0)
        data = memoryview(stdin.encode("utf-8", "surrogatepass"))
        at = 0
        while at < len(data):
            at += os.pwrite(self._input, data[at:], at)
        os.lseek(self.files[0], 0, os.SEEK_SET)

    def check(self, most: int) -> None:
        for fd in self.files[1:]:
            if os.fstat(fd).st_size > 64 * most:
                raise LimitError("limit", "it printed far more than is kept of its output")

    def read(self, at: int, most: int) -> tuple[str, bool]:
        """Return the beginning of a stream as text, and whether it is longer than `most` bytes."""
        data = os.pread(self.files[at], most + 1, 0)
        while len(data) <= most and (more := os.pread(self.files[at], most + 1 - len(data), len(data))):
            data += more
        return data[:most].decode("utf-8", "replace"), len(data) > most

    def read_end(self, at: int, most: int) -> str:
        size = os.fstat(self.files[at]).st_size
        return os.pread(self.files[at], most, max(0, size - most)).decode("utf-8", "replace")
