"""Checks of requests; an error names the field of the body.

The server's own limits (seconds, MiB) are checked here. `RunRequest` and `SessionRequest` check the rules of every
sandbox (names of files, environment variables, positive numbers), and the sandbox checks that files fit.
"""

from __future__ import annotations

from pydantic import BaseModel

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.names import OptionError
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.protocol.fusion import RunCodeRequest, RunJupyterRequest
from toolgym.tools.sandbox.protocol.messages import CreateSessionRequest
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving.json_bodies import InvalidRequestError, problem


def run_request(asked: RunCodeRequest, config: ServerConfig) -> RunRequest:
    """Make the run for `/run_code`. A time-out of 0 is replaced: such a program is not run."""
    check_limits(asked, config, "run_timeout", "compile_timeout")
    try:
        return RunRequest(
            asked.code,
            language=asked.language,
            timeout=asked.run_timeout if asked.run_timeout > 0 else 1.0,
            compile_timeout=asked.compile_timeout if asked.compile_timeout > 0 else None,
            memory_mb=asked.memory_limit_MB if asked.memory_limit_MB > 0 else None,
            stdin=asked.stdin or "",
            files={name: data for name, data in asked.files.items() if data is not None},
            fetch_files=asked.fetch_files,
            env=asked.env,
        )
    except OptionError as error:
        raise refused(error) from None


def session_request(asked: CreateSessionRequest | RunJupyterRequest, config: ServerConfig) -> SessionRequest:
    timeouts = ("total_timeout", "cell_timeout") if isinstance(asked, RunJupyterRequest) else ()
    check_limits(asked, config, *timeouts)
    memory = asked.memory_limit_MB if asked.memory_limit_MB > 0 else None
    try:
        if isinstance(asked, CreateSessionRequest):
            return SessionRequest(
                files=asked.files,
                env=asked.env,
                memory_mb=memory,
                file_mb=asked.file_mb,
                disk_mb=asked.disk_mb,
                inodes=asked.inodes,
                network=asked.network,
                folders=asked.folders,
            )
        return SessionRequest(files=asked.files, memory_mb=memory, hint="\n".join(asked.cells))
    except OptionError as error:
        raise refused(error) from None


def refused(error: ConfigError) -> InvalidRequestError:
    """Make the answer to a refusal of the sandbox."""
    return problem(error.field if isinstance(error, OptionError) else (), str(error))


def check_limits(asked: BaseModel, config: ServerConfig, *timeouts: str) -> None:
    """Check time-outs, by their names, and limits among the fields of a request."""
    limits = dict.fromkeys(timeouts, config.max_timeout) | {
        "memory_limit_MB": config.max_memory_mb,
        "file_mb": config.max_disk_mb,
        "disk_mb": config.max_disk_mb,
        "inodes": config.max_inodes,
    }
    for field, most in limits.items():
        value = asked.__dict__.get(field)  # `getattr` raises and catches two errors for a field that there is not
        if value is not None and field in timeouts and value < 0:
            raise problem((field,), "Input should be greater than or equal to 0", "greater_than_equal", value)
        if value is not None and value > most:
            shown = most if isinstance(most, int) else f"{most:g}"
            raise problem((field,), f"Input should be less than or equal to {shown}", "less_than_equal", value)
