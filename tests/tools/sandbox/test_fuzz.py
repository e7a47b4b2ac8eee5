"""Whatever comes in, a result comes back, in time. Only names that lead outside are the caller's mistake.

TOOLGYM_FUZZ sets the number of examples of each test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolgym.tools.errors import ConfigError, SandboxFileError
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox

EXAMPLES = int(os.environ.get("TOOLGYM_FUZZ", settings.default.max_examples))
TIMEOUT = 2.0
ANSWER = 120.0
"""Seconds after which a call counts as hanging."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)

# Any text that a Python string can hold: lone surrogates, NUL and all.
any_text = st.text(st.characters(exclude_categories=()), max_size=200)
any_bytes = st.binary(max_size=400)
bytes_as_text = any_bytes.map(lambda data: data.decode("utf-8", "surrogateescape"))
FRAGMENTS = (
    "import os\n", "os.close(1)\n", "os._exit(0)\n", "print('x' * 9999)\n", "raise ValueError('\xe9\\udc80')\n",
    "def f(: \n", "while True: pass\n", "import sys; sys.stdout = None\n", "input()\n", "open('a/b', 'w')\n", "1/0\n",
    "exit(-1)\n", "import threading; threading.Thread(target=print).start()\n", "class A:\n", "    pass\n",
    "\tpass\n", "async def f():\n", "await f()\n", "x = [1]*10**6\n", "\x0c", "\r",
    "#!python\n# -*- coding: latin-1 -*-\n", "# coding: nonsense\n", "\ufeff", "from __future__ import annotations\n",
    "globals().clear()\n", "del __builtins__\n", "print(__file__, __name__)\n",
    "import builtins; del builtins.print\n", "import sys; sys.exit({})\n", "sys.excepthook = 3\n", "'\\N{BULLET}'\n",
    "import atexit; atexit.register(lambda: 1/0)\n", "import signal; signal.alarm(1)\n", "os.kill(os.getpid(), 2)\n",
    "os.dup2(1, 0)\n", "os.chdir('/')\n", "%matplotlib inline\n", "!ls\n", "?\n", "_\n",
)  # fmt: skip
programs = st.lists(st.sampled_from(FRAGMENTS) | any_text, max_size=8).map("".join)
code = programs | any_text | bytes_as_text
names = any_text | st.lists(st.sampled_from(["..", ".", "a", "b" * 300, "", "é", " ", "~", "\n", "C:\\x"])).map(
    "/".join
)


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(loop):
    async def opened() -> LocalSandbox:
        return LocalSandbox(limits=Limits(memory_mb=200, processes=16, output_bytes=4096), preload=())

    made = loop.run(opened())
    yield made
    loop.run(made.close())


def answer(loop: asyncio.Runner, call: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(call, ANSWER)

    return loop.run(limited())


def contradictory(files: Mapping[str, bytes]) -> bool:
    """Whether no file system can hold these: names that are too long, or a file that is also another one's folder."""
    too_long = any(len(part.encode()) > 255 for name in files for part in name.split("/"))
    folder = any(name.endswith(("/", "/.")) for name in files)
    places = {name: PurePosixPath(name).parts for name in files}
    clash = any(a != b and places[b][: len(places[a])] == places[a] for a in places for b in places)
    return too_long or folder or clash


def check(result: ExecutionResult) -> None:
    assert result.status is not ExecutionStatus.SANDBOX_ERROR, result
    assert result.duration < TIMEOUT + 30
    for text in (result.stdout, result.stderr, result.message):
        text.encode()  # no lone surrogates: it goes into JSON, and to a model


@fuzz
@given(code=code, stdin=any_text | bytes_as_text)
def test_any_program_with_any_input_gives_a_result(loop, sandbox, code, stdin):
    check(answer(loop, sandbox.run(code, stdin=stdin, timeout=TIMEOUT)))


@fuzz
@given(code=any_text)
def test_any_shell_script_gives_a_result(loop, sandbox, code):
    check(answer(loop, sandbox.run(code, language="bash", timeout=TIMEOUT)))


@fuzz
@given(files=st.dictionaries(names, any_bytes, max_size=4), fetch=st.lists(names, max_size=4))
def test_any_files_give_a_result_or_are_refused(loop, sandbox, files, fetch):
    fetch = [*fetch, *files]
    try:
        result = answer(loop, sandbox.run("print('ran')", files=files, fetch_files=fetch, timeout=TIMEOUT))
    except ConfigError:
        return
    check(result)
    for name, data in files.items():
        if name in result.files:
            assert result.files[name] == data


@fuzz
@given(env=st.dictionaries(any_text, any_text, max_size=4))
def test_any_environment_gives_a_result_or_is_refused(loop, sandbox, env):
    try:
        result = answer(loop, sandbox.run("import os; print(len(os.environ))", env=env, timeout=TIMEOUT))
    except ConfigError:
        return
    assert result.status in set(ExecutionStatus)


@fuzz
@given(cells=st.lists(programs, max_size=5))
def test_any_cells_give_results(loop, sandbox, cells):
    async def play() -> None:
        async with await sandbox.session() as session:
            for cell in cells:
                alive = session.alive
                result = await session.run_cell(cell, timeout=0.5)
                if alive:
                    assert result.status is not ExecutionStatus.SANDBOX_ERROR, result
                assert result.alive == session.alive
                for text in (result.stdout, result.stderr, result.result or ""):
                    text.encode()
                if result.error is not None:
                    "\n".join([result.error.name, result.error.value, *result.error.traceback]).encode()

    answer(loop, play())


@fuzz
@given(name=names, data=any_bytes)
def test_any_file_of_a_session_goes_in_and_out_or_is_refused(loop, sandbox, name, data):
    async def play() -> None:
        async with await sandbox.session() as session:
            await session.write_file(name, data)
            assert await session.read_file(name) == data
            assert (await session.run_cell("1")).result == "1"

    try:
        answer(loop, play())
    except ConfigError:
        return
    except SandboxFileError:  # it is a folder, or where a session may write nothing
        assert name.startswith("/") or name == "." or contradictory({name: data}), name
