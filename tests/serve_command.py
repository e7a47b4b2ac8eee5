"""`toolgym serve …` as a user starts it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import signal
import subprocess
import sys

from tests.processes import end_with_the_tests


@dataclasses.dataclass
class Command:
    """The command, running."""

    url: str
    process: subprocess.Popen

    def stop(self, number=signal.SIGTERM):
        """Send a signal and wait for the end. Returns the exit status and what was logged."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=120)
        return self.process.returncode, log


@contextlib.contextmanager
def running(what, *flags, cwd=None, nofile=None, **variables):
    """The command for `what` with flags, on any free port; with at most `nofile` open files, if it is given."""
    limited = ["sh", "-c", f'ulimit -n {nofile}; exec "$@"', "-"] if nofile else []
    process = subprocess.Popen(
        [*limited, sys.executable, "-m", "toolgym", "serve", what, "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **variables},
        preexec_fn=end_with_the_tests,
    )
    try:
        ready, _, _ = select.select([process.stdout], [], [], 300)
        found = re.search(r"http://\S+", process.stdout.readline() if ready else "")
        if found is None:
            process.terminate()
            raise AssertionError(process.communicate(timeout=60)[1])
        yield Command(found[0], process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=60)
        process.stdout.close()
        process.stderr.close()
