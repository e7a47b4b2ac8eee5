"""What a program may read below /proc where it has none of its own: itself, and facts of the machine."""

from __future__ import annotations

import os

import pytest

from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.kernel import child_cgroups

PROGRAM = """
import os, resource
def can(path):
    try:
        return bool(os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1) or 1)
    except OSError:
        return False
groups = [line.rstrip().split(':', 2) for line in open('/proc/self/cgroup')]
folders = [f'/sys/fs/cgroup/{controllers}{path}' for _, controllers, path in groups]
names = ('cpu.cfs_quota_us', 'memory.limit_in_bytes', 'memory.max', 'cpu.max')
limits = [f'{folder}/{name}' for folder in folders for name in names]
print([path for path in limits if os.path.exists(path) and not can(path)])
parent, first = os.getppid(), 1
own = ['/proc/self/' + name for name in ('status', 'stat', 'statm', 'maps', 'fd', 'task', 'limits')]
print([path for path in (*own, '/proc/meminfo', '/proc/cpuinfo', '/proc/stat') if not can(path)])
others = [f'/proc/{pid}/{name}' for pid in (parent, first) for name in ('cmdline', 'status', 'fd', 'cgroup')]
hidden = ('/proc', '/proc/self/net/tcp', '/proc/self/mountinfo', '/proc/self/root/etc/passwd', '/sys/fs/cgroup',
          '/proc/self/task/%d/net/tcp' % os.getpid(), *(f'{folder}/cgroup.procs' for folder in folders))
print([path for path in (*others, *hidden) if can(path)])
try:
    open('/proc/self/comm', 'w').write('x')
    print('written')
except OSError:
    pass
"""


@pytest.mark.parametrize("level", ["landlock", pytest.param("uid", marks=pytest.mark.matrix)])
async def test_a_program_reads_about_itself_and_about_no_other(level):
    if level not in probe()["levels"]:
        pytest.skip(f"no {level} here")
    python = "/usr/bin/python3" if level == "uid" else None
    async with LocalSandbox(preload=(), level=level, python=python, templates=1, warm=0) as sandbox:
        run = await sandbox.run(PROGRAM)
    assert (run.stdout, run.stderr) == ("[]\n[]\n[]\n", "")


def test_groups_above_the_own_one_are_known():
    folders = child_cgroups.group_folders(None)
    assert all(folder.startswith("/sys/fs/cgroup") for folder in folders)
    assert all(os.path.dirname(folder) in folders for folder in folders if folder != "/sys/fs/cgroup")


@pytest.mark.long
@pytest.mark.parametrize("level", ["namespaces", "landlock"])
async def test_duckdb_and_psutil_work(level):
    pytest.importorskip("duckdb")
    pytest.importorskip("psutil")
    if level not in probe()["levels"]:
        pytest.skip(f"no {level} here")
    code = "import duckdb, psutil\nprint(duckdb.sql('select 6 * 7').fetchall(), psutil.Process().memory_info().rss > 0)"
    async with LocalSandbox(preload=(), level=level, templates=1) as sandbox:
        run = await sandbox.run(code)
    assert (run.stdout, run.stderr) == ("[(42,)] True\n", "")
