"""Executions that sleep hold no slot of a processor, and those that compute are no more than there are slots."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.host import resources
from toolgym.tools.sandbox.local.host.cpu_slots import CpuSlots

LEVELS = [level for level in probe()["levels"] if level != "uid"]  # whose users may not enter the interpreter's folder

NAP = "import time\ntime.sleep({})\nprint('slept')"


class Jobs:
    """Executions that stay until they are told to end, in `CpuSlots` of three, two of which may compute."""

    def __init__(self, executions=3, computing=2):
        self.slots = CpuSlots(executions, computing, self.look)
        self.asleep = set()
        self.inside = {}
        self.ends = {}
        self.looks = 0
        self.tasks = []

    async def look(self):
        self.looks += 1
        for name, slot in self.inside.items():
            slot.note(asleep=name in self.asleep)
        return 0.0

    def begin(self, *names):
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks.append(asyncio.create_task(self._run(name)))

    async def _run(self, name):
        async with self.slots.permit() as slot:
            self.inside[name] = slot
            await self.ends[name].wait()
            del self.inside[name]

    async def until(self, names):
        """Wait until exactly these are inside, and for what a further look would change."""
        async with asyncio.timeout(30):
            while "".join(sorted(self.inside)) != names:
                await asyncio.sleep(0.001)
        before = self.looks
        while self.slots.computing.waiting and self.looks < before + 2:
            await asyncio.sleep(0.001)
        assert "".join(sorted(self.inside)) == names

    def end(self, names):
        for name in names:
            self.ends[name].set()


async def test_one_that_sleeps_lends_its_slot_and_one_that_wakes_takes_one():
    jobs = Jobs(executions=5)
    jobs.begin(*"abcdefg")
    await jobs.until("ab")
    jobs.asleep = set("a")
    await jobs.until("abc")
    jobs.asleep = set("abc")
    await jobs.until("abcde")  # asleep or not, five are the most
    jobs.asleep = set()
    jobs.end("a")
    await jobs.until("bcde")  # b and c woke up: four compute where two should, so f waits
    jobs.end("bc")
    await jobs.until("de")
    jobs.end("d")
    await jobs.until("ef")
    jobs.end("efg")
    await asyncio.gather(*jobs.tasks)
    assert (jobs.slots.computing.in_use, jobs.slots.executions.in_use) == (0, 0)
    await jobs.slots.close()


async def test_one_that_is_cancelled_while_it_sleeps_gives_nothing_back_twice():
    jobs = Jobs()
    jobs.begin(*"abc")
    jobs.asleep = set("a")
    await jobs.until("abc")
    jobs.tasks[0].cancel()
    jobs.begin("d")
    await asyncio.gather(jobs.tasks[0], return_exceptions=True)
    del jobs.inside["a"]
    await jobs.until("bc")
    jobs.end("bcd")
    await asyncio.gather(*jobs.tasks[1:])
    assert (jobs.slots.computing.in_use, jobs.slots.executions.in_use) == (0, 0)
    await jobs.slots.close()


async def test_without_need_is_not_looked():
    jobs = Jobs()
    jobs.begin("a", "b")
    await asyncio.sleep(0.05)
    assert jobs.looks == 0
    jobs.end("ab")
    await asyncio.gather(*jobs.tasks)


@pytest.mark.parametrize("level", LEVELS)
async def test_programs_that_sleep_hold_no_slots_of_programs_that_do_not(level):
    async with LocalSandbox(level=level, preload=(), max_computing=1) as sandbox:
        await sandbox.run("pass")
        results = await asyncio.gather(*(sandbox.run(NAP.format(0.2)) for _ in range(6)))
        assert [result.stdout for result in results] == ["slept\n"] * 6
        sleeping = [asyncio.create_task(sandbox.run(NAP.format(300), timeout=300)) for _ in range(5)]
        last = asyncio.create_task(sandbox.run("print('there')"))
        async with asyncio.timeout(60):
            assert (await last).stdout == "there\n"  # it came behind the five
        assert not any(task.done() for task in sleeping)
    await asyncio.gather(*sleeping, return_exceptions=True)


async def test_cells_and_programs_below_programs_sleep_too():
    below = "import subprocess\nsubprocess.run(['sleep', '300'])"
    threads = "import threading, time\nt = threading.Thread(target=time.sleep, args=(300,))\nt.start()\nt.join()"
    async with LocalSandbox(preload=(), max_computing=1) as sandbox:
        sessions = [await sandbox.session() for _ in range(6)]
        await asyncio.gather(*(session.run_cell("import subprocess, threading") for session in sessions))
        cells = zip(sessions[:5], [below, threads, below, threads, below], strict=True)
        sleeping = [asyncio.create_task(session.run_cell(code, timeout=300)) for session, code in cells]
        last = asyncio.create_task(sessions[-1].run_cell("6 * 7"))
        async with asyncio.timeout(60):
            assert (await last).result == "42"  # it came behind the five
        assert not any(task.done() for task in sleeping)
    await asyncio.gather(*sleeping, return_exceptions=True)


async def test_programs_of_sessions_sleep_too():
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(LocalSandbox(preload=(), max_running=8, max_computing=1))
        sessions = [await stack.enter_async_context(await sandbox.session()) for _ in range(2)]
        sleeping = asyncio.create_task(sessions[0].exec("touch begun; sleep 200", timeout=200))
        async with asyncio.timeout(60):
            while not await sessions[0].exists("begun"):
                await asyncio.sleep(0.01)
            assert (await sessions[1].exec("echo there")).stdout == "there\n"
        assert not sleeping.done()
        sleeping.cancel()
        await asyncio.gather(sleeping, return_exceptions=True)


@pytest.mark.parametrize(
    "spin",
    [
        "while time.process_time() < end: pass",
        "t = threading.Thread(target=lambda: [None for _ in iter(lambda: time.process_time() < end, False)])\n"
        "t.start()\nt.join()",
    ],
    ids=["in the first thread", "in another thread"],
)
async def test_programs_that_compute_keep_their_slots_to_their_end(spin):
    head = "import threading, time\nbegan = time.time()\nend = time.process_time() + 0.2\n"
    code = f"{head}{spin}\nprint(began, time.time())"
    async with LocalSandbox(preload=(), max_computing=1) as sandbox:
        await sandbox.run("pass")
        results = await asyncio.gather(*(sandbox.run(code) for _ in range(4)))
    spans = sorted(tuple(map(float, result.stdout.split())) for result in results)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), spans


def test_how_many_there_are_follows_the_memory(monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 4 << 30)
    some = LocalSandbox(limits=Limits(memory_mb=1024)).cpu_slots
    few = LocalSandbox(limits=Limits(memory_mb=64 << 10)).cpu_slots
    assert some.executions.limit == max(some.computing.limit, min(16, 8 * some.computing.limit))
    assert few.executions.limit == few.computing.limit
    assert LocalSandbox(max_running=3).cpu_slots.executions.limit == 3


async def test_a_slot_that_is_held_is_that_of_everything_inside():
    slots = Jobs(executions=None, computing=1).slots
    other = Jobs(computing=1).slots
    async with slots.hold():
        assert slots.full
        async with slots.permit() as first, slots.permit() as second, other.permit() as third:
            assert first is second is not third
        assert (slots.computing.in_use, other.computing.in_use) == (1, 0)
    async with slots.permit() as later:
        assert later is not first
    assert slots.computing.in_use == 0


@pytest.mark.parametrize("wrong", [{"max_running": 0}, {"max_computing": 0}], ids=str)
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        LocalSandbox(**wrong)


def test_memory_that_a_control_group_allows(monkeypatch, tmp_path):
    from toolgym.tools.sandbox.local.kernel import cgroup

    (tmp_path / "job").mkdir()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "job/memory.max").write_text("123456789\n")
    monkeypatch.setattr(cgroup, "own_groups", lambda: {"": "/job"})
    monkeypatch.setattr(cgroup, "mounts", lambda kind: [("rw", "/", tmp_path)] if kind == "cgroup2" else [])
    assert resources.available_memory() == 123456789
