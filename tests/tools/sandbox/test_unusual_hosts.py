"""Unusual host processes: what they ignore, hold open or lack does not reach programs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import LEVELS
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox import LocalSandbox

STORY = """
import asyncio, os, resource, signal, sys
from toolgym.tools.sandbox import LocalSandbox

LEVEL = sys.argv[1]
SETTABLE = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}

async def story(sandbox):
    result = await sandbox.run("print(6 * 7)", timeout=60)
    assert result.stdout == "42\\n", result
    code = (
        "import signal\\nignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]\\n"
        "print(ignored, signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    result = await sandbox.run(code, timeout=60)
    assert result.stdout == "[13, 25] set()\\n", result  # Python itself ignores those two
    session = await sandbox.session()
    await session.run_cell("kept = 5")
    assert (await session.run_cell("while True: pass", timeout=0.5)).status == "timeout"
    assert (await session.run_cell("kept")).result == "5"  # the interrupt reached the cell, and not the session
    await session.close()

async def whole():
    async with LocalSandbox(level=LEVEL, preload=()) as sandbox:
        await story(sandbox)
"""

SIGNALS = """
for number in SETTABLE:
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, SETTABLE)
asyncio.run(whole())
"""

FORKED = """
async def main():
    async with LocalSandbox(level=LEVEL, preload=()) as sandbox:
        session = await sandbox.session()
        await session.run_cell("kept = 3")
        child = os.fork()
        if child == 0:  # as a data loader's worker, say
            del sandbox, session
            import gc
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert (await session.run_cell("kept")).result == "3"
        await story(sandbox)

asyncio.run(main())
"""

UMASK = """
os.umask(0o777)
asyncio.run(whole())
"""

LIBRARIES = """
async def main():
    async with LocalSandbox(level=LEVEL, preload=()) as sandbox:
        shown = await sandbox.run("import os; print(os.environ['LD_LIBRARY_PATH'])", timeout=60)
        assert shown.stdout == "/opt/odd/lib\\n", shown

os.environ["LD_LIBRARY_PATH"] = "/opt/odd/lib"  # where an interpreter's own library may lie, on a cluster say
asyncio.run(main())
"""

DESCRIPTORS = """
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [open("/dev/null") for _ in range(3000)]
asyncio.run(whole())
"""

CLOSED = """
said = os.dup(2)
for number in range(3):
    os.close(number)
try:
    asyncio.run(whole())
except BaseException as error:
    os.write(said, repr(error).encode())
    os._exit(1)
os._exit(0)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "host",
    [SIGNALS, FORKED, UMASK, LIBRARIES, DESCRIPTORS, CLOSED],
    ids=[
        "ignores_every_signal",
        "forked",
        "lets_nobody_read_its_files",
        "names_libraries",
        "holds_3000_files",
        "has_no_standard_streams",
    ],
)
def test_the_sandbox_works_in_a_process_that(host, level):
    done = subprocess.run(
        [sys.executable, "-c", STORY + host, level], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("python", ["odd-python", "bin/odd-python"], ids=["by_name", "by_relative_path"])
async def test_the_interpreter_is_the_one_that_the_host_would_run(python, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "odd-python").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    async with LocalSandbox(python=python, preload=()) as sandbox:
        monkeypatch.chdir("/")
        assert (await sandbox.run("print(6 * 7)", timeout=60)).stdout == "42\n"


@pytest.mark.skipif("namespaces" not in LEVELS, reason="sessions can be forked at the level namespaces alone")
async def test_sessions_fork_with_an_interpreter_below_tmp():
    """As in a checkout there. Root's children are users of their own, and the folders above it must be theirs too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder) / "above" / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
        for path in (Path(folder), place.parent):
            path.chmod(0o755)
        async with LocalSandbox(python=str(place / "bin" / "python"), preload=()) as sandbox:
            line = [await sandbox.session(hint="")]
            await line[0].run_cell("open('/tmp/kept', 'w').close()")
            for _ in range(3):
                line.append(await line[-1].fork())
            look = "import os, sys\nmode = os.stat(os.path.dirname(sys.prefix)).st_mode & 0o777\n"
            look += "os.path.exists('/tmp/kept'), sys.prefix, mode"
            seen = [(await one.run_cell(look)).result for one in line]
            assert seen == [repr((True, str(place), 0o755))] * 4


@pytest.mark.skipif("namespaces" not in LEVELS, reason="elsewhere the template process sees what this one sees")
async def test_a_library_that_the_sandbox_cannot_import_is_named_once_and_left_out(tmp_path, caplog):
    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "broken.py").write_text("raise RuntimeError('built for another version')")
    (packages / "fine.py").write_text("word = 'loaded'")
    elsewhere.mkdir()
    (elsewhere / "unseen.py").touch()
    (packages / "elsewhere.pth").write_text(str(elsewhere))
    preload = ("unseen", "broken", "fine")
    with caplog.at_level("WARNING", "toolgym.tools.sandbox"):
        for _ in range(2):
            async with LocalSandbox(python=str(venv / "bin" / "python"), preload=preload) as sandbox:
                async with await sandbox.session() as session:
                    assert (await session.run_cell("import sys, fine; fine.word")).result == "'loaded'"
                assert "No module named 'unseen'" in (await sandbox.run("import unseen")).stderr
                assert "built for another version" in (await sandbox.run("import broken")).stderr
    (said,) = [record.getMessage() for record in caplog.records if "programs go without" in record.getMessage()]
    assert "unseen (ModuleNotFoundError: " in said
    assert "broken (RuntimeError: built for another version)" in said


def test_an_interpreter_that_is_not_there_is_told_at_once():
    with pytest.raises(SandboxError, match="'pyhton3' cannot be run"):
        LocalSandbox(python="pyhton3")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may start as many processes as it likes")
async def test_a_limit_on_processes_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable} -I\nimport os, resource, sys\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    python.chmod(0o755)
    with pytest.raises(SandboxError, match="no further process can be started here"):
        async with LocalSandbox(python=str(python), preload=()) as sandbox:
            await sandbox.start()
