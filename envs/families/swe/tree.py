"""The files of a repository: a tree, what changed between two of them, and both as a tar archive."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from toolgym.tools.errors import ConfigError, UnknownNameError, missing_file
from toolgym.tools.sandbox.names import check_name

WHITEOUT = ".wh."
"""Begins the name of an empty file that stands for a deletion, as in the layers of container images
(https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts)."""

CACHED = 4


class Node(NamedTuple):
    """One file or link of a repository; `data` of a link is its target."""

    data: bytes
    mode: int = 0o644
    link: bool = False


def link(target: str) -> Node:
    return Node(target.encode("utf-8", "surrogateescape"), 0o777, link=True)


Tree: TypeAlias = dict[str, Node]
"""Files and links by their name relative to the repository. A folder is there if it holds something."""

Changes: TypeAlias = dict[str, Node | None]
"""New nodes by name; None: it was deleted."""


def changes(before: Mapping[str, Node], after: Mapping[str, Node]) -> Changes:
    new: Changes = {name: node for name, node in after.items() if before.get(name) != node}
    return new | {name: None for name in before if name not in after}


def changed(before: Mapping[str, Node], changes: Mapping[str, Node | None]) -> Tree:
    """Return a tree with changes made to it. A new file takes the place of a folder of its name, and the other way."""
    after = {name: node for name, node in before.items() if name not in changes}
    new = {name: node for name, node in changes.items() if node is not None}
    gone = {parent for name in new for parent in _parents(name)}
    kept = {
        name: node for name, node in after.items() if name not in gone and not any(p in new for p in _parents(name))
    }
    return {**kept, **new}


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def pack(changes: Mapping[str, Node | None]) -> bytes:
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, node in sorted(changes.items()):
            folder, slash, last = name.rpartition("/")
            member = tarfile.TarInfo(name if node is not None else f"{folder}{slash}{WHITEOUT}{last}")
            if node is not None and node.link:
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(node.data)
                archive.addfile(member)
                continue
            data = b"" if node is None else node.data
            member.size, member.mode = len(data), 0o644 if node is None else node.mode
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def unpack(data: bytes) -> Changes:
    changes: Changes = {}
    for name, node in read_archive(io.BytesIO(data), "the snapshot").items():
        folder, slash, last = name.rpartition("/")
        if last.startswith(WHITEOUT):
            changes[f"{folder}{slash}{last.removeprefix(WHITEOUT)}"] = None
        else:
            changes[name] = node
    return changes


def read_archive(file: io.BufferedIOBase, what: str) -> Tree:
    """Return the files and links of a tar archive. Raises ConfigError: it is none, or a name leads outside."""
    tree: Tree = {}
    try:
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                name = os.path.normpath(member.name)
                if member.issym():
                    tree[check_name(name)] = Node(os.fsencode(member.linkname), 0o777, link=True)
                elif member.isfile():  # a hard link too: it reads as the file that it is one with
                    content = archive.extractfile(member)
                    assert content is not None
                    tree[check_name(name)] = Node(content.read(), 0o755 if member.mode & 0o100 else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ConfigError(f"{what} is no tar archive that can be read: {error}") from error
    return tree


def read_repository(path: str | Path) -> Tree:
    """Return the files of a repository: a folder, or a tar archive of it, compressed or not.

    Its history is left out: `.git` would tell what became of it later. If all of an archive lies in one folder, that
    folder is the repository.
    """
    place = Path(path).absolute()
    if not place.exists():
        raise missing_file("repository", place)
    return dict(_read(place, place.stat().st_mtime_ns))


@lru_cache(maxsize=CACHED)
def _read(place: Path, mtime_ns: int) -> Tree:
    if place.is_dir():
        tree = dict(_folder(place))
    else:
        with place.open("rb") as file:
            tree = read_archive(file, f"the repository {str(place)!r}")
        tops = {name.partition("/")[0] for name in tree}
        if len(tops) == 1 and all("/" in name for name in tree):
            tree = {name.partition("/")[2]: node for name, node in tree.items()}
    tree = without_history(tree)
    if not tree:
        raise UnknownNameError(f"the repository {str(place)!r} holds no files")
    return tree


def without_history(tree: Mapping[str, Node]) -> Tree:
    return {name: node for name, node in tree.items() if not is_left_out(name)}


def is_left_out(name: str) -> bool:
    """Whether a file is Git's own, also below a submodule, or compiled Python, which would replace its source."""
    return not {".git", "__pycache__"}.isdisjoint(name.split("/")) or name.endswith((".pyc", ".pyo"))


def _folder(root: Path) -> Iterator[tuple[str, Node]]:
    for place, folders, files in os.walk(root):
        folders[:] = sorted(folder for folder in folders if folder not in (".git", "__pycache__"))
        links = [folder for folder in folders if os.path.islink(os.path.join(place, folder))]
        for name in sorted([*files, *links]):
            path = Path(place, name)
            relative, mode = path.relative_to(root).as_posix(), path.lstat().st_mode
            if stat.S_ISLNK(mode):
                yield relative, Node(os.fsencode(os.readlink(path)), 0o777, link=True)
            elif stat.S_ISREG(mode):
                yield relative, Node(path.read_bytes(), 0o755 if mode & 0o100 else 0o644)
