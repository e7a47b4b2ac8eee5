"""`confine`: what a process of a `ProcessPool` gives up before it is sent the first hostile text.

The layers are those of the local sandbox's level `landlock`, and so are the modules: they need only the standard
library. The program `child.py` imports this file without the rest of toolgym.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable

from toolgym.tools.sandbox.local.kernel import landlock, seccomp, syscalls
from toolgym.tools.sandbox.local.kernel.syscall_batch import SyscallBatch

READABLE = ("/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
"""Parts of the system that Python and its libraries read."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def confine(readable: Iterable[str]) -> None:
    """Let this process read these paths and the system's libraries, and do nothing to files, other processes and the
    network from now on. It keeps its open descriptors. Raises OSError if the machine offers a layer that then fails.

    On a machine without Landlock the files of the user stay readable; on one without seccomp, or another system than
    Linux, only the limits of time and memory hold.
    """
    if sys.platform != "linux":
        return
    batch = SyscallBatch()
    batch.add("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    abi = landlock.abi()
    rules = landlock.Ruleset([*READABLE, *readable], DEVICES) if abi else None
    if rules is not None:
        rules.write(batch, (), (), _free_descriptor(), network=False)
    batch.add("capset", struct.pack("Ii", syscalls.CAPABILITY_VERSION, 0), bytes(24))
    if seccomp.supported():
        seccomp.write(batch, seccomp.outer_filter(needs=()))
        seccomp.write(
            batch,
            seccomp.child_filter(
                fork=False,
                network=False,
                sockets=False,
                frozen=seccomp.METADATA,
                own_only=True,
                truncate=abi >= 3,
                signals=abi >= landlock.SCOPED_SINCE,
                reserve=False,
                processes=False,
            ),
        )
    batch.run()
    for fd in rules.descriptors if rules is not None else ():
        os.close(fd)


def _free_descriptor() -> int:
    """The lowest number that the next descriptor gets."""
    fd = os.open("/", os.O_PATH)
    os.close(fd)
    return fd
