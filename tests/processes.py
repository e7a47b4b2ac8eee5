"""Programs that tests start end with the tests, however those end."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_the_tests() -> None:
    """For `preexec_fn`: Linux kills the program when the thread that started it ends, killed or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
