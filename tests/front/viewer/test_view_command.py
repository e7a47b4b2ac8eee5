"""`toolgym view`: how it is called."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.viewer.command import command

DEMO = Path(__file__).parents[3] / "front/viewer/demo"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "say what to show"),
        ({"demo": True, "path": DEMO}, "say what to show"),
        ({"demo": True}, "no terminal here: write a page with --html OUT.html"),
        ({"demo": True, "html": Path("a.html"), "serve": True}, "choose between them"),
        ({"path": DEMO / "none.jsonl"}, "no trajectories at"),
        ({"demo": True, "query": "rewrd=1"}, "did you mean 'reward'"),
    ],
)
def test_wrong_usage_is_an_error_of_one_line(options, why):
    with pytest.raises(ConfigError, match=why) as caught:
        command(**options)
    assert "\n" not in str(caught.value)


def test_in_a_terminal_it_shows_the_run_and_ends_with_q():
    main, other = pty.openpty()
    os.set_blocking(main, False)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-m", "toolgym", "view", "--demo"], stdin=other, stdout=other, stderr=other, env=environment
    )
    os.close(other)
    try:
        seen, stop_at = b"", time.monotonic() + 30
        while process.poll() is None and time.monotonic() < stop_at:
            if select.select([main], [], [], 0.2)[0]:
                try:
                    seen += os.read(main, 65536)
                except OSError:  # its end of the terminal is closed
                    break
            if b"arithmetic-" in seen:
                os.write(main, b"q")
        assert process.wait(timeout=20) == 0
        assert b"arithmetic-" in seen
    finally:
        process.kill()
        process.wait()
        os.close(main)
