"""The options of a run and of a session: the same names, meanings and checks on every sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypedDict

from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.sandbox.names import OptionError, check_env, check_name, positive


class RunOptions(TypedDict, total=False):
    """Options of `Sandbox.run`.

    Attributes:
        language: the program's language. Default: `"python"`.
        timeout: wall seconds until the program and all that it started are killed; the time that the call waits for a
            free place does not count. Default: 30.
        compile_timeout: wall seconds for the compiler of languages that have one. Default: `timeout`.
        memory_mb: memory of all its processes together in MiB. Default: the sandbox's own limit. A `ProcessSandbox`
            refuses it.
        stdin: what the program can read from standard input.
        files: files to put into its folder first, by relative name.
        fetch_files: names of files to bring back afterwards, however the run ended; `/tmp/…` is fine too.
        env: further environment variables. SandboxFusion's API has none, and refuses them.
    """

    language: str
    timeout: float
    compile_timeout: float | None
    memory_mb: int | None
    stdin: str
    files: Mapping[str, bytes] | None
    fetch_files: Sequence[str]
    env: Mapping[str, str] | None


class SessionOptions(TypedDict, total=False):
    """Options of `Sandbox.session`.

    Attributes:
        files: files to put into its folder first, by relative name.
        env: further environment variables.
        memory_mb: memory of all its processes together in MiB, forks and checkpoints included. Default: the sandbox's
            own limit.
        hint: code that will run in it, where all of it is known. A sandbox may use it to open the session sooner, or
            ignore it; what the session can do is the same.
    """

    files: Mapping[str, bytes] | None
    env: Mapping[str, str] | None
    memory_mb: int | None
    hint: str | None


@dataclass(frozen=True)
class RunRequest:
    """One run, checked: what `Sandbox.execute` gets. The attributes are those of `RunOptions`, and the code.

    Raises:
        OptionError: a value cannot be used; says which.
    """

    code: str
    language: str = "python"
    timeout: float = 30.0
    compile_timeout: float | None = None
    memory_mb: int | None = None
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("code", "language", "stdin"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{name} must be a text, got {getattr(self, name)!r}", name)
        positive("timeout", self.timeout)
        if self.compile_timeout is not None:
            positive("compile_timeout", self.compile_timeout)
        _check_start(self.files, self.env, self.memory_mb)
        if isinstance(self.fetch_files, str):
            raise OptionError(f"fetch_files must be a list of names, got {self.fetch_files!r}", "fetch_files")
        for at, name in enumerate(self.fetch_files):
            check_name(name, absolute=True, field=("fetch_files", at))

    @classmethod
    def of(cls, code: str, options: Mapping[str, Any]) -> RunRequest:
        """Return the request for a call's options. Raises UnknownNameError for an option that there is not."""
        return cls(code, **_known(options, cls, "run"))


@dataclass(frozen=True)
class SessionRequest:
    """One session to open, checked: what `Sandbox.open_session` gets. The attributes are those of `SessionOptions`.

    Raises:
        OptionError: a value cannot be used; says which.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int | None = None
    hint: str | None = None

    def __post_init__(self) -> None:
        _check_start(self.files, self.env, self.memory_mb)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SessionRequest:
        """Return the request for a call's options. Raises UnknownNameError for an option that there is not."""
        return cls(**_known(options, cls, "session"))


def _known(options: Mapping[str, Any], request: type[RunRequest | SessionRequest], call: str) -> dict[str, Any]:
    """Return the options that were given; None stands for the default."""
    known = {item.name: item for item in fields(request) if item.name != "code"}
    for name in options:
        if name not in known:
            raise UnknownNameError(
                f"{call}() has no option {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}."
            )
    has_default = {name for name, item in known.items() if item.default_factory is not MISSING}
    return {name: value for name, value in options.items() if value is not None or name not in has_default}


def _check_start(files: Mapping[str, bytes], env: Mapping[str, str], memory_mb: int | None) -> None:
    """Check what runs and sessions have in common."""
    for name, data in files.items():
        check_name(name, field=("files", name))
        if not isinstance(data, bytes | bytearray | memoryview):
            raise OptionError(f"the file {name!r} must be bytes, got {type(data).__name__}", "files", name)
    check_env(env)
    if memory_mb is not None:
        positive("memory_mb", memory_mb)
