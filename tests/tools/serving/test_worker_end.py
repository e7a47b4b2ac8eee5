"""A worker process that is asked to stop many times while it ends."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from tests.serve_command import running


def test_signals_while_a_worker_ends_leave_no_trace():
    with running("openenv", "CodeInterpreter-v0") as server:
        [worker] = psutil.Process(server.process.pid).children()
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):  # until it is gone
            while True:
                os.kill(worker.pid, signal.SIGTERM)
        _, log = server.process.communicate(timeout=30)
    assert (server.process.returncode, log) == (0, "")
