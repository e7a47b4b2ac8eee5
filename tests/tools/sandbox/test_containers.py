"""Containers that have some of what a sandbox needs: a weak root, no change of the root, no /tmp, a bare Python."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.host.isolation import Level, may_change_user, offered, user_namespaces
from toolgym.tools.sandbox.local.host.template_process import FOLDER, JUST_THIS_FOLDER
from toolgym.tools.sandbox.local.kernel import folders
from toolgym.tools.sandbox.local.kernel.users import POOLS

_CAPABILITIES = 0x800405FB
"""What Podman leaves its root: among others to change users, to own and read all files; not to mount."""

AS_WEAK_ROOT = f"""
import asyncio, ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in range(64):
    if not {_CAPABILITIES} >> number & 1:
        libc.prctl(24, number, 0, 0, 0)
kept = {_CAPABILITIES}
assert libc.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)) == 0
assert libc.unshare(0x20000) == -1

from toolgym.tools.sandbox.local import LocalSandbox

async def main():
    async with LocalSandbox(preload=()) as sandbox:
        await sandbox.start()
        for template in sandbox.template_ids:
            for line in open(f"/proc/{{template}}/status"):
                if line.startswith(("Uid", "Gid", "Groups")):
                    print(line.split())
        print(sandbox.isolation.level)
        print((await sandbox.run("import os; print(os.getuid(), os.path.exists('/etc/shadow'))")).stdout, end="")
        async with await sandbox.session() as session:
            await session.run_cell("x = 1")
            async with await session.fork() as other:
                await other.run_cell("x += 1")
                print((await other.run_cell("print(x)")).stdout, end="")
            print((await session.run_cell("print(x)")).stdout, end="")

asyncio.run(main())
"""


WITHOUT_PIVOT_ROOT = """
import asyncio
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.kernel import syscalls, seccomp

syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
allow = seccomp._instruction(seccomp._RETURN, 0, 0, seccomp._ALLOW)
seccomp.install(seccomp._head() + seccomp._deny(["pivot_root"]) + allow)

async def main():
    async with LocalSandbox(preload=()) as sandbox:
        print((await sandbox.run("print(2)")).stdout, end="")
        print(sandbox.isolation.level)
    try:
        LocalSandbox(require="namespaces")
    except SandboxError as error:
        print(error)

asyncio.run(main())
"""


IN_A_USER_NAMESPACE = """
import asyncio, ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.geteuid(), os.getegid()
go, outer = os.pipe()
pid = os.fork()
if pid:
    os.close(go)
    assert libc.unshare(0x10000000 | 0x20000) == 0
    me = os.getpid()
    os.write(outer, str(me).encode())
    os.close(outer)
    assert os.waitpid(pid, 0)[1] == 0
else:
    os.close(outer)
    me = os.read(go, 20).decode()
    if sys.argv[1] == "one":
        texts = ("deny", f"0 {uid} 1", f"0 {gid} 1")
    else:
        texts = ("allow", "0 0 1\\n1 100000 65535", "0 0 1\\n1 100000 65535")
    for name, text in zip(("setgroups", "uid_map", "gid_map"), texts):
        with open(f"/proc/{me}/{name}", "w") as file:
            file.write(text)
    os._exit(0)

from toolgym.tools.sandbox.local import LocalSandbox

async def main():
    level = sys.argv[2]
    async with LocalSandbox(level=level, python=sys.argv[3], preload=("statistics",)) as sandbox:
        for code in ("import os; print(os.getuid())", "import os, statistics; print(os.getuid())"):
            result = await sandbox.run(code)
            print(result.stdout.strip(), result.message, result.stderr)

assert os.getuid() == 0
asyncio.run(main())
"""


def in_a_user_namespace(ids: str, level: str, python: str) -> list[str]:
    command = [sys.executable, "-c", IN_A_USER_NAMESPACE, ids, level, python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd="/")
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(not user_namespaces(), reason="needs user namespaces")
def test_a_root_that_is_the_only_user_starts_namespaces_like_any_user() -> None:
    assert in_a_user_namespace("one", "namespaces", sys.executable) == ["1000", "1000"]


@pytest.mark.skipif(not may_change_user() or not user_namespaces(), reason="needs root and user namespaces")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="needs a Python that all users may run")
def test_where_few_users_are_known_programs_are_some_of_them() -> None:
    bare, full = map(int, in_a_user_namespace("many", "uid", "/usr/bin/python3"))
    assert bare in POOLS[1]
    assert full in POOLS[1]
    assert bare != full, "children of two templates have users of their own"


@pytest.mark.skipif(
    os.geteuid() != 0 or not may_change_user() or not user_namespaces(), reason="needs root and user namespaces"
)
def test_a_root_that_may_not_mount_becomes_nobody_in_namespaces_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_WEAK_ROOT], capture_output=True, text=True, timeout=200, check=False, cwd="/"
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == str(["Uid:", *["65534"] * 4])
    assert lines[1] == str(["Gid:", *["65534"] * 4])
    assert lines[2] == str(["Groups:"])
    assert lines[3:] == ["namespaces", "1000 False", "2", "1"]


@pytest.mark.skipif(Level.LANDLOCK not in offered(), reason="needs Landlock and seccomp")
def test_where_the_root_cannot_be_changed_namespaces_are_not_offered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PIVOT_ROOT], capture_output=True, text=True, timeout=200, check=False, cwd="/"
    )
    assert done.stderr == ""
    ran, level, refused = done.stdout.splitlines()
    assert ran == "2"
    assert level in ("uid", "landlock")
    assert "'namespaces' was required" in refused


@pytest.mark.skipif(Level.LANDLOCK not in offered(), reason="needs Landlock and seccomp")
async def test_without_a_temporary_folder_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(folders.tempfile, "mkdtemp", none)
    with pytest.raises(SandboxError, match="TMPDIR"):
        async with LocalSandbox(level="landlock", preload=()) as sandbox:
            await sandbox.run("1")


@pytest.mark.skipif(Level.LANDLOCK not in offered(), reason="needs Landlock and seccomp")
async def test_a_temporary_folder_without_programs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's `--tmpfs /tmp` is one."""
    async with LocalSandbox(level="landlock", preload=()) as sandbox:
        await sandbox.start()
        for flag, missing in ((os.ST_NOEXEC, True), (0, False)):
            monkeypatch.setattr(os, "statvfs", lambda _, flag=flag: SimpleNamespace(f_flag=flag))
            assert any("noexec" in line for line in sandbox.isolation.missing) is missing


def test_a_template_needs_the_standard_library_and_this_folder_alone() -> None:
    """Not even the rest of the library: its Python may be another one. (`-S`: nothing else is installed.)"""
    program = f"{JUST_THIS_FOLDER}\nimport toolgym.tools.sandbox.local.broker.startup"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, FOLDER], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stderr == ""


LEAVES_ONE_BEHIND = """
import asyncio, os, signal, subprocess, sys, time
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.kernel import syscalls
syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # like the first process of a container

async def main():
    async with LocalSandbox(level="uid", python="/usr/bin/python3", preload=()) as sandbox:
        session = await sandbox.session()
        cell = await session.run_cell(
            "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True).pid"
        )
        sleeper = int(cell.result)
        os.kill(sleeper, 0)
        if sys.argv[1] == "killed":
            for template in sandbox.template_ids:
                os.kill(template, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if " Z " in open(f"/proc/{sleeper}/stat").read():
                break
        except OSError:
            break
        time.sleep(0.01)
    else:
        print("it survives")
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
            print("a zombie")
        except ChildProcessError:
            break

asyncio.run(main())
"""


@pytest.mark.skipif(Level.UID not in offered(), reason="needs root")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="needs a Python that all users may run")
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_a_session_started_ends_with_its_template_without_namespaces_too(how: str) -> None:
    command = [sys.executable, "-c", LEAVES_ONE_BEHIND, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd="/")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "it survives" not in lines
    if how == "closed":  # where it was killed, nobody is left who could ask for the dead
        assert lines == []


BUSY_HOST = """
import subprocess, threading
from toolgym.tools.sandbox.local.kernel import users

def work():
    while True:
        sum(range(1000))

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(4):
    first = users.take()
    orphans = [subprocess.Popen(["sleep", "600"], user=first + number) for number in range(50)]
    users.end_orphans(first, 30.0)
    assert {orphan.wait(30) for orphan in orphans} == {-9}
"""


@pytest.mark.long
@pytest.mark.skipif(Level.UID not in offered(), reason="needs root")
def test_what_users_left_is_ended_while_threads_of_the_host_are_busy() -> None:
    """A fork without Python's hooks would wait for their hold of the interpreter, and its parent for it."""
    subprocess.run([sys.executable, "-c", BUSY_HOST], check=True, timeout=120)
