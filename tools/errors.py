"""Every error that toolgym raises, in one tree.

What a model did wrong is never raised: it becomes an observation that the model reads.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class ToolgymError(Exception):
    """Root of the tree: catch this to catch everything that toolgym raises on purpose."""


class ConfigError(ToolgymError, ValueError):
    """A configuration value, file or argument is not usable."""


class UnknownNameError(ConfigError, LookupError):
    """A name (env id, tool, file, option) is not known. The message has the nearest known one."""


class UnknownArgumentError(UnknownNameError, TypeError):
    """A function takes no keyword argument of that name. The message has the nearest one that it takes."""


class MissingExtraError(ToolgymError, ImportError):
    """A feature needs an optional dependency that is not installed, or is too old."""


class EpisodeError(ToolgymError, RuntimeError):
    """An env was used out of order, for example `step` before `reset` or after the episode ended."""


class ForkNotSupportedError(ToolgymError, NotImplementedError):
    """`fork` was called on something that cannot be forked."""


class SandboxError(ToolgymError, RuntimeError):
    """A sandbox could not do what was asked (a failed *run* is an `ExecutionResult`, not an error). Subclasses are
    split by what the caller should do; otherwise sandbox and session live on."""


class SandboxUnavailableError(SandboxError):
    """It cannot be set up, or its servers cannot be reached: fix the set-up, try later, or use another server."""


class SandboxUnsupportedError(SandboxError):
    """This sandbox can never do that, for example fork at the level `landlock`: use another sandbox or level."""


class SessionForkError(SandboxUnsupportedError, ForkNotSupportedError):
    pass


class SandboxBusyError(SandboxError):
    """The sandbox has no room for another session or process: close some, or wait, and try again."""


class SandboxClosedError(SandboxError):
    """The sandbox was closed, or belongs to another process or event loop: make one where it is used."""


class SessionLostError(SandboxError):
    """The session was closed or has died, and its state is gone: open a new one, or fork one of its checkpoints."""


class SandboxFileError(SandboxError):
    """A session's files or folders do not allow an action. If Python has an error for the reason, it is raised as a
    subclass that is that error too, so that `except FileNotFoundError` works."""


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    pass


class SandboxFileExistsError(SandboxFileError, FileExistsError):
    pass


class SandboxIsADirectoryError(SandboxFileError, IsADirectoryError):
    pass


class SandboxNotADirectoryError(SandboxFileError, NotADirectoryError):
    pass


class SandboxPermissionError(SandboxFileError, PermissionError):
    """The session's user may not do that, or the place is read-only."""


class NoSessionError(ToolgymError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"no session {name[:80]!r}: it was never opened, was closed or idle for too long, or what held it has died"
        )


class EngineError(ToolgymError, RuntimeError):
    """An engine could not generate: unreachable, refused the request, died."""


class EngineUnsupportedError(EngineError):
    """An engine cannot do what it was asked for, however often it is asked."""


class MissingLogprobsError(EngineError):
    """An engine sampled `tokens` ids, and did not say the log-probability of each: none can be trained on."""

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(text)
        self.tokens = tokens


class EngineUnavailableError(EngineError, ConnectionError):
    pass


class ClusterError(ToolgymError, RuntimeError):
    """A Ray cluster could not do what was asked: no worker can be started, or its rate limiter does not answer."""


class RetrievalError(ToolgymError, ConnectionError):
    """A retriever failed: unreachable, overloaded, or its answer made no sense."""


class RemoteSessionError(ToolgymError, ConnectionError):
    """A session server failed: unreachable, overloaded, its backend broke, or it does not know the session."""


class TemplateError(ToolgymError, ValueError):
    """A chat template cannot be extended turn by turn without changing what the model already saw."""


class BatchError(ToolgymError, ValueError):
    """Trajectories cannot become a batch, or a batch broke one of its invariants."""


_ABOUT_A_FILE = (
    SandboxFileError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def is_infrastructure(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised `from`, is the infrastructure's: of the network, the disk, a
    sandbox or an engine. That a file is not there, or may not be read, is about what was asked for."""
    while error is not None:
        if isinstance(error, OSError | SandboxError | EngineError) and not isinstance(error, _ABOUT_A_FILE):
            return True
        error = error.__cause__
    return False


MAX_NAME = 200
"""Characters of a name for which the nearest known name is searched."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `", did you mean 'x'?"` for the known name nearest to `name`, or an empty string."""
    if len(name) > MAX_NAME:  # the policy may have written it
        return ""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {matches[0]!r}?" if matches else ""


def missing_file(what: str, path: Path) -> UnknownNameError:
    """Build the error for a file or folder that is not there; it names the nearest one beside it."""
    siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    return UnknownNameError(f"no {what} at {str(path)!r}{nearest(path.name, siblings)}")


def check_seconds(**seconds: float | None) -> None:
    """None passes."""
    for name, value in seconds.items():
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")


def require_whole_number(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{name} must be a whole number, at least {at_least}, got {value!r}")


def finite_number(value: Any) -> float | None:
    """Return a number as a float, also a number of NumPy and a tensor of one element. None if the value is not a finite
    number; a text is not a number."""
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray | None) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one is torch's
        return None
    return number if math.isfinite(number) else None


def require_number(name: str, value: Any) -> float:
    """Return a value as `finite_number` does. Raises `ConfigError` if it is not a finite number."""
    number = finite_number(value)
    if number is None:
        hint = " (a function without `return` returns None)" if value is None else ""
        raise ConfigError(f"{name} a finite number, got {shorten(repr(value))}{hint}")
    return number


def require_seed(seed: object) -> None:
    if seed is not None:
        require_whole_number("seed", seed, at_least=0)


MAX_KEY = 1000
"""Characters of the `repr` of a missing key that is read."""


def error_text(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    if (
        name == "KeyError" and 0 < len(text) <= MAX_KEY
    ):  # its text is the `repr` of the key; by name, as a replayed one has another class
        try:
            key = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            key = None
        text = key if isinstance(key, str) and " " in key else f"there is no key {text}"
    return f"{name}: {text}" if text else name


def shorten(value: object, most: int = 300) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def on_one_line(text: str) -> str:
    """Return a text for a log, which may hold what a policy wrote: shortened, and with everything that breaks a line or
    that a terminal obeys written as an escape.

    >>> on_one_line("a\\n\\x1b[2Jb")
    'a\\\\n\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), shorten(text))


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
