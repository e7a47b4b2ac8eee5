"""A program does in the sandbox what it does as `python main.py`: the same output, errors and return code.

Each is run both ways, at every level of this machine. What the isolation forbids is not in here, nor what is otherwise
on purpose: lines leave a program as they are printed, and a limit that it ran into has a status of its own.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tools.sandbox.plain_python import PYTHONS, comparable, plainly
from toolgym.tools.sandbox.local import LocalSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

INPUT = "3\n1 2\n3 4\r\n\nlast"
WRITTEN = re.split(r"^=== (.+)\n", Path(__file__).with_name("like_python.txt").read_text(), flags=re.MULTILINE)[1:]
PROGRAMS = {
    **dict(zip(WRITTEN[::2], (code.strip() + "\n" for code in WRITTEN[1::2]), strict=True)),
    "fails: with a BOM and CRLF": "\ufeffdef f():\r\n    return 1 / 0\r\nf()\r\n",
    "fails: with odd ends of lines": "import traceback\ns = 'a\u2028b\x85c\x0cd'\n\x0c\ntry:\n    1 / 0\n"
    "except Exception:\n    traceback.print_exc()",
    "fails: cut short": "def f():",
    "fails: with a NUL": "x = 1\ny = '\0'\n",
    "fails: with half a pair": "x = '\ud800'",
    "fails: with mixed indentation": "if 1:\n\tx = 1\n        y = 2",
}
FORBIDDEN = {"namespaces": (), "uid": ("starts",), "landlock": ("has", "starts")}
"""Groups of programs that a level does not allow: `landlock` has no processes, `namespaces` alone has /dev/shm."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PYTHONS)
async def sandbox(request):
    async with LocalSandbox(level=request.param, python=PYTHONS[request.param], preload=()) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_does_what_it_does_without_a_sandbox(request, sandbox, tmp_path, name):
    level = request.node.callspec.params["sandbox"]
    if name.partition(":")[0] in FORBIDDEN[level]:
        pytest.skip("not at this level")
    expected, result = await asyncio.gather(
        asyncio.to_thread(plainly, PYTHONS[level], PROGRAMS[name], tmp_path, INPUT),
        sandbox.run(PROGRAMS[name], stdin=INPUT),
    )
    assert comparable(result.stdout) == comparable(expected.stdout)
    assert comparable(result.stderr) == comparable(expected.stderr)
    assert result.return_code == expected.returncode


async def test_what_was_not_closed_is_in_the_files_that_come_back():
    code = "f = open('out', 'w')\nf.write('all of it')\ndef g(): return f\nprint('end')"
    for level, python in PYTHONS.items():
        async with LocalSandbox(level=level, python=python, preload=()) as sandbox:
            result = await sandbox.run(code, fetch_files=["out"])
            assert dict(result.files) == {"out": b"all of it"}


async def test_a_file_beside_the_program_comes_before_a_library():
    files = {"queue.py": b"NAME = 'mine'", "json/__init__.py": b"NAME = 'mine too'", "os.py": b"1 / 0"}
    code = "import json, os, queue\nprint(queue.NAME, json.NAME, os.sep)"
    for level, python in PYTHONS.items():
        async with LocalSandbox(level=level, python=python, preload=()) as sandbox:
            result = await sandbox.run(code, files=files)
            assert (result.stdout, result.stderr) == ("mine mine too /\n", "")
