"""The limiting control group that the whole suite runs in, so that a hole costs a test and not the machine.

Version 1 (memory and pids) or version 2, whichever lets us make a group below our own. Where neither does, the suite
says so and goes on without.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

MEMORY = 4 << 30
PROCESSES = 700
ROOT = Path("/sys/fs/cgroup")


class Cage:
    """A control group around this process and all that it starts from now on.

    Attributes:
        description: what limits there are, or why there are none.
        active: whether there are any.
    """

    def __init__(self) -> None:
        self._entered: list[tuple[Path, Path]] = []
        problems = []
        for enter in (self._enter_version_1, self._enter_version_2):
            try:
                enter()
                break
            except OSError as error:
                problems.append(str(error))
                self.leave()
        self.active = bool(self._entered)
        self.description = (
            f"memory {MEMORY >> 20} MB, {PROCESSES} processes ({self._entered[0][0]})"
            if self.active
            else f"no limiting control group on this machine: {'; '.join(problems)}"
        )

    def leave(self) -> None:
        """Back to where we came from. What was left behind in the group is killed."""
        for group, home in self._entered:
            with contextlib.suppress(OSError):
                (home / "cgroup.procs").write_text(str(os.getpid()))
            deadline = time.monotonic() + 30
            while group.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError, ValueError):
                    for pid in (group / "cgroup.procs").read_text().split():
                        os.kill(int(pid), 9)
                with contextlib.suppress(OSError):
                    for child in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                        child.rmdir()
                    group.rmdir()
                time.sleep(0.02)
        self._entered = []

    def _enter_version_1(self) -> None:
        homes = _own_groups()
        for controller, settings in (
            ("memory", {"memory.limit_in_bytes": str(MEMORY)}),
            ("pids", {"pids.max": str(PROCESSES)}),
        ):
            if controller not in homes:
                raise OSError(f"no version 1 controller {controller}")
            home = ROOT / controller / homes[controller].lstrip("/")
            group = home / f"toolgym-abuse-{os.getpid()}"
            group.mkdir()
            self._entered.append((group, home))
            for name, value in settings.items():
                (group / name).write_text(value)
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def _enter_version_2(self) -> None:
        homes = _own_groups()
        if "" not in homes or not (ROOT / "cgroup.controllers").exists():
            raise OSError("no version 2 hierarchy with controllers")
        home = ROOT / homes[""].lstrip("/")
        group = home / f"toolgym-abuse-{os.getpid()}"
        group.mkdir()
        self._entered.append((group, home))
        # Controllers reach a child only when no process stays in the parent; so this works in the root group, and in a
        # delegated one that holds us alone.
        (group / "cgroup.procs").write_text(str(os.getpid()))
        (home / "cgroup.subtree_control").write_text("+memory +pids")
        (group / "memory.max").write_text(str(MEMORY))
        (group / "pids.max").write_text(str(PROCESSES))


def _own_groups() -> dict[str, str]:
    """This process's group per controller; the empty name is version 2's."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups
