"""What a client asks for, as the sandbox takes it. Every value is checked once; an error names the field of the body.

The server's own limits (seconds, MiB, files) are checked here. `RunRequest` and `SessionRequest` check what is the same
on every sandbox: names of files, environment variables, and that numbers are positive.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePosixPath

from pydantic import BaseModel

from toolgym.tools.sandbox.names import OptionError, check_name
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.protocol.messages import CreateSessionRequest, RunCodeRequest, RunJupyterRequest
from toolgym.tools.sandbox.server.config import LimitsConfig, ServerConfig
from toolgym.tools.serving.json_bodies import problem
from toolgym.tools.serving.transport import MIB

SKIPPED_FILES = "IGNORE_THIS_FILE"
"""Files with this in their name are not written, as in SandboxFusion."""

OWN_INODES = 16
"""Files and folders that the sandbox itself keeps where a program's are."""


def run_request(asked: RunCodeRequest, config: ServerConfig) -> RunRequest:
    """Return the run that `/run_code` asks for. A time-out of 0 or less is replaced: such a program is not run.

    Raises:
        InvalidRequestError: a value cannot be used.
    """
    check_limits(asked, config, "run_timeout", "compile_timeout")
    files = _files(asked.files, config.limits)
    try:
        return RunRequest(
            asked.code,
            language=asked.language,
            timeout=asked.run_timeout if asked.run_timeout > 0 else 1.0,
            compile_timeout=asked.compile_timeout if asked.compile_timeout > 0 else None,
            memory_mb=asked.memory_limit_MB if asked.memory_limit_MB > 0 else None,
            stdin=asked.stdin or "",
            files=files,
            fetch_files=asked.fetch_files,
            env=asked.env,
        )
    except OptionError as error:
        raise problem(error.field, str(error)) from None


def session_request(asked: CreateSessionRequest | RunJupyterRequest, config: ServerConfig) -> SessionRequest:
    """Return the session that `POST /sessions` or `/run_jupyter` asks for.

    Raises:
        InvalidRequestError: a value cannot be used.
    """
    timeouts = ("total_timeout", "cell_timeout") if isinstance(asked, RunJupyterRequest) else ()
    check_limits(asked, config, *timeouts)
    files = _files(asked.files, config.limits)
    memory = asked.memory_limit_MB if asked.memory_limit_MB > 0 else None
    try:
        if isinstance(asked, CreateSessionRequest):
            return SessionRequest(files=files, env=asked.env, memory_mb=memory)
        request = SessionRequest(files=files, memory_mb=memory, hint="\n".join(asked.cells))
        for at, name in enumerate(asked.fetch_files):
            check_name(name, absolute=True, field=("fetch_files", at))
        return request
    except OptionError as error:
        raise problem(error.field, str(error)) from None


def check_limits(asked: BaseModel, config: ServerConfig, *timeouts: str) -> None:
    """Check the time-outs, which are fields of what a client asks for, and the memory, if that is one.

    Raises:
        InvalidRequestError: it is more than a request may ask for.
    """
    limits = dict.fromkeys(timeouts, config.max_timeout) | {"memory_limit_MB": config.max_memory_mb}
    for field, most in limits.items():
        value = getattr(asked, field, 0)
        if value > most:
            shown = most if isinstance(most, int) else f"{most:g}"
            raise problem((field,), f"Input should be less than or equal to {shown}", "less_than_equal", value)


def _files(given: Mapping[str, str | None], limits: LimitsConfig) -> dict[str, bytes]:
    """Return the files of a request; those without content are left out, as SandboxFusion does.

    Raises:
        InvalidRequestError: a name leads through another file or is a folder's, a content is not base64, or it is too
            much.
    """
    files = {}
    for name, content in given.items():
        if content is None or SKIPPED_FILES in name:
            continue
        if name.endswith("/"):
            raise problem(("files", name), "A file's name should not be a folder's", value=name)
        try:
            files[name] = base64.b64decode(content)
        except (binascii.Error, ValueError) as error:
            raise problem(("files", name), f"Input should be base64: {error}", "base64_decode") from None
    places = {PurePosixPath(name): name for name in files}
    for place, name in places.items():
        if any(folder in places for folder in place.parents):
            raise problem(("files", name), "A file's name should not lead through another file", value=name)
    inodes = len({place for name in files for place in (name, *PurePosixPath(name).parents)}) + OWN_INODES
    if files and inodes > limits.inodes:
        most = f"The files and their folders should be at most {limits.inodes - OWN_INODES}"
        raise problem(("files",), most, "too_long", inodes - OWN_INODES)
    size = sum(map(len, files.values()))
    if size > limits.disk_mb * MIB:
        raise problem(("files",), f"The files should have at most {limits.disk_mb} MiB", "too_long", size)
    too_large = next((name for name, data in files.items() if len(data) > limits.file_mb * MIB), None)
    if too_large is not None:
        raise problem(("files", too_large), f"A file should have at most {limits.file_mb} MiB", "too_long")
    return files
