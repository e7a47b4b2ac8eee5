"""A worker process that is asked to stop many times while it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from tests.serve_command import running


def test_signals_while_a_worker_ends_leave_no_trace():
    with running("openenv", "CodeInterpreter-v0") as server:
        [worker] = psutil.Process(server.process.pid).children()
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):  # until it is gone
            end = time.monotonic() + 60
            while time.monotonic() < end:
                os.kill(worker.pid, signal.SIGTERM)
        _, log = server.process.communicate(timeout=60)
    assert (server.process.returncode, log) == (0, "")
