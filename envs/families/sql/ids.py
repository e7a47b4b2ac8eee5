"""The id of the env for SQL."""

from __future__ import annotations

NAMESPACES: dict[str, str] = {}

IDS = {
    "SQL-v0": (
        "toolgym.envs.families.sql.env:SQLEnv",
        "Answer a question on a database with a query, which may be tried first, in a ```sql block.",
    ),
}
