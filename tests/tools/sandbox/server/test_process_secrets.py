"""A secret that a process hides from other processes of its user."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from toolgym.tools.serving.process_secrets import hide_secrets
hide_secrets([sys.argv[1]])
print(sys.argv[1], "TOKEN" in os.environ, flush=True)
sys.stdin.read()
"""

READ = """
import sys
for name in ("cmdline", "environ", "mem"):
    try:
        with open(f"/proc/{sys.argv[1]}/{name}", "rb") as file:
            print(name, b"hidden" in file.read(4096))
    except OSError as error:
        print(name, type(error).__name__)
"""


def without_capabilities():
    """As an ordinary user of the same id would be: root may read every process."""
    for number in range(64):
        ctypes.CDLL(None).prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="what /proc shows")
def test_neither_command_line_nor_environment_nor_memory_shows_a_hidden_secret():
    secret = "hidden-from-others"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, secret],
        env={"TOKEN": secret, "PYTHONPATH": ":".join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == f"{secret} False\n", "it still has the secret itself"
        command = [sys.executable, "-c", READ, str(process.pid)]
        shown = subprocess.run(command, preexec_fn=without_capabilities, capture_output=True, text=True).stdout
        assert shown == "cmdline False\nenviron PermissionError\nmem PermissionError\n"
        assert b"xxxxxx" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.stdin.close()
