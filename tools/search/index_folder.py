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
        known = None
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((folder / ABOUT).read_bytes())
        if known != about:
            if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / ABOUT).is_file())):
                raise ConfigError(f"{str(folder)!r} exists and is no index: name another folder for it ('index')")
            _log.warning("building an index of %s in %s", corpus.path, folder)
            prefix = f".{folder.name}.building-"
            for left in [path for path in folder.parent.glob(".*") if alone and path.name.startswith(prefix)]:
                shutil.rmtree(left, ignore_errors=True)
            _replace(folder, prefix, about, build)
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


def _replace(folder: Path, prefix: str, about: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as room:
            new = Path(room, "new")
            new.mkdir()
            build(new)
            (new / ABOUT).write_text(json.dumps(about, indent=1))
            if folder.exists():
                folder.rename(Path(room, "old"))  # processes that have it open keep its files
            new.rename(folder)
    except OSError as error:
        if isinstance(error, ToolgymError):
            raise
        raise ConfigError(
            f"cannot make an index in {str(folder.parent)!r}: {error.strerror}; name another folder for it ('index')"
        ) from error
