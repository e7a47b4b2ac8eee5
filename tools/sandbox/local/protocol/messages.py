"""Every message between the processes of the local sandbox.

    host ⇄ broker ⇄ child
             ⇅
           zygote

| from | to | what | form |
| --- | --- | --- | --- |
| host | broker | `HostRequest`; `TemplateProcess` numbers it with an `id` | JSON frame |
| broker | host | `Ready` or `Refused`; then answers, each with its request's `id` | JSON frame; data chunks before |
| broker | zygote | a slot's number, with three descriptors | one packet |
| zygote | broker | `ZygoteReady` or `Refused`, as JSON; then a `ForkReply` for each slot | one packet |
| broker | child | `ChildRequest`, and `Go` | marshal frame |
| child | broker | `ChildNote`; a session's answers, packed by `answer_codec` | JSON frame; raw frame |

Template processes import this module for type checking only, so that it takes no memory there: a message is a plain
dict on both sides, except a `ForkReply`, which is in `frames`. What a child sends is only of these types
until user code runs in it; from then on the broker checks every part that it uses.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Status = Literal[
    "ok", "error", "timeout", "killed", "memory_limit", "cpu_limit", "file_limit", "disk_limit", "output_limit",
    "compile_error", "sandbox_error",
]  # fmt: skip
"""How a request ended: a value of `ExecutionStatus`, which the broker cannot import."""

# ---------------------------------------------------------------------- host to broker


class Program(TypedDict):
    """What a run needs to know of a program that is not Python.

    `code` is written to `source`, compiled by `compile` (empty: not at all), and run by `argv`, both with `env`.
    """

    code: str
    source: str
    argv: list[str]
    compile: list[str]
    compile_memory_mb: int
    env: dict[str, str]


class RunRequest(TypedDict):
    """Run one program in a child of its own.

    `files` maps relative names to base64; `fetch` names files to send back. Without `argv` it is a Python program, and
    otherwise it has the keys of a `Program`. Times are in seconds.
    """

    op: Literal["run"]
    id: NotRequired[int]
    code: str
    timeout: float
    memory_mb: int
    cpu_seconds: NotRequired[float | None]
    stdin: NotRequired[str]
    files: NotRequired[dict[str, str]]
    fetch: NotRequired[list[str]]
    env: NotRequired[dict[str, str]]
    argv: NotRequired[list[str]]
    source: NotRequired[str]
    compile: NotRequired[list[str]]
    compile_timeout: NotRequired[float]
    compile_memory_mb: NotRequired[int]
    tries: NotRequired[int]
    """How often a child for it could not be forked; set by the broker alone."""
    fork: NotRequired[bool]
    """Whether programs may start processes; set by the broker for the child."""


class OpenRequest(TypedDict):
    """Make a child a session with this name, which the host chose."""

    op: Literal["open"]
    id: NotRequired[int]
    session: str
    timeout: float
    memory_mb: int
    files: NotRequired[dict[str, str]]
    env: NotRequired[dict[str, str]]
    tries: NotRequired[int]


class _SessionRequest(TypedDict):
    id: NotRequired[int]
    session: str
    timeout: float
    cancelled: NotRequired[bool]
    """Whether the host has given the request up; set by the broker."""


class CellRequest(_SessionRequest):
    """Run a cell."""

    op: Literal["cell"]
    code: str


class ExecRequest(_SessionRequest):
    """Run a program in the session's folder."""

    op: Literal["exec"]
    argv: list[str]
    stdin: NotRequired[str]


class ReadRequest(_SessionRequest):
    """Read at most `most` bytes of a file, from position `at`."""

    op: Literal["read"]
    name: str
    at: int
    most: int


class WriteRequest(_SessionRequest):
    """Write base64 data into a file at position `at`; at 0 the file is made anew."""

    op: Literal["write"]
    name: str
    at: int
    data: str


class ForkRequest(_SessionRequest):
    """Fork the session into another one with the name `into`."""

    op: Literal["fork"]
    into: str


class CloseRequest(TypedDict):
    """End a session."""

    op: Literal["close"]
    id: NotRequired[int]
    session: str


class CancelRequest(TypedDict):
    """Give up the request with the id `of`."""

    op: Literal["cancel"]
    id: NotRequired[int]
    of: int


SessionRequest = CellRequest | ExecRequest | ReadRequest | WriteRequest | ForkRequest
HostRequest = RunRequest | OpenRequest | SessionRequest | CloseRequest | CancelRequest

# ---------------------------------------------------------------------- broker to host


class Layers(TypedDict):
    """What protects the host, as far as the broker could set it up."""

    landlock: int
    seccomp: bool
    fresh_proc: bool
    watched: bool
    pinned: int
    cgroup: dict[str, Any] | None


class Ready(TypedDict):
    """The template process takes requests."""

    ready: Literal[True]
    pid: int
    layers: Layers


class Refused(TypedDict):
    """The template process cannot start, and why."""

    refused: str


class Output(TypedDict):
    """What was printed, and how many seconds it took."""

    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    duration: float


class CompilerOutput(Output):
    """How a compiler ended: its exit code, negative for a signal."""

    status: int


class RunAnswer(Output):
    """How a run ended. Fetched files come before it as data chunks, one after another; `files` has names and sizes."""

    status: Status
    code: int | None
    message: str
    cpu: float
    rss: int
    compiled: CompilerOutput | None
    files: list[tuple[str, int]]


class SessionAnswer(TypedDict):
    """How a session's request ended. With `answered`, the session's own answer came before it as data chunks."""

    status: Status
    alive: NotRequired[bool]
    message: NotRequired[str]
    answered: NotRequired[bool]


# ---------------------------------------------------------------------- broker and zygote


class ZygoteReady(TypedDict):
    """The zygote has its libraries loaded. `resident`: its pages; `pinned`: how many are copied at each fork."""

    resident: int
    pinned: int


# ---------------------------------------------------------------------- broker to child


class BecomeSession(TypedDict):
    """Become a session: an `OpenRequest` with another `op`."""

    op: Literal["session"]
    memory_mb: int
    files: NotRequired[dict[str, str]]
    env: NotRequired[dict[str, str]]


class Go(TypedDict):
    """Go on, after a note that the broker had to act on first."""

    go: Literal[True]


ChildRequest = RunRequest | BecomeSession | SessionRequest

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
    """The working folder, from which files will be fetched. The child waits for `Go`."""

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
    """A session that is to fork wants descriptors for its copy."""

    ends: Literal[True]


class Forked(TypedDict):
    """A session has forked; the copy's process id, as the session sees it."""

    forked: int


class ForkDone(TypedDict):
    """A session goes on after a fork."""

    done: Literal[True]


class Failed(TypedDict):
    """A fork failed in the session or in its copy, and why. In a packed answer: so did the request."""

    failed: str


ChildNote = (
    Broken | Begins | Folder | Compiled | RunDone | SessionReady | EndsWanted | Forked | ForkDone | Failed
)  # fmt: skip

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


class ExecAnswer(TypedDict):
    """A program's exit code, negative for a signal; None: it was interrupted."""

    status: int | None


class ReadAnswer(TypedDict, total=False):
    """Bytes of a file, or that there is no such file."""

    data: bytes
    absent: Literal[True]


class WriteAnswer(TypedDict):
    """The bytes are written."""


PackedAnswer = CellAnswer | ExecAnswer | ReadAnswer | WriteAnswer | Failed
