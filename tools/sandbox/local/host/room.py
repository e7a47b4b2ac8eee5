"""Whether a caller's files fit where programs run: checked before anything does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.names import OptionError

OWN_INODES = 16
"""Files and folders that the sandbox itself keeps where a program's are."""

_MIB = 1 << 20
_BLOCK = 4096


def check_room(limits: Limits, files: Mapping[str, bytes], **texts: str) -> None:
    """Check that files fit into the folder of a program.

    Args:
        limits: of the program.
        files: content by name.
        texts: what is kept in a file of the sandbox's own, by the option that it comes from.

    Raises:
        OptionError: one is larger than `Limits.file_mb`, all are larger than `Limits.disk_mb`, or there are more than
            `Limits.inodes`; names the file and the limit.
    """
    own = {field: text.encode("utf-8", "surrogatepass") for field, text in texts.items() if text}
    for name, data in files.items():
        _check_size(limits, data, f"the file {name[:200]!r}", "files", name)
    for field, data in own.items():
        _check_size(limits, data, field, field)
    size = sum(-(-len(data) // _BLOCK) * _BLOCK for data in (*files.values(), *own.values()))
    if size > limits.disk_mb * _MIB:
        said = ", ".join(["the files", *own])
        raise OptionError(f"{said} need {size} bytes together, and Limits.disk_mb is {limits.disk_mb}", "files")
    places = {place for name in files for place in (PurePosixPath(name), *PurePosixPath(name).parents)}
    if files and len(places) + OWN_INODES > limits.inodes:
        said = f"{OWN_INODES} are the sandbox's own, and Limits.inodes is {limits.inodes}"
        raise OptionError(f"{len(files)} files with their folders are {len(places)} inodes; {said}", "files")


def _check_size(limits: Limits, data: bytes, what: str, *field: str) -> None:
    if len(data) > limits.file_mb * _MIB:
        raise OptionError(f"{what} has {len(data)} bytes, and Limits.file_mb is {limits.file_mb}", *field)
