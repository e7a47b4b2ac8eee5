"""How many processors there are, how many a program is told of, and how many templates are started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.host import resources
from toolgym.tools.sandbox.local.host.template_pool import CROWDED, SESSIONS_EACH
from toolgym.tools.sandbox.local.kernel import cgroup


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes this a machine of 64 processors, with these files of control groups, in which it is in `/pod/job`."""

    def make(kind: str, controller: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
        monkeypatch.setattr(cgroup, "own_groups", lambda: {controller: "/pod/job"})
        monkeypatch.setattr(
            cgroup, "mounts", lambda of: [(f"rw,{controller}", "/", Path(tmp_path))] if of == kind else []
        )

    return make


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"pod/job/cpu.max": "max 100000\n", "pod/cpu.max": "max 100000\n"}, 64),
        ({"pod/job/cpu.max": "200000 100000\n", "pod/cpu.max": "max 100000\n"}, 2),
        ({"pod/job/cpu.max": "max 100000\n", "pod/cpu.max": "850000 100000\n"}, 9),
        ({"pod/job/cpu.max": "5000 100000\n"}, 1),
        ({"pod/job/cpu.max": "no number\n"}, 64),
        ({}, 64),
    ],
)
def test_quotas_of_version_2(files, count, machine):
    machine("cgroup2", "", files)
    assert resources.available_processors() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 64), ("300000", 6), ("1000", 1)])
def test_quotas_of_version_1(quota, count, machine):
    machine("cgroup", "cpu", {"pod/cpu.cfs_quota_us": quota, "pod/cpu.cfs_period_us": "50000"})
    assert resources.available_processors() == count


def test_a_machine_without_control_groups(monkeypatch):
    def none(*_):
        raise FileNotFoundError

    monkeypatch.setattr(cgroup, "own_groups", none)
    assert resources.available_processors() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("machine", "limits", "expected"),
    [(2, {}, 2), (192, {}, 8), (192, {"processes": 256}, 32), (4, {"processes": 4}, 1), (192, {"cores": 1.5}, 2)],
)
def test_programs_are_told_of_no_more_processors_than_they_can_use(machine, limits, expected, monkeypatch):
    monkeypatch.setattr(resources, "available_processors", lambda: machine)
    assert resources.reported_processors(Limits(**limits)) == expected


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is only one processor")
async def test_python_counts_the_processors_that_it_is_told_of():
    async with LocalSandbox(limits=Limits(processes=15), preload=()) as sandbox:
        code = "import multiprocessing, os, concurrent.futures as f\n"
        code += "print(os.cpu_count(), multiprocessing.cpu_count(), f.ProcessPoolExecutor()._max_workers)"
        assert (await sandbox.run(code)).stdout == "1 1 1\n"
        assert (await sandbox.run("echo $GOMAXPROCS", language="bash")).stdout == "1\n"


async def test_another_template_is_started_only_when_there_is_much_to_do():
    async with LocalSandbox(preload=(), templates=3, max_running=32) as sandbox:
        for _ in range(8):
            await sandbox.run("pass")
        assert len(sandbox.template_ids) == 1
        done = await asyncio.gather(*(sandbox.run("import time; time.sleep(0.5); print(1)") for _ in range(24)))
        assert [one.stdout for one in done] == ["1\n"] * 24
        assert len(sandbox.template_ids) == 3


async def test_an_unlimited_sandbox_lets_nothing_wait():
    many = 4 * resources.available_processors() + 1  # one more than runs at once by default
    async with (
        LocalSandbox(preload=(), templates=1, max_running="unlimited") as sandbox,
        await sandbox.session() as session,
        asyncio.timeout(60),
    ):
        sleeping = [asyncio.create_task(sandbox.run("import time; time.sleep(100)", timeout=200)) for _ in range(many)]
        await asyncio.sleep(0.1)
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        assert (await session.run_cell("6 * 7")).result == "42"
        assert not any(task.done() for task in sleeping)
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)


async def test_sessions_are_spread_over_the_templates():
    async with LocalSandbox(preload=(), templates=2) as sandbox, contextlib.AsyncExitStack() as stack:
        few = [await stack.enter_async_context(await sandbox.session()) for _ in range(CROWDED * SESSIONS_EACH)]
        assert len(sandbox.template_ids) == 1
        first = sandbox.template_ids[0]
        more = [await stack.enter_async_context(await sandbox.session()) for _ in range(2 * SESSIONS_EACH)]
        assert len(sandbox.template_ids) == 2
        os.kill(first, signal.SIGKILL)  # and with it go the first of them, and no others
        async with asyncio.timeout(60):
            while first in sandbox.template_ids:
                await asyncio.sleep(0.01)
        assert not any([(await session.run_cell("6 * 7")).alive for session in few])
        assert any([(await session.run_cell("6 * 7")).result == "42" for session in more])
