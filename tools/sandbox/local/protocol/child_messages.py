"""The messages below the broker: those of the zygote, the children and the launchers; `messages` lists all.

A child gets a `RunMessage`, a `CellMessage`, a file message or a `ForkMessage` as it came from the host, or

| to a child | keys | |
| --- | --- | --- |
| become a session | `op="session"`, and the rest of an `OpenMessage` | |
| fork a launcher | `op="launch"` | |
| go on | `go` | after a note that the broker had to act on first |

The first key of a child's note says what kind it is:

| from a child | further keys | |
| --- | --- | --- |
| `broken`: why | | the sandbox failed in this child, before any user code ran |
| `begins` | | user code runs: the broker trusts nothing that comes after this |
| `folder`: the working folder | | files will be fetched from it; the child waits to go on |
| `compiled`: the compiler's exit code | | the child waits to go on |
| `done`: a program's exit code, negative for a signal | `cpu` (seconds), `rss_kb`, `why` (the limit it met) | |
| `ready` | | the session, or the copy of one, takes requests |
| `ends` | | a session wants descriptors for its copy, or for its launcher |
| `forked`: the copy's process id, as the session sees it | | |
| `done` | | a session goes on after a fork, or after it has made its launcher |
| `failed`: why | | a fork failed, in the session or in its copy |

| to a launcher | keys | |
| --- | --- | --- |
| start a program | `op="start"`, `number`, `argv`, `cwd`, `env`, `pty` (rows, columns) | with three descriptors |
| send a signal to a program and its group | `op="signal"`, `number`, `signal` | to kill it means to kill its session |
| set the size of its terminal | `op="size"`, `number`, `rows`, `cols` | |

| from a launcher | further keys | |
| --- | --- | --- |
| `started`: the program's number | `pid` | |
| `failed`: the program's number | `errno`, `folder` | `folder`: its working folder is to blame |
| `exited`: the program's number | `code` | negative for a signal |

The packed answer of a session to a request other than a cell has `data` (bytes of a file, a listing in JSON, or several
files one after another, with their `sizes`, -1 for one that cannot be read), or nothing for what was written. A request
that failed has `failed` instead, the reason; and `errno`, if it concerns a file.

Template processes import this module for type checking only, as they do `messages`.
"""

from __future__ import annotations

from typing import Any, TypedDict


class ZygoteReady(TypedDict):
    """The zygote has its libraries loaded. `resident`: its pages; `absent`: those that it could not load, and why."""

    resident: int
    absent: str


class CellErrorAnswer(TypedDict):
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: list[str]


class CellAnswer(TypedDict):
    """Result of a cell: the echo of its last expression, its exception, the limit that it met, and rich output."""

    result: str | None
    error: CellErrorAnswer | None
    why: str
    display: list[dict[str, Any]]
