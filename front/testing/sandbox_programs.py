"""The suite of programs and files of a session, for every sandbox that has sessions."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from pathlib import Path

from toolgym.testing.sandbox_runs import ERROR, LONG, OK, TIMEOUT, SandboxTests
from toolgym.testing.suite import needs
from toolgym.tools.errors import (
    ConfigError,
    SandboxError,
    SandboxFileError,
    SandboxUnsupportedError,
    SessionLostError,
)
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox, Session

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


class ProgramSuite(SandboxTests, abilities=("sessions",)):
    """The contract of `Session.exec`, `Session.start` and the calls about files. Needs the fixture `sandbox`."""

    # ------------------------------------------------------------------ exec

    @needs("programs")
    async def test_exec_takes_a_folder_variables_and_bytes(self, sandbox: Sandbox) -> None:
        async with await sandbox.session(env={"GIVEN": "1"}) as session:
            await session.mkdir("a/b", parents=True)
            result = await session.exec("pwd; echo $GIVEN$MORE", cwd="a/b", env={"MORE": "2"})
            assert result.stdout.splitlines()[0].endswith("/a/b")
            assert result.stdout.splitlines()[1] == "12"
            assert (await session.exec(["pwd"], cwd="/usr")).stdout == "/usr\n"
            data = bytes(range(256))
            echoed = await session.exec(["cat"], stdin=data)
            assert (echoed.stdout_bytes, echoed.stderr_bytes, echoed.return_code) == (data, b"", 0)
            assert (await session.exec(["cat"], stdin="é")).stdout == "é"
            assert (await session.exec(["cat"])).stdout == ""

    @needs("programs")
    async def test_exec_takes_much_input(self, session: Session) -> None:
        size = 9 * 1024 * 1024
        assert (await session.exec(["wc", "-c"], stdin=b"x" * size)).stdout.strip() == str(size)
        assert (await session.exec(["true"], stdin=b"x" * size)).ok  # it reads nothing

    @needs("programs")
    async def test_exec_codes_are_those_of_a_shell(self, session: Session) -> None:
        await session.write_file("plain", b"")
        codes = {
            "exit 3": (ERROR, 3),
            "kill -9 $$": (ExecutionStatus.KILLED, -9),
            "kill -TERM $$": (ExecutionStatus.KILLED, -15),
        }
        for command, expected in codes.items():
            result = await session.exec(command)
            assert (result.status, result.return_code) == expected, command
        absent = await session.exec(["no-such-program"])
        assert (absent.status, absent.return_code) == (ERROR, 127)
        assert "no-such-program" in absent.stderr
        assert (await session.exec(["./plain"])).return_code == 126
        nowhere = await session.exec(["true"], cwd="nowhere")
        assert (nowhere.status, nowhere.return_code, "nowhere" in nowhere.stderr) == (ERROR, 126, True)

    @needs("programs")
    async def test_what_a_program_leaves_behind_prints_nowhere(self, session: Session) -> None:
        left = "(until [ -e go ]; do sleep 0.01; done; echo late; echo late >&2; touch done) & echo now"
        assert (await session.exec(left)).stdout == "now\n"
        after = await session.exec("touch go; until [ -e done ]; do sleep 0.01; done; echo mine", timeout=LONG)
        assert (after.stdout, after.stderr) == ("mine\n", "")
        cell = await session.run_cell("1")
        assert (cell.stdout, cell.stderr) == ("", "")

    @needs("programs")
    async def test_programs_do_not_wait_for_cells(self, session: Session) -> None:
        await session.exec(["true"])
        waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'went'"
        cell = asyncio.create_task(session.run_cell(waits, timeout=LONG))
        await asyncio.sleep(0.05)
        assert (await session.exec(["touch", "go"])).ok
        assert (await cell).result == "'went'"

    @needs("programs")
    async def test_exec_refuses_what_cannot_be(self, session: Session) -> None:
        for bad in ([], [""], "", ["a\0"], [1], {"a": 1}):
            with pytest.raises(ConfigError):
                await session.exec(bad)  # type: ignore[arg-type]
        for options in ({"cwd": "../x"}, {"env": {"A=B": "x"}}, {"stdin": 3}, {"timeout": 0}, {"user": ""}):
            with pytest.raises(ConfigError):
                await session.exec(["true"], **options)
        with pytest.raises(SandboxUnsupportedError, match="no-such-user"):
            await session.exec(["true"], user="no-such-user")

    # ------------------------------------------------------------------ in the background

    @needs("programs")
    async def test_a_program_in_the_background(self, session: Session) -> None:
        async with await session.start("cat; echo end >&2; exit 4") as process:
            assert await process.poll() is None
            await process.write_stdin("one\n")
            assert (await process.output(wait=LONG)).stdout == b"one\n"
            assert await process.wait(0.01) is None
            await process.write_stdin(b"\xff")
            await process.close_stdin()
            assert await process.wait(LONG) == 4
            rest = await process.output()
            assert (rest.stdout, rest.stderr) == (b"\xff", b"end\n")
            assert (await process.output()).stdout == b""
            assert await process.poll() == 4
            assert (await session.exec(["echo", "alone"])).stdout == "alone\n"

    @needs("programs")
    async def test_what_a_program_prints_is_read_whole_and_once(self, session: Session) -> None:
        lines = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo $n; done"
        async with await session.start(lines) as process:
            printed = b""
            while output := (await process.output(wait=LONG)).stdout:
                printed += output
            assert printed.decode().split() == [str(n) for n in range(1, 3001)]

    @needs("programs")
    async def test_a_program_in_the_background_is_killed_with_all_that_it_started(self, session: Session) -> None:
        process = await session.start("sleep 600 & echo $!; wait")
        child = (await process.output(wait=LONG)).text.strip()
        await process.kill(signal.SIGSTOP)
        assert await process.poll() is None
        await process.kill()
        assert await process.wait(LONG) == -9
        deadline = time.monotonic() + LONG
        while (left := (await session.exec(f"cat /proc/{child}/stat")).stdout) and ") Z " not in left:
            assert time.monotonic() < deadline, left
        await process.close()
        with pytest.raises(SandboxError, match="closed"):
            await process.poll()
        ended = await session.start(["sleep", "600"])
        await session.close()
        with pytest.raises(SessionLostError):
            await ended.poll()
        await ended.close()

    @needs("programs")
    async def test_what_cannot_be_started_is_an_error_of_its_kind(self, session: Session) -> None:
        await session.write_file("plain", b"")
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            await session.start(["no-such-program"])
        with pytest.raises(PermissionError, match="plain"):
            await session.start(["./plain"])
        with pytest.raises(FileNotFoundError, match="nowhere"):
            await session.start(["true"], cwd="nowhere")

    @needs("programs", "output_bytes")
    async def test_output_that_is_not_read_is_kept_in_part(self, session: Session) -> None:
        assert self.output_bytes is not None
        process = await session.start(f"head -c {self.output_bytes * 3} /dev/zero | tr '\\0' x; echo end")
        assert await process.wait(LONG) == 0
        output = await process.output()
        assert output.stdout_truncated
        assert output.stdout.endswith(b"xend\n")
        assert self.output_bytes <= len(output.stdout) < self.output_bytes + 100
        flood = await session.exec("yes", timeout=LONG)
        assert (flood.status, session.alive) == (ExecutionStatus.OUTPUT_LIMIT, True)

    @needs("programs")
    async def test_many_programs_at_once(self, session: Session) -> None:
        results = await asyncio.gather(*(session.exec(f"echo {n}; sleep 0.05; echo {n}") for n in range(6)))
        assert [result.stdout for result in results] == [f"{n}\n{n}\n" for n in range(6)]
        began = time.monotonic()
        late = await asyncio.gather(*(session.exec("sleep 600", timeout=0.2) for _ in range(3)))
        assert {result.status for result in late} == {TIMEOUT}
        assert time.monotonic() - began < LONG

    @needs("programs", "terminals")
    async def test_a_terminal(self, session: Session) -> None:
        async with await session.start("read line; stty size; read line; stty size; tty", pty=(24, 80)) as process:
            await process.write_stdin("\n")
            seen = b""
            while b"24 80" not in seen:
                output = await process.output(wait=LONG)
                seen += output.stdout
                assert output.stdout
            await process.resize(40, 100)
            await process.write_stdin("\n")
            assert await process.wait(LONG) == 0
            assert b"40 100\r\n/dev/pts/" in (await process.output()).stdout
        async with await session.start("sleep 600", pty=(24, 80)) as process:
            await process.write_stdin(b"\x03")
            assert await process.wait(LONG) == -signal.SIGINT
        pexpect = "import os, pty\npid, fd = pty.fork()\nif not pid: os.execvp('tty', ['tty'])\nos.read(fd, 99)"
        assert "/dev/pts/" in str((await session.run_cell(pexpect)).result)

    @needs("programs")
    async def test_no_terminal_is_said_clearly(self, session: Session) -> None:
        with pytest.raises(ConfigError, match="rows"):
            await session.start(["true"], pty=(0, 1))
        if not self.terminals:
            with pytest.raises(SandboxUnsupportedError, match="terminal"):
                await session.start(["true"], pty=(24, 80))

    # ------------------------------------------------------------------ files

    async def test_files_and_folders(self, session: Session) -> None:
        await session.mkdir("d/e", parents=True)
        await session.mkdir("d", exist_ok=True)
        await session.write_file("d/f", b"123")
        await session.run_cell("import os\nos.symlink('f', 'd/l')")
        listed = {file.name: (file.kind, file.target) for file in await session.list("d")}
        assert listed == {"e": ("folder", None), "f": ("file", None), "l": ("link", "f")}
        about = await session.stat("d/f")
        assert (about.size, about.mode & 0o600, abs(time.time() - about.changed) < 600) == (3, 0o600, True)
        assert (await session.exists("d/l"), await session.exists("d/x"), await session.exists("d/f/x")) == (
            True,
            False,
            False,
        )
        await session.move("d/f", "g")
        assert (await session.read_file("g"), await session.exists("d/f")) == (b"123", False)
        await session.remove("d/l")
        await session.remove("d/e")
        await session.write_file("d/again", b"")
        await session.remove("d", recursive=True)
        assert [file.name for file in await session.list() if file.name in ("d", "g")] == ["g"]

    async def test_names_may_be_absolute(self, session: Session) -> None:
        home = str((await session.run_cell("import os\nprint(os.getcwd())")).stdout).strip()
        await session.write_file(f"{home}/sub/x", b"1")
        assert await session.read_file("sub/x") == b"1"
        assert [file.name for file in await session.list(f"{home}/sub")] == ["x"]
        await session.run_cell("os.chdir('/')")
        assert await session.read_file("sub/x") == b"1"  # relative to its folder, wherever the interpreter is
        with pytest.raises((PermissionError, FileNotFoundError)):
            await session.write_file("/usr/x", b"")

    async def test_errors_of_files_are_pythons_own(self, session: Session) -> None:
        await session.write_file("f", b"")
        await session.mkdir("d")
        await session.write_file("d/f", b"")
        cases = [
            (session.read_file("x"), FileNotFoundError),
            (session.read_file("d"), IsADirectoryError),
            (session.write_file("d", b""), IsADirectoryError),
            (session.read_file("f/x"), NotADirectoryError),
            (session.list("f"), NotADirectoryError),
            (session.list("x"), FileNotFoundError),
            (session.stat("x"), FileNotFoundError),
            (session.mkdir("d"), FileExistsError),
            (session.mkdir("x/y"), FileNotFoundError),
            (session.move("x", "y"), FileNotFoundError),
            (session.move("f", "d"), IsADirectoryError),
            (session.remove("x"), FileNotFoundError),
            (session.remove("d"), SandboxFileError),
            (session.upload_folder(Path(__file__).parent, "f"), FileExistsError),
        ]
        for call, error in cases:
            with pytest.raises(error) as raised:
                await call
            assert isinstance(raised.value, SandboxFileError)
        with pytest.raises(ConfigError):
            await session.list("../x")

    @needs("session_limits")
    async def test_limits_of_one_session(self, sandbox: Sandbox) -> None:
        async with await sandbox.session(file_mb=20, disk_mb=60, inodes=2000) as session:
            await session.write_file("large", b"x" * (18 << 20))
            await session.write_file("larger", b"x" * (18 << 20))
            code = "import os\nfor n in range(1500): open(f'{n}', 'w').close()\nlen(os.listdir())"
            assert int((await session.run_cell(code)).result or 0) >= 1502
            with pytest.raises(SandboxError):
                await session.write_file("too-large", b"x" * (21 << 20))
            assert len(await session.read_file("large")) == 18 << 20
        for wrong in ({"file_mb": 0}, {"disk_mb": 1.5}, {"inodes": "1"}, {"network": "all"}):
            with pytest.raises(ConfigError):
                await sandbox.session(**wrong)

    @needs("folders")
    async def test_folders_of_one_session(self, sandbox: Sandbox) -> None:
        async with await sandbox.session(folders=["/logs/x", "/app"], hint="", disk_mb=4) as session:
            await session.write_file("/app/a/b", b"here")
            done = await session.run_cell("import os\nos.rename('/app/a', '/app/c')\nopen('/app/c/b').read()")
            assert done.result == "'here'"
            if self.programs:
                assert (await session.exec("cat b > /logs/x/out && ls -A /logs/x", cwd="/app/c")).stdout == "out\n"
            await session.write_file("/app/large", bytes(2 << 20))
            with pytest.raises(SandboxError):  # one limit for all that it writes
                await session.write_file("/logs/x/large", bytes(2 << 20))
            with pytest.raises(SandboxFileError):
                await session.write_file("/logs/y", b"")
        async with await sandbox.session(folders=["/app", "/logs/x"], hint="", disk_mb=4) as session:
            assert not await session.list("/app")
        for folders in (["app"], ["/"], ["/app/"], ["/app/../x"], ["/a", "/a/b"], ["/a"] * 2, "/app", ["/usr/x"], [1]):
            with pytest.raises(ConfigError, match=r"folder|name"):
                await sandbox.session(folders=folders)  # type: ignore[arg-type]

    @needs("session_limits", "terminals")
    async def test_network_of_one_session(self, sandbox: Sandbox) -> None:
        code = "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        code += "socket.create_connection(s.getsockname(), 20).close()"
        async with await sandbox.session() as without, await sandbox.session(network="loopback") as looped:
            assert (await without.run_cell(code)).status is ERROR
            assert (await looped.run_cell(code)).status is OK
        with pytest.raises(SandboxUnsupportedError, match="host"):
            await sandbox.session(network="host")

    async def test_a_folder_goes_there_and_back(self, session: Session, tmp_path: Path) -> None:
        here, back = tmp_path / "here", tmp_path / "back"
        (here / "a" / "empty").mkdir(parents=True)
        (here / "a" / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (here / "a" / "run.sh").chmod(0o755)
        (here / "large").write_bytes(os.urandom(5 * 1024 * 1024))
        (here / "a" / "link").symlink_to("../large")
        for n in range(30):
            (here / f"ä{n}").write_bytes(b"x" * n)
        await session.upload_folder(here, "up/there")
        if self.programs:
            assert (await session.exec(["a/run.sh"], cwd="up/there")).stdout == "ran\n"
        await session.download_folder("up/there", back)
        # Where it can start no programs, it may not change permission bits either.
        assert _tree(back, modes=self.programs) == _tree(here, modes=self.programs)

    async def test_a_download_writes_nothing_outside(self, session: Session, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        code = f"import os\nos.makedirs('d/sub')\nos.symlink({str(outside)!r}, 'd/abs')\nos.symlink('../..', 'd/up')\n"
        code += "os.symlink('..', 'd/sub/top')\nos.symlink('sub/top/..', 'd/tricky')\nos.mkfifo('d/pipe')\n"
        code += "open('d/file', 'w').write('1')"
        assert (await session.run_cell(code)).status is OK
        await session.download_folder("d", tmp_path / "got")
        with pytest.raises(SandboxError, match="more than 0 bytes"):
            await session.download_folder("d", tmp_path / "little", max_bytes=0)
        assert sorted(_tree(tmp_path / "got")) == ["file", "sub", "sub/top"]
        assert not any(outside.iterdir())


def _tree(root: Path, *, modes: bool = True) -> dict[str, object]:
    """Return what is below a folder: contents and permission bits of files, and what links point to."""
    tree: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            tree[name] = os.readlink(path)
        elif path.is_dir():
            tree[name] = None
        else:
            tree[name] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode) if modes else None)
    return tree
