"""A program run by plain Python, for comparison."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.local import LocalSandbox, probe


def _usable() -> dict[str, str]:
    found = {}
    for level in probe()["levels"]:  # type: ignore[attr-defined]
        for python in (sys.executable, "/usr/bin/python3"):
            try:
                LocalSandbox(level=level, python=python)
            except SandboxError:
                continue
            found[level] = python
            break
    return found


PYTHONS = _usable()
"""The levels of this machine, and for each an interpreter: at `uid` one that other users can enter."""


def plainly(python: str, code: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program as `python main.py`, with the environment that it has in the sandbox, and input from a file."""
    (folder / "main.py").write_bytes(code.encode("utf-8", "surrogatepass"))
    given = folder.parent / f"{folder.name}.stdin"
    given.write_bytes(stdin.encode())
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "USER": "user", "LOGNAME": "user"}
    env |= {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    with given.open("rb") as file:
        done = subprocess.run(
            [python, "-s", str(folder / "main.py")],
            cwd=folder, env=env, stdin=file, capture_output=True, timeout=200, check=False,
        )  # fmt: skip
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def comparable(text: str) -> str:
    """An output without addresses, seconds, and the folder that the program was in."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x0", text)
    text = re.sub(r"\b\d+\.\d+ ?s(econds)?\b", "0s", text)
    return re.sub(r"(/[\w.@+-]+)+/main\.py", "main.py", text)
