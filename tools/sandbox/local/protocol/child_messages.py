"""The messages below the broker: those of the zygote, the children and the launchers; `messages` lists all.

Template processes import this module for type checking only, as they do `messages`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from toolgym.tools.sandbox.local.protocol.messages import CellMessage, FileMessage, ForkMessage, RunMessage

# ---------------------------------------------------------------------- broker and zygote


class ZygoteReady(TypedDict):
    """The zygote has its libraries loaded. `resident`: its pages; `absent`: those that it could not load, and why."""

    resident: int
    absent: str


# ---------------------------------------------------------------------- broker to child


class Launch(TypedDict):
    """Fork a launcher."""

    op: Literal["launch"]


class BecomeSession(TypedDict):
    """Become a session: an `OpenMessage` with another `op`."""

    op: Literal["session"]
    memory_mb: int
    files: NotRequired[dict[str, bytes]]
    env: NotRequired[dict[str, str]]


class Go(TypedDict):
    """Go on, after a note that the broker had to act on first."""

    go: Literal[True]


ChildRequest = RunMessage | BecomeSession | CellMessage | FileMessage | ForkMessage | Launch

# ---------------------------------------------------------------------- child to broker

NoteKind = Literal["broken", "begins", "folder", "compiled", "done", "ready", "ends", "forked", "failed"]
"""A note's first key says what kind it is."""


class Broken(TypedDict):
    """The sandbox failed in this child, before any user code ran."""

    broken: str


class Begins(TypedDict):
    """User code runs from here on: the broker trusts nothing that comes after this."""

    begins: Literal[True]


class Folder(TypedDict):
    """The working folder; files will be fetched from it. The child waits for `Go`."""

    folder: str


class Compiled(TypedDict):
    """The compiler's exit code. The child waits for `Go`."""

    compiled: int


class RunDone(TypedDict):
    """How a program ended: its exit code (negative: a signal), the limit that it met, CPU seconds, and KiB resident."""

    done: int
    cpu: float
    rss_kb: int
    why: NotRequired[str]


class SessionReady(TypedDict):
    """The session, or the copy of one, takes requests."""

    ready: Literal[True]


class EndsWanted(TypedDict):
    """A session that is to fork wants descriptors for its copy, or for its launcher."""

    ends: Literal[True]


class Forked(TypedDict):
    """A session has forked; the copy's process id, as the session sees it."""

    forked: int


class ForkDone(TypedDict):
    """A session goes on after a fork, or after it has made its launcher."""

    done: Literal[True]


class Failed(TypedDict):
    """A fork failed in the session or in its copy, and why. In a packed answer: so did the request."""

    failed: str


ChildNote = (
    Broken | Begins | Folder | Compiled | RunDone | SessionReady | EndsWanted | Forked | ForkDone | Failed
)  # fmt: skip

# ---------------------------------------------------------------------- broker and launcher


class LaunchProgram(TypedDict):
    """Start a program, and give it this number."""

    op: Literal["start"]
    number: int
    argv: list[str] | str
    cwd: str | None
    env: dict[str, str]
    pty: tuple[int, int] | None


class SignalProgram(TypedDict):
    """Send a signal to a program and its group; to kill it means to kill all of its session."""

    op: Literal["signal"]
    number: int
    signal: int


class SizeTerminal(TypedDict):
    """Set the size of a program's terminal."""

    op: Literal["size"]
    number: int
    rows: int
    cols: int


LauncherRequest = LaunchProgram | SignalProgram | SizeTerminal


class ProgramStarted(TypedDict):
    """A program runs; its number in the session."""

    started: int
    pid: int


class ProgramFailed(TypedDict):
    """A program cannot be started, and why; `folder`: its working folder is to blame."""

    failed: int
    errno: int
    folder: bool


class ProgramExited(TypedDict):
    """A program ended: its exit code, negative for a signal."""

    exited: int
    code: int


LauncherNote = ProgramStarted | ProgramFailed | ProgramExited

# ---------------------------------------------------------------------- answers of a session, packed


class CellErrorAnswer(TypedDict):
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: list[str]


class CellAnswer(TypedDict):
    """What came of a cell: the echo of its last expression, its exception, the limit that it met, and rich output."""

    result: str | None
    error: CellErrorAnswer | None
    why: str
    display: list[dict[str, Any]]


class ReadAnswer(TypedDict):
    """Bytes of a file, or a listing in JSON."""

    data: bytes


class PackAnswer(ReadAnswer):
    """Several files: their sizes, -1 for one that cannot be read, and their contents one after another."""

    sizes: list[int]


class FileFailed(Failed):
    """What concerns a file failed; the number of the error."""

    errno: int


class WriteAnswer(TypedDict):
    """The bytes are written."""


PackedAnswer = CellAnswer | ReadAnswer | PackAnswer | WriteAnswer | FileFailed | Failed
