"""Copying files and folders into a session and out of it, and `tar` through a pipe beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from sandbox_measures.in_process import local
from sandbox_measures.samples import Sample, Scale, best_of

from toolgym.tools.sandbox.base import Session

SMALL_FILES, SMALL_SIZE = 1000, 8 * 1024
LARGE_FILES, LARGE_SIZE = 2, 24 * 1024 * 1024
LIMITS = {"file_mb": 64, "disk_mb": 512, "inodes": 20_000}
SIZES = {"small": (SMALL_FILES, SMALL_SIZE), "large": (LARGE_FILES, LARGE_SIZE)}


@contextlib.contextmanager
def folders(kind: str) -> Iterator[tuple[Path, Path, int]]:
    """A folder with files, a place for a copy, both in memory where there is a file system for that, and its bytes."""
    count, size = SIZES[kind]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        source = Path(made, "source")
        for number in range(count):
            path = source / f"folder{number % 20}" / f"file{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size))
        yield source, Path(made, "copy"), count * size


async def measure_tar(scale: Scale, kind: str) -> Sample:
    with folders(kind) as (source, copy, size):

        async def once() -> Sample:
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            began = time.perf_counter()
            process = await asyncio.create_subprocess_shell(f"tar -C {source} -c . | tar -C {copy} -x")
            failed = await process.wait() != 0
            return _sample(size, began, failed)

        return await best_of(once, scale.rounds)


async def measure_copy(scale: Scale, kind: str, call: Callable[[Session, Path, Path], Awaitable[None]]) -> Sample:
    with folders(kind) as (source, copy, size):
        async with local(scale) as sandbox, await sandbox.session(**LIMITS) as session:
            await session.upload_folder(source, "given")

            async def once() -> Sample:
                shutil.rmtree(copy, ignore_errors=True)
                if await session.exists("copy"):
                    await session.remove("copy", recursive=True)
                began = time.perf_counter()
                await call(session, source, copy)
                return _sample(size, began, failed=False)

            return await best_of(once, scale.rounds)


def _sample(size: int, began: float, failed: bool) -> Sample:
    seconds = time.perf_counter() - began
    return Sample(rate=size / seconds / 1e6, p50=seconds * 1e3, p99=seconds * 1e3, errors=int(failed))


async def up(session: Session, source: Path, copy: Path) -> None:
    await session.upload_folder(source, "copy")


async def down(session: Session, source: Path, copy: Path) -> None:
    await session.download_folder("given", copy)


TRANSFER_MEASURES: dict[str, Callable[[Scale], Awaitable[Sample]]] = {
    "tar-small": lambda scale: measure_tar(scale, "small"),
    "tar-large": lambda scale: measure_tar(scale, "large"),
    "upload-small": lambda scale: measure_copy(scale, "small", up),
    "upload-large": lambda scale: measure_copy(scale, "large", up),
    "download-small": lambda scale: measure_copy(scale, "small", down),
    "download-large": lambda scale: measure_copy(scale, "large", down),
}
