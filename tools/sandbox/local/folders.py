"""Removing a folder, whatever a program has put into it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

REMOVE_TIMEOUT = 60.0
"""Seconds for the removal of one folder."""


def remove(folder: str) -> None:
    """Remove a folder: also trees too deep for Python, and folders without permissions. Never raises."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            for command in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
                subprocess.run(command, capture_output=True, check=False, timeout=REMOVE_TIMEOUT)
