"""`Limits` of an execution or a session, and `ExecutionStatus`, which says how an execution ended."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass

from toolgym.tools.errors import ConfigError


class ExecutionStatus(enum.StrEnum):
    """The end of an execution."""

    OK = "ok"
    """The program ended by itself with return code 0."""
    ERROR = "error"
    """The program ended by itself with another return code, or the cell raised."""
    COMPILE_ERROR = "compile_error"
    """The program could not be compiled; standard output and error are the compiler's."""
    KILLED = "killed"
    """The program was killed by a signal that the sandbox did not send."""
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    """The program asked for more memory than allowed, or used it and was killed."""
    OUTPUT_LIMIT = "output_limit"
    """The program printed far more than the cap and was killed."""
    FILE_LIMIT = "file_limit"
    DISK_LIMIT = "disk_limit"
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox itself failed; the program is not to blame."""


@dataclass(frozen=True)
class Limits:
    """Limits of one execution or one session. Each is per call for `run` and per session for a session.

    Attributes:
        memory_mb: memory of all its processes together, in MiB, beyond what the template already has.
        cpu_seconds: CPU seconds of one process. Default: only the wall-clock deadline holds.
        processes: processes and threads at once, in a session and its forks together, without the forks' interpreters.
            Programs count at most one processor for eight of them, so pools stay below the limit on large machines.
        cores: processors' worth of time of all its processes together, for example 0.5. Default: no limit. A local
            sandbox needs control groups for it, and refuses if there are none.
        file_mb: size of one file, in MiB.
        disk_mb: everything written to its folders together, in MiB.
        inodes: files and folders at once.
        open_files: descriptors of one process.
        output_bytes: cap on each of stdout and stderr; the middle of more is dropped. At 64 times this the program is
            killed.

    Raises ConfigError if a number is not positive.
    """

    memory_mb: int = 1024
    cpu_seconds: float | None = None
    processes: int = 64
    cores: float | None = None
    file_mb: int = 64
    disk_mb: int = 128
    inodes: int = 4096
    open_files: int = 256
    output_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"limit {name} must be positive, got {value!r}")

    def exceeded(self, status: ExecutionStatus, *, flood_factor: int = 1) -> str:
        """Return the size of the limit that a status names. Empty for statuses without a limit.

        `flood_factor` times `output_bytes` is the output at which the sandbox kills a program.
        """
        if status in (ExecutionStatus.OK, ExecutionStatus.ERROR):
            return ""
        sizes = {
            ExecutionStatus.MEMORY_LIMIT: f"{self.memory_mb} MiB",
            ExecutionStatus.CPU_LIMIT: f"{self.cpu_seconds or 0:g} s",
            ExecutionStatus.OUTPUT_LIMIT: _in_bytes(self.output_bytes * flood_factor),
            ExecutionStatus.FILE_LIMIT: f"{self.file_mb} MiB",
            ExecutionStatus.DISK_LIMIT: f"{self.disk_mb} MiB and {self.inodes} files",
        }
        return sizes.get(status, "")


def _in_bytes(size: int) -> str:
    """Return a number of bytes as a text, in MiB where that is a whole number."""
    return f"{size} bytes" if size % (1 << 20) else f"{size >> 20} MiB"
