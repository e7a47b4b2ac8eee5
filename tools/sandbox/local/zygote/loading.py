"""Loads the libraries of a template process, in the zygote.

A library that cannot be loaded leaves modules behind that are loaded in part, which nothing can undo. Then the zygote
ends, and a new one does without that library.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

from toolgym.tools.sandbox.local.child import generators
from toolgym.tools.sandbox.local.kernel import syscalls

STDLIB = (
    "argparse", "array", "asyncio", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "logging", "math", "operator", "pathlib", "pickle", "pprint", "queue", "random", "re", "shutil", "statistics",
    "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time", "traceback", "typing", "unittest",
    "uuid",
)  # fmt: skip
"""Imports of nearly every program; loaded before the fork, they are shared."""

THREADS_TIMEOUT = 1.0
"""Seconds that the threads of a library may take to end after it is loaded."""

_MAX_REASON = 500
"""Characters of the reason why a library could not be loaded."""

SHARED_MEMORY = "/dev/shm"


class LoadError(Exception):
    """A library cannot be loaded. `reason` says why."""

    def __init__(self, library: str, reason: str) -> None:
        super().__init__(library, reason)
        self.library, self.reason = library, reason[:_MAX_REASON]


def load(libraries: Sequence[str], warm_code: Mapping[str, str], without: Collection[str]) -> None:
    """Load the standard library's usual modules and the libraries, and remember their random generators.

    Args:
        libraries: names of modules.
        warm_code: by module, code that fills its caches.
        without: libraries that could not be loaded before.

    Raises:
        LoadError: a library raised an exception, or started a thread: a process with threads cannot be forked safely.
    """
    with generators.watch_seeds() as seeded:
        for library in (*STDLIB, *libraries):
            if library not in without:
                _load(library, warm_code.get(library, ""))
    generators.remember(seeded)


def _load(library: str, warm_code: str) -> None:
    try:
        importlib.import_module(library)
        exec(compile(warm_code, "<warm>", "exec"), {"__name__": "__warm__"})
    except BaseException as error:
        raise LoadError(library, f"{type(error).__name__}: {error}") from error
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(THREADS_TIMEOUT)
    if library not in STDLIB and _count_threads() > 1:
        raise LoadError(library, "it started a thread; a process with threads cannot be forked safely")


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:  # there is no /proc
        return threading.active_count()


@contextlib.contextmanager
def writable_folder(namespaces: bool, work: str) -> Iterator[None]:
    """Give libraries a folder for their caches while they are loaded, as their home folder.

    With namespaces it has the name of a folder that each child has for itself, so names that a library remembers are
    valid there.
    """
    folder = ""
    if namespaces:
        with contextlib.suppress(OSError):
            syscalls.mount("tmpfs", SHARED_MEMORY, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=777")
            folder = SHARED_MEMORY
    else:
        folder = tempfile.mkdtemp(dir=work)
    before = dict(os.environ)
    if folder:
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), folder), **cache_folders(folder))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None  # a library may have asked for it
        if namespaces and folder:
            syscalls.detach(folder)
        elif folder:
            shutil.rmtree(folder, ignore_errors=True)


def cache_folders(folder: str) -> dict[str, str]:
    """Return the variables that make libraries keep their caches below a folder."""
    return {"MPLCONFIGDIR": f"{folder}/.matplotlib", "XDG_CACHE_HOME": f"{folder}/.cache"}
