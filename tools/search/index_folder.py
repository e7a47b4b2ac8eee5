"""A folder on disk that holds an index of a corpus: made once, for all processes, and never seen half made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolgym.tools.errors import ConfigError, ToolgymError, error_text
from toolgym.tools.search.corpus import Corpus

ABOUT = "about.json"

_log = logging.getLogger("toolgym.tools.search")


@contextlib.contextmanager
def index_folder(
    folder: Path, corpus: Corpus, about: Mapping[str, Any], build: Callable[[Path], None]
) -> Iterator[Path]:
    """Give the folder with the index; build it first if it is missing or was made from something else (`about`, as
    JSON).

    Inside of the block no other process replaces the index; if another one builds it, this one waits. A folder that
    cannot be written, or holds something else or a damaged index, is a `ConfigError`.
    """
    about = {"toolgym_index": 1, **corpus.fingerprint, **about}
    with _lock(corpus) as alone:
        if _read_about(folder) != about:
            _check(folder)
            _log.warning("building an index of %s in %s", corpus.path, folder)
            if alone:
                _remove_unfinished(folder)
            _replace(folder, about, build)
        try:
            yield folder
        except (OSError, EOFError, ValueError, KeyError) as error:
            if isinstance(error, ToolgymError):
                raise
            raise ConfigError(
                f"cannot read the index in {str(folder)!r}: {error_text(error)}; remove it to have it made anew"
            ) from error


@contextlib.contextmanager
def _lock(corpus: Corpus) -> Iterator[bool]:
    """Let one process at a time look after indexes of a corpus; gives whether it could be locked. The kernel frees the
    lock with its process."""
    descriptor = os.open(corpus.path, os.O_RDONLY | os.O_CLOEXEC)  # of its own: closing it frees the lock
    alone = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("another process builds or opens an index of %s; waiting for it", corpus.path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks; then two may build, and one wins
            alone = False
            _log.warning("cannot lock %s: %s", corpus.path, error)
        yield alone
    finally:
        os.close(descriptor)


def _read_about(folder: Path) -> Any:
    try:
        return json.loads((folder / ABOUT).read_bytes())
    except (OSError, ValueError):
        return None


def _check(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / ABOUT).is_file())):
        raise ConfigError(f"{str(folder)!r} exists and is no index: name another folder for it ('index')")


def _remove_unfinished(folder: Path) -> None:
    prefix = _room_prefix(folder)
    for left in [path for path in folder.parent.glob(".*") if path.name.startswith(prefix)]:
        shutil.rmtree(left, ignore_errors=True)


def _room_prefix(folder: Path) -> str:
    return f".{folder.name}.building-"


def _replace(folder: Path, about: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    room = None
    try:
        room = Path(tempfile.mkdtemp(prefix=_room_prefix(folder), dir=folder.parent))
        new = room / "new"
        new.mkdir()
        build(new)
        (new / ABOUT).write_text(json.dumps(about, indent=1))
        if folder.exists():
            folder.rename(room / "old")  # processes that have it open keep its files
        new.rename(folder)
    except OSError as error:
        if isinstance(error, ToolgymError):
            raise
        raise ConfigError(
            f"cannot make an index in {str(folder.parent)!r}: {error.strerror}; name another folder for it ('index')"
        ) from error
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)
