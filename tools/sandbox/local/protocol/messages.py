"""Every message between the processes of the local sandbox.

    host ⇄ broker ⇄ child
             ⇅
           zygote

| from | to | what | form |
| --- | --- | --- | --- |
| host | broker | `HostMessage`; `TemplateProcess` numbers it with an `id` | JSON frame |
| broker | host | `Ready` or `Refused`; then answers, each with its request's `id` | JSON frame; data chunks before |
| broker | zygote | a slot's number, with three descriptors | one packet |
| zygote | broker | `ZygoteReady`, `ZygoteFailed` or `Refused`, as JSON; then a `ForkReply` for each slot | one packet |
| broker | child, launcher | see below | marshal frame |
| child, launcher | broker | notes, see below | JSON frame |
| session | broker | its answers, packed by `answer_codec` | raw frame |

The bytes of a host's request, `data` and the values of `files`, go ahead of it in one raw frame (`encode_request`).

A child gets a `RunMessage`, a `CellMessage`, a file message or a `ForkMessage` as it came from the host, or
`op="session"` with the rest of an `OpenMessage`; `op="launch"`, to fork a launcher; or `go`, after a note that the
broker had to act on first. The first key of a child's note says what kind it is:

| from a child | further keys | |
| --- | --- | --- |
| `broken`: why | | the sandbox failed in this child, before any user code ran |
| `begins` | | user code runs: the broker trusts nothing that comes after this |
| `folder`: the working folder | | files will be fetched from it; the child waits to go on |
| `compiled`: the compiler's exit code | | the child waits to go on |
| `done`: a program's exit code, negative for a signal | `cpu` (seconds), `rss_kb`, `why` (the limit it met) | |
| `ready` | | the session, or the copy of one, takes requests |
| `shadow`: its process id, as the session sees it | `mb` (MiB that it may keep) | a cell begins that has a shadow |
| `threads` | | a cell has ended, and has left threads |
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

Template processes import this module for type checking only, so that it takes no memory there: a message is a plain
dict on both sides, except a `ForkReply`, which is in `frames`. The broker checks every part that it uses of what a
child sends after user code has run in it.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, final

Status = Literal[
    "ok", "error", "timeout", "killed", "memory_limit", "cpu_limit", "file_limit", "disk_limit", "output_limit",
    "compile_error", "sandbox_error",
]  # fmt: skip
"""The outcome of a request: a value of `ExecutionStatus`, which the broker cannot import."""

# ---------------------------------------------------------------------- host to broker


class Program(TypedDict):
    """Program of a run that is not Python. An empty `compile` means that it is not compiled."""

    code: str
    source: str
    argv: list[str]
    compile: list[str]
    compile_memory_mb: int
    env: dict[str, str]


class RunMessage(TypedDict):
    """Run one program in a child of its own. Times are in seconds. `files` maps relative names to contents; `fetch`
    names files to send back. The code is written to `source`. Without `argv` it is a Python program, and otherwise it
    has the keys of a `Program`."""

    op: Literal["run"]
    id: NotRequired[int]
    code: str
    timeout: float
    memory_mb: int
    cpu_seconds: NotRequired[float | None]
    output_bytes: NotRequired[int]
    stdin: NotRequired[str]
    files: NotRequired[dict[str, bytes]]
    fetch: NotRequired[list[str]]
    env: NotRequired[dict[str, str]]
    argv: NotRequired[list[str]]
    source: NotRequired[str]
    compile: NotRequired[list[str]]
    compile_timeout: NotRequired[float]
    compile_memory_mb: NotRequired[int]
    tries: NotRequired[int]
    """The number of children that were asked for it; set only by the broker."""
    fork: NotRequired[bool]


class OpenMessage(TypedDict):
    """Make a child a session with this name, which the host chose."""

    op: Literal["open"]
    id: NotRequired[int]
    session: str
    timeout: float
    memory_mb: int
    recover: bool
    """Whether its interpreter has a shadow during each cell."""
    pause: bool
    """Whether its threads are stopped while it has no request."""
    files: NotRequired[dict[str, bytes]]
    env: NotRequired[dict[str, str]]
    image: NotRequired[dict[str, Any]]
    """`env`, `workdir` and further `folders` of a session in an image."""
    tries: NotRequired[int]


class _SessionMessage(TypedDict):
    id: NotRequired[int]
    session: NotRequired[str]
    """Its name; set by `LocalSession`, and so is `timeout`, in seconds, unless the message has one."""
    timeout: NotRequired[float]
    cancelled: NotRequired[bool]
    """Whether the host has given the request up; set by the broker."""


class CellMessage(_SessionMessage):
    """Run a cell. `marks` is the token for marks in its output, see `protocol.marks`."""

    op: Literal["cell"]
    code: str
    marks: NotRequired[str]


class StartMessage(_SessionMessage):
    """Start a program beside the interpreter, and give it the name `process`, which the host chose.

    Its standard input gets `data`, and ends with it if `eof` is true. `argv` that is one text is for a shell. `pty` is
    rows and columns of its terminal, if it has one. After `deadline` seconds it is killed. The answer has its `pid` in
    the session; or the `errno`, and whether the `folder` is to blame for it; or `busy`: there are too many programs.
    """

    op: Literal["start"]
    process: str
    argv: list[str] | str
    cwd: str | None
    env: dict[str, str]
    pty: tuple[int, int] | None
    deadline: float | None
    data: NotRequired[bytes]
    eof: bool


class ProcessMessage(_SessionMessage):
    """Do something with a program, in the order of these fields.

    Write `data` to its standard input, close that (`eof`), set its terminal's `size` (rows and columns), send it a
    `signal`; wait at most `wait` seconds until it has ended or, if that comes sooner, has printed something (`output`)
    or taken all its input (`stdin`); `read` what it has printed since it was read last; `forget` it, if it has ended or
    the request did not wait.
    """

    op: Literal["process"]
    process: str
    data: NotRequired[bytes]
    eof: NotRequired[bool]
    size: NotRequired[tuple[int, int]]
    signal: NotRequired[int]
    until: NotRequired[Literal["exit", "output", "stdin"]]
    wait: NotRequired[float]
    read: NotRequired[bool]
    forget: NotRequired[bool]


class FilesMessage(_SessionMessage):
    """Do `what` with a file or folder; `rest` has further arguments."""

    op: Literal["files"]
    what: Literal["list", "stat", "walk", "mkdir", "move", "remove"]
    name: str
    rest: dict[str, Any]


class ReadMessage(_SessionMessage):
    """Read at most `most` bytes of a file, from position `at`."""

    op: Literal["read"]
    name: str
    at: int
    most: int


class WriteMessage(_SessionMessage):
    """Write data into a file at position `at`; at 0 the file is made again."""

    op: Literal["write"]
    name: str
    at: int
    data: bytes


class PackMessage(_SessionMessage):
    """Read several files below the folder `name`, at most `most` bytes together."""

    op: Literal["pack"]
    name: str
    names: list[str]
    most: int


class UnpackMessage(_SessionMessage):
    """Make folders, links and files below the folder `name`. A row is a name, a kind (`folder`, `link`, `file`, or
    `mode` to set no more than that), a mode, and what a link points to or how many bytes of `data` a file has."""

    op: Literal["unpack"]
    name: str
    rows: list[tuple[str, str, int, Any]]
    data: bytes


class ForkMessage(_SessionMessage):
    op: Literal["fork"]
    into: str


class CloseMessage(TypedDict):
    op: Literal["close"]
    id: NotRequired[int]
    session: str


class CancelMessage(TypedDict):
    op: Literal["cancel"]
    id: NotRequired[int]
    of: int


class LookMessage(TypedDict):
    op: Literal["look"]
    id: NotRequired[int]


FileMessage = FilesMessage | ReadMessage | WriteMessage | PackMessage | UnpackMessage
SessionMessage = CellMessage | StartMessage | ProcessMessage | FileMessage | ForkMessage
HostMessage = RunMessage | OpenMessage | SessionMessage | CloseMessage | CancelMessage | LookMessage

# ---------------------------------------------------------------------- broker to host


class Layers(TypedDict):
    """Protection of the host, as far as the broker could set it up, and whether forks are as cheap as they can be."""

    landlock: int
    seccomp: bool
    fresh_proc: bool
    terminals: bool
    own_users: bool
    watched: bool
    calibrated: bool
    absent: str
    cgroup: dict[str, Any] | None


class Ready(TypedDict):
    ready: Literal[True]
    pid: int
    layers: Layers


class Refused(TypedDict):
    refused: str


class Output(TypedDict):
    """Printed output, and the seconds that it took."""

    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    duration: float


class CompilerOutput(Output):
    """End of a compiler: its exit code, negative for a signal."""

    status: int


class RunAnswer(Output):
    """End of a run. Before it come data chunks of fetched `files`; `left_out` says why some were not fetched."""

    status: Status
    code: int | None
    message: str
    cpu: float
    rss: int
    compiled: CompilerOutput | None
    files: list[tuple[str, int]]
    left_out: list[str]


class SessionAnswer(TypedDict):
    """End of a session's request. With `answered`, the session's own answer came before it as data chunks."""

    status: Status
    alive: NotRequired[bool]
    message: NotRequired[str]
    answered: NotRequired[bool]


class EndAnswer(SessionAnswer):
    """End of a request that ended the interpreter: its exit `code`, negative for a signal, if that is known; and
    whether the session continues from the interpreter's shadow."""

    recovered: NotRequired[bool]
    code: int | None


class AsleepAnswer(TypedDict):
    """The ids of the requests whose programs sleep, and how many seconds of a processor it took to find that out."""

    asleep: list[int]
    seconds: float


class ProcessAnswer(SessionAnswer):
    """State of a program, and `why` it ended, if not by itself. What was read came before it as data chunks: standard
    output and error, with these `sizes`. `unwritten`: bytes that it has not taken from its standard input yet."""

    running: bool
    code: int | None
    why: Status | None
    unwritten: int
    duration: float
    sizes: list[int]
    truncated: list[bool]


# ---------------------------------------------------------------------- below the broker


@final
class ZygoteReady(TypedDict):
    """The zygote has its libraries loaded, and this many resident pages. `calibrated`: see `Zygote.calibrate`."""

    resident: int
    calibrated: bool


@final
class ZygoteFailed(TypedDict):
    """The zygote could not load a library, and has ended: what is left of the library cannot be unloaded."""

    failed: str
    reason: str


class CellErrorAnswer(TypedDict):
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: list[str]


class CellAnswer(TypedDict):
    """Result of a cell: the echo of its last expression, its exception and the `line` of the cell that raised it, the
    limit that it met, the exit code that it passed to `sys.exit`, and rich output with the serial numbers of its marks.
    """

    result: str | None
    error: CellErrorAnswer | None
    line: int | None
    why: str
    exit: int | None
    display: list[dict[str, Any]]
    serials: list[int]
