"""Root without the capability to mount, as in Podman: its sandbox is as strong as an ordinary user's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from toolgym.tools.sandbox.local.isolation import may_change_user, user_namespaces

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not may_change_user() or not user_namespaces(), reason="needs root and user namespaces"
)

_CAPABILITIES = 0x800405FB
"""What Podman leaves its root: among others to change users, to own and read all files; not to mount."""

PROGRAM = f"""
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


def test_its_root_becomes_nobody_in_namespaces_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == str(["Uid:", *["65534"] * 4])
    assert lines[1] == str(["Gid:", *["65534"] * 4])
    assert lines[2] == str(["Groups:"])
    assert lines[3:] == ["namespaces", "1000 False", "2", "1"]
