"""The folders that programs work in where they have no file system of their own: made, removed, swept."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import subprocess
import tempfile

from toolgym.tools.sandbox.local.signature import PATTERN, is_gone, signature

_PREFIX = "toolgym-sandbox-"
_NAME = re.compile(rf"{_PREFIX}{PATTERN}-.+")

REMOVE_TIMEOUT = 60.0
"""Seconds for the removal of one folder."""


def make() -> str:
    """Make a folder for all programs of a sandbox, which other users may pass through. Whoever makes it removes it.

    Raises:
        SandboxError: it cannot be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{signature(os.getpid())}-")
    except OSError as error:
        from toolgym.tools.errors import SandboxError  # of the host: a template, which imports this module, has none

        raise SandboxError(
            "at this level programs work in a folder of the host, and none can be made: mount a tmpfs at /tmp, "
            f"or name a folder that may be written to in TMPDIR ({error})"
        ) from error
    os.chmod(folder, 0o711)
    return folder


@functools.cache
def sweep() -> None:
    """Remove this user's folders of processes that were killed before they could, once."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and is_gone(match):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    remove(entry.path)


def remove(folder: str) -> None:
    """Remove a folder: also trees too deep for Python, and folders without permissions. Never raises."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # an empty one, for which no descriptor need be free
        return
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            for command in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
                subprocess.run(command, capture_output=True, check=False, timeout=REMOVE_TIMEOUT)
