"""`copy_files`: the files of one session in another one, in which no program of the first one runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolgym.tools.errors import SandboxError, SandboxFileNotFoundError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.files import BATCH, BATCH_FILES, MAX_DOWNLOAD, FileInfo, FileRow


async def copy_files(source: Session, target: Session, path: str = ".", *, max_bytes: int = MAX_DOWNLOAD) -> None:
    """Copy a folder of a session into another session, with links and permission bits.

    The content may come from hostile programs that go on while it is read: each file is copied as it was at one moment.
    What is no file, folder or link, and a file that cannot be read, is left out.

    Raises:
        SandboxError: the files have more than `max_bytes` together, or a session failed.
    """
    try:
        infos = await source.walk(path)
    except SandboxFileNotFoundError:
        return
    rows = [_row(info) for info in infos if info.kind in ("folder", "link")]
    await target.write_rows(path, rows, [])
    remaining = max_bytes
    for batch in _batches([info for info in infos if info.kind == "file"]):
        contents = await source.read_files(path, batch)
        remaining -= sum(map(len, contents.values()))
        if remaining < 0:
            raise SandboxError(f"the folder {path!r} of the session has more than {max_bytes} bytes")
        present = [info for info in batch if info.name in contents]
        rows = [FileRow(info.name, "file", info.mode, len(contents[info.name])) for info in present]
        await target.write_rows(path, rows, [contents[info.name] for info in present])


def _row(info: FileInfo) -> FileRow:
    if info.kind == "link":
        return FileRow(info.name, "link", info.mode, info.target or "")
    return FileRow(info.name, "folder", info.mode | 0o700, 0)


def _batches(files: Sequence[FileInfo]) -> Iterator[Sequence[FileInfo]]:
    batch: list[FileInfo] = []
    size = 0
    for info in files:
        if batch and (size + info.size > BATCH or len(batch) >= BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(info)
        size += info.size
    if batch:
        yield batch
