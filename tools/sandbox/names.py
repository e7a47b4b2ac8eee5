"""Checks of values that callers of a sandbox hand in: names of files, environment variables, numbers.

Each returns the value, or raises `OptionError` with `field`, the place that the value has in its call's options.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from toolgym.tools.errors import ConfigError

MAX_PART = 255
"""Bytes between two slashes of a file's name: the kernel's limit."""

MAX_DEPTH = 64
"""Parts of a file's name: the folders that it leads through, and the file."""

MAX_NAME = 4096
"""Bytes of a file's whole name: the kernel's limit."""

MAX_LABEL = 200
MAX_FOLDERS = 32
MAX_REASONS = 10


class OptionError(ConfigError):
    """One value among the options of a call cannot be used.

    `field` is its place: the option's name, and behind it the key or index inside of the option.
    """

    def __init__(self, message: str, *field: str | int) -> None:
        super().__init__(message)
        self.field = field


def check_name(name: str, *, absolute: bool = False, up: bool = False, field: Sequence[str | int] = ()) -> str:
    """Check the name of a file in a sandbox's folder; with `absolute` also `/tmp/…`, with `up` also `..`."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise OptionError(f"a file's name must be a non-empty text without NUL, got {name!r}", *field)
    path = PurePosixPath(name.removeprefix("/tmp/") if absolute else name)
    if path.is_absolute() or (".." in path.parts and not up) or not path.parts:
        raise OptionError(f"a file's name must stay inside the sandbox's folder, got {name[:200]!r}", *field)
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise OptionError(f"a file's name must be valid Unicode, got {name[:200]!r}", *field) from None
    if max(sizes) > MAX_PART or len(sizes) > MAX_DEPTH or sum(sizes) + len(sizes) > MAX_NAME:
        raise OptionError(
            f"a file's name must have at most {MAX_PART} bytes between slashes, {MAX_DEPTH} parts and {MAX_NAME} bytes "
            f"in all, got {name[:200]!r}",
            *field,
        )
    return name


def check_files(names: Iterable[str]) -> None:
    """Check names of files that are to be written beside each other; none may lead through another one."""
    places: dict[PurePosixPath, str] = {}
    for name in names:
        check_name(name, field=("files", name))
        if name.endswith(("/", "/.")):
            raise OptionError(f"a file's name must not be a folder's, got {name[:200]!r}", "files", name)
        places[PurePosixPath(name)] = name
    for place, name in places.items():
        for folder in place.parents:
            if folder in places:
                text = f"the file {name[:200]!r} leads through another file, {places[folder][:200]!r}"
                raise OptionError(text, "files", name)


def fetchable(names: Iterable[str], *, absolute: bool) -> tuple[list[str], list[str]]:
    """Return the names that files in a sandbox's folder can have, and the reasons against the others."""
    good, refused = [], []
    for name in dict.fromkeys(names):
        try:
            good.append(check_name(name, absolute=absolute))
        except OptionError:
            refused.append(f"{name[:200]!r} is no name of a file in the sandbox's folder")
    return good, refused


def not_fetched(why: Sequence[str]) -> str:
    shown = [*why[:MAX_REASONS], *([f"and {len(why) - MAX_REASONS} more"] if len(why) > MAX_REASONS else [])]
    return f"not fetched: {'; '.join(shown)}" if shown else ""


def unused_stem(patterns: Iterable[str], files: Iterable[str]) -> str:
    """Return the first of `main`, `main_1`, `main_2` … for `{main}` in `patterns` that makes no name of `files`."""
    taken = {PurePosixPath(name).parts[0] for name in files}
    wanted = [pattern for pattern in patterns if "{main}" in pattern]
    for stem in itertools.chain(["main"], (f"main_{number}" for number in itertools.count(1))):
        if not any(pattern.replace("{main}", stem) in taken for pattern in wanted):
            return stem
    raise AssertionError("there are more numbers than files")


def check_path(name: str, *, field: Sequence[str | int] = ()) -> str:
    """Check the name of a file or folder of a session: relative and below its folder, or absolute and anywhere."""
    if name in (".", "/"):
        return name
    is_absolute = isinstance(name, str) and name.startswith("/")
    check_name(name.lstrip("/") if is_absolute else name, up=is_absolute, field=field)
    return name


def check_folders(names: Sequence[str]) -> tuple[str, ...]:
    """Check absolute names of further folders of a session, and return them sorted."""
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) > MAX_FOLDERS:
        raise OptionError(f"folders must be a list of at most {MAX_FOLDERS} absolute names, got {names!r}", "folders")
    for at, name in enumerate(names):
        check_path(name, field=("folders", at))
        if name[:1] != "/" or name == "/" or ".." in name.split("/") or str(PurePosixPath(name)) != name:
            problem = f"a folder's name must be absolute and in its shortest form, for example '/app', got {name!r}"
            raise OptionError(problem, "folders", at)
    for outer, inner in itertools.permutations(names, 2):
        if f"{inner}/".startswith(f"{outer}/"):
            raise OptionError(f"the folder {inner!r} lies in {outer!r}: name the outer one, once", "folders")
    return tuple(sorted(names))


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in env.items():
        bad = not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name
        if bad or "\0" in name + value or name + value != (name + value).encode(errors="ignore").decode():
            problem = f"an environment variable needs a name without '=' and a text, got {name!r}: {value!r}"
            raise OptionError(problem, "env", str(name))
    return env


def check_command(command: Sequence[str] | str) -> list[str] | str:
    """Check the words of a command, or one text for a shell."""
    words = [command] if isinstance(command, str) else command
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise OptionError(f"command must be a list of words, or a text for a shell, got {command!r}", "argv")
    if not words[0] or any("\0" in word for word in words):
        raise OptionError("command must not begin with an empty word, and no word can hold a NUL character", "argv")
    return command if isinstance(command, str) else list(command)


def check_label(name: str) -> str:
    """Check the name of a checkpoint, which is a part of a URL too."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_LABEL or not name.isprintable() or name in (".", ".."):
        rule = f"1 to {MAX_LABEL} printable characters, and not '.' or '..'"
        raise OptionError(f"a checkpoint's name must be {rule}, got {name!r}", "name")
    return name


def positive(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{name} must be a positive number, got {value!r}", name)
    return value
