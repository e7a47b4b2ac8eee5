"""The options of a run and of a session: the same names, meanings and checks on every sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.sandbox.names import OptionError, check_env, check_files, check_folders, positive

Network = Literal["off", "loopback", "host"]
"""What programs reach: nothing, a network of their own, or the host's."""


Idle = Literal["pause", "run"]
"""What the threads of a session do while no cell and no program runs."""


class RunOptions(TypedDict, total=False):
    """Options of `Sandbox.run`.

    Attributes:
        language: the program's language. Default: `"python"`.
        timeout: wall seconds until the program is killed with all that it started, without the wait for a free place.
            Default: 30.
        compile_timeout: wall seconds for the compiler of languages that have one. Default: `timeout`.
        memory_mb: memory of all its processes together in MiB. Default: the sandbox's limit. A `ProcessSandbox`
            refuses it.
        output_bytes: bytes of stdout and of stderr to keep, above the sandbox's limit. A server has its own setting.
        stdin: what it reads from standard input. Default: nothing.
        files: files to put into its folder first, by relative name. The program's own source is `main.py` (or as its
            language calls it), and `main_1.py` if that is one of these.
        fetch_files: names of files to bring back afterwards, however the run ended; `/tmp/…` is fine too. The result's
            `message` names those that could not be fetched.
        env: further environment variables; SandboxFusion's API refuses them.
    """

    language: str
    timeout: float
    compile_timeout: float | None
    memory_mb: int | None
    output_bytes: int | None
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
            limit; so are the next three.
        file_mb: size of one file in MiB.
        disk_mb: everything written to its folders together, in MiB. At the level `namespaces` it is kept in memory.
        inodes: files and folders at once.
        network: `off`, `loopback` (its own), or `host`, if the sandbox's owner allows it. Default: as the sandbox.
        folders: further folders to write to, by absolute names that its world does not have yet: `("/app", "/logs")`.
            They are empty, are forked with it, and count like the others. Needs the level `namespaces`.
        image: an image as its root: `FILE` or `FILE#NAME`, where FILE is an OCI layout (a folder, or an archive of one)
            or what `docker save` wrote. See `docs/task_images.md`. A `LocalSandbox` at the level `namespaces` takes it.
        hint: all code that will run in it, if known. A sandbox may use it to open the session sooner.
        recover: whether a cell that ends or hangs its interpreter leaves the session's variables as they were before
            the cell (`CellResult.recovered`). Default: false, but true for the sessions of tools. It costs each cell a
            fork of the interpreter. Not at the level `landlock`.
        idle: `pause` stops the threads of its interpreter while no cell and no program runs; `run` does not. Default:
            `pause`. Processes that a cell started run on.
    """

    files: Mapping[str, bytes] | None
    env: Mapping[str, str] | None
    memory_mb: int | None
    file_mb: int | None
    disk_mb: int | None
    inodes: int | None
    network: Network | None
    folders: Sequence[str] | None
    image: str | None
    hint: str | None
    recover: bool | None
    idle: Idle | None


@dataclass(frozen=True)
class RunRequest:
    """A checked run, for `Sandbox.execute`: the code and `RunOptions`. Raises OptionError for an unusable value."""

    code: str
    language: str = "python"
    timeout: float = 30.0
    compile_timeout: float | None = None
    memory_mb: int | None = None
    output_bytes: int | None = None
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("code", "language", "stdin"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{name} must be a text, got {getattr(self, name)!r}", name)
        positive("timeout", self.timeout)
        for name in ("compile_timeout", "output_bytes"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        _check_start(self.files, self.env, self.memory_mb)
        if isinstance(self.fetch_files, str):
            raise OptionError(f"fetch_files must be a list of names, got {self.fetch_files!r}", "fetch_files")
        for at, name in enumerate(self.fetch_files):
            if not isinstance(name, str):
                raise OptionError(f"fetch_files must be a list of names, got {name!r}", "fetch_files", at)

    @classmethod
    def of(cls, code: str, options: Mapping[str, Any]) -> RunRequest:
        """Raise UnknownNameError for an option that does not exist."""
        return cls(code, **_known(options, cls, "run"))


@dataclass(frozen=True)
class SessionRequest:
    """A checked session to open, for `Sandbox.open_session`. Raises OptionError for an unusable value."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int | None = None
    file_mb: int | None = None
    disk_mb: int | None = None
    inodes: int | None = None
    network: Network | None = None
    folders: Sequence[str] = field(default_factory=tuple)
    image: str | None = None
    hint: str | None = None
    recover: bool | None = None
    idle: Idle | None = None

    def __post_init__(self) -> None:
        _check_start(self.files, self.env, self.memory_mb)
        for name in ("file_mb", "disk_mb", "inodes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}", name)
        if self.network is not None and self.network not in get_args(Network):
            known = ", ".join(map(repr, get_args(Network)))
            raise OptionError(f"network must be one of {known}, got {self.network!r}", "network")
        if self.recover is not None and type(self.recover) is not bool:
            raise OptionError(f"recover must be true or false, got {self.recover!r}", "recover")
        if self.idle is not None and self.idle not in get_args(Idle):
            known = ", ".join(map(repr, get_args(Idle)))
            raise OptionError(f"idle must be one of {known}, got {self.idle!r}", "idle")
        check_folders(self.folders)
        if self.image is not None and (not isinstance(self.image, str) or not self.image):
            raise OptionError(f"image must be FILE or FILE#NAME, got {self.image!r}", "image")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SessionRequest:
        """Raise UnknownNameError for an option that does not exist."""
        return cls(**_known(options, cls, "session"))


def _known(options: Mapping[str, Any], request: type[RunRequest | SessionRequest], call: str) -> dict[str, Any]:
    """Return the options that differ from the default; None stands for that."""
    known = {item.name: item for item in fields(request) if item.name != "code"}
    for name in options:
        if name not in known:
            raise UnknownNameError(
                f"{call}() has no option {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}."
            )
    has_default = {name for name, item in known.items() if item.default_factory is not MISSING}
    return {name: value for name, value in options.items() if value is not None or name not in has_default}


def _check_start(files: Mapping[str, bytes], env: Mapping[str, str], memory_mb: int | None) -> None:
    check_files(files)
    for name, data in files.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise OptionError(f"the file {name!r} must be bytes, got {type(data).__name__}", "files", name)
    check_env(env)
    if memory_mb is not None:
        positive("memory_mb", memory_mb)
