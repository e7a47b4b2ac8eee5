"""`Databases`: from the name of a database to the database, of those that toolgym brings or of a folder."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolgym.envs.families.sql.database import Database
from toolgym.envs.library.embedded import embedded_rows
from toolgym.tools.errors import ConfigError, UnknownNameError, missing_file, nearest

_NAME = re.compile(r"\w[\w .-]*")


class Databases:
    """The databases of a folder, or those that toolgym brings.

    Args:
        root: a folder with `NAME/NAME.sqlite` for each database, as Spider and BIRD have it, or `NAME.sqlite`. None:
            the databases that toolgym brings.

    Raises:
        UnknownNameError: there is no such folder; names the nearest one.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        self._root = Path(root) if root is not None else None
        if self._root is not None and not self._root.is_dir():
            raise missing_file("folder of databases", self._root)

    def open(self, db_id: str, *, read_only: bool = True) -> Database:
        """Open a database: an own copy in memory, or, where it is a file that is only read, the file.

        Raises:
            UnknownNameError: there is no such database; names the nearest one.
            ConfigError: the file is no database.
        """
        if self._root is None:
            known = embedded()[0]
            if db_id not in known:
                raise UnknownNameError(
                    f"there is no database {db_id!r}{nearest(str(db_id), known) or '.'} toolgym brings "
                    f"{', '.join(known)}; give db_root= for others"
                )
            return Database.from_bytes(_made(db_id), read_only=read_only)
        return Database.open_file(self._path(self._root, db_id), read_only=read_only)

    @staticmethod
    def _path(root: Path, db_id: str) -> Path:
        if not isinstance(db_id, str) or not _NAME.fullmatch(db_id):
            raise ConfigError(f"a db_id is the name of a database, without a path, got {db_id!r}")
        paths = [root / db_id / f"{db_id}.sqlite", root / f"{db_id}.sqlite"]
        for path in paths:
            if path.is_file():
                return path
        raise missing_file("database", root / db_id)


@functools.cache
def embedded() -> tuple[Mapping[str, str], tuple[Mapping[str, Any], ...]]:
    """The scripts of the databases that toolgym brings, by name; and the questions on them."""
    rows = embedded_rows("sql", Path(__file__).with_name("data"))
    return (
        {row["db_id"]: row["script"] for row in rows if "script" in row},
        tuple(row for row in rows if "question" in row),
    )


@functools.cache
def _made(db_id: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(embedded()[0][db_id])
        return connection.serialize()
    finally:
        connection.close()
