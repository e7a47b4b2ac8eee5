"""Programs beside the interpreter of a session: what is started, and the handle of one that runs in the background."""

from __future__ import annotations

import signal as signals
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.names import OptionError, check_command, check_env, check_path, positive

MAX_INPUT = 4 * 1024 * 1024
"""Bytes for a program's standard input that are sent at once."""


@dataclass(frozen=True)
class Command:
    """A program to start, checked: arguments or one text for a shell, and the options of `Session.start`."""

    argv: list[str] | str
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    pty: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        command: Sequence[str] | str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        pty: tuple[int, int] | None = None,
    ) -> Command:
        """Return the command of a call's arguments. Raises OptionError for a value that cannot be used."""
        if cwd is not None:
            check_path(cwd, field=("cwd",))
        if user is not None and (not isinstance(user, str) or not user):
            raise OptionError(f"user must be a name, got {user!r}", "user")
        return cls(
            check_command(command), cwd, dict(check_env(env or {})), user, None if pty is None else check_size(pty)
        )


@dataclass(frozen=True)
class ProcessRequest:
    """Things to do with a process, in the order of the attributes.

    `wait` is in seconds, at most `until` it has ended or, sooner, has printed something or taken its input. To `read`
    takes its output since the last read. To `forget` one that runs, kill it in the same request.
    """

    data: bytes = b""
    close_stdin: bool = False
    size: tuple[int, int] | None = None
    signal: int | None = None
    until: Literal["exit", "output", "stdin"] | None = None
    wait: float = 0.0
    read: bool = False
    forget: bool = False


@dataclass(frozen=True)
class ProcessState:
    """The state of a process: `code` as `Process.poll` has it, and the bytes of input that it has not taken."""

    running: bool
    code: int | None
    unwritten: int
    output: ProcessOutput


@dataclass(frozen=True)
class ProcessOutput:
    """Output of a process since it was read last. With a terminal, all of it is in `stdout`.

    The middle of more than `Limits.output_bytes` is dropped (`stdout_truncated`); at 64 times that it is killed.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @property
    def text(self) -> str:
        """Decode `stdout`, with invalid UTF-8 replaced."""
        return self.stdout.decode("utf-8", "replace")


class Process(AsyncCloseable):
    """A program that runs beside the interpreter of a session, from `Session.start`.

    `pid` is its process id, as programs of the session see it. Every method raises `SessionLostError` if the session is
    gone, and `SandboxError` if this handle is closed.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._closed = False

    async def ask(self, request: ProcessRequest) -> ProcessState:
        """Carry out a request. All other methods call this one."""
        if self._closed:
            raise SandboxError("the handle of the process is closed")
        return await self._ask(request)

    @abstractmethod
    async def _ask(self, request: ProcessRequest) -> ProcessState: ...

    @abstractmethod
    async def _end(self) -> None:
        """Kill it and forget it; its session may be gone."""

    async def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return (await self.ask(ProcessRequest())).code

    async def wait(self, timeout: float = 30.0) -> int | None:
        """Wait until it ends, and return its exit code; None if it still runs after `timeout` seconds."""
        return (await self.ask(ProcessRequest(until="exit", wait=positive("timeout", timeout)))).code

    async def output(self, *, wait: float = 0.0) -> ProcessOutput:
        """Return its output since the last call; with `wait`, wait at most these seconds for some."""
        until: Literal["output"] | None = None
        if wait != 0:
            until = "output"
            positive("wait", wait)
        return (await self.ask(ProcessRequest(read=True, until=until, wait=wait))).output

    async def write_stdin(self, data: bytes | str, *, timeout: float = 30.0) -> None:
        """Write to its standard input, and wait until it has taken all of it into its pipe. A text is sent as UTF-8.

        Data for one that has ended, or has closed its standard input, is dropped. Raises SandboxError if it did not
        take all in `timeout` seconds.
        """
        positive("timeout", timeout)
        encoded = data.encode() if isinstance(data, str) else bytes(data)
        for at in range(0, len(encoded), MAX_INPUT):
            part = encoded[at : at + MAX_INPUT]
            state = await self.ask(ProcessRequest(data=part, until="stdin", wait=timeout))
            if state.unwritten:
                raise SandboxError(f"the process has not read {state.unwritten} bytes of its input after {timeout:g} s")

    async def close_stdin(self) -> None:
        """Close its standard input; with a terminal, send it the end of file."""
        await self.ask(ProcessRequest(close_stdin=True))

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to it and its process group; SIGKILL, to all that it started (except after `setsid`)."""
        if not isinstance(signal, int) or not 1 <= signal <= 64:
            raise OptionError(f"signal must be a number from 1 to 64, got {signal!r}", "signal")
        await self.ask(ProcessRequest(signal=int(signal)))

    async def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size. Without a terminal this does nothing."""
        await self.ask(ProcessRequest(size=check_size((rows, cols))))

    async def close(self) -> None:
        """Kill it and forget it. Closing twice is fine, and so is closing it after its session."""
        if not self._closed:
            self._closed = True
            await self._end()


def check_size(size: tuple[int, int], field: str = "pty") -> tuple[int, int]:
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(type(number) is int and 0 < number < 65536 for number in size):
        raise OptionError(f"a terminal's size must be (rows, columns), each from 1 to 65535, got {size!r}", field)
    return size[0], size[1]
