"""Many executions with processes killed at random: every call is answered once, and nothing piles up.

TOOLGYM_SOAK sets the number of executions: a few thousand by default, 100,000 before a release.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits
from toolgym.tools.sandbox.local import LocalSandbox, probe

pytestmark = pytest.mark.soak

EXECUTIONS = int(os.environ.get("TOOLGYM_SOAK", "3000")) // 2
AT_ONCE = 16
LIMITS = Limits(memory_mb=200, processes=16, disk_mb=16, output_bytes=16 * 1024)
ANSWER = 180.0
"""Seconds after which a call counts as lost."""


@dataclass(frozen=True)
class Stock:
    """What there is of everything that could leak."""

    processes: int
    descriptors: int
    threads: int
    folders: int
    groups: int
    memory_mb: float

    @classmethod
    def take(cls) -> Stock:
        gc.collect()
        own = psutil.Process()
        return cls(
            processes=len(own.children(recursive=True)),
            descriptors=own.num_fds(),
            threads=own.num_threads(),
            folders=sum(path.name.startswith("toolgym") for path in Path(tempfile.gettempdir()).iterdir()),
            groups=sum(
                name.startswith(f"toolgym-{os.getpid()}-")
                for _, folders, _ in os.walk("/sys/fs/cgroup")  # which others change meanwhile
                for name in folders
            ),
            memory_mb=own.memory_info().rss / 2**20,
        )


async def settled(sandbox: LocalSandbox) -> Stock:
    """The stock when nothing runs: the templates that were lost are there again, and what was killed is gone."""
    await sandbox._apart.start(full=True)  # else a run that is lost twice starts it: by chance, early or late
    await asyncio.gather(*(sandbox.run(f"import numpy\nprint({n})") for n in range(4)))
    await asyncio.gather(*(sandbox.run(f"print({n})") for n in range(4)))
    best, since = Stock.take(), 0
    for _ in range(300):
        await asyncio.sleep(0.1)
        now, since = Stock.take(), since + 1
        if now.processes < best.processes:
            since = 0  # there was something to go, and there may be more
        if now.processes <= best.processes:
            best = now
        if since == 20:
            break
    return best


def no_more_than(before: Stock, after: Stock) -> bool:
    """Whether nothing of a closed sandbox is left."""
    return (
        after.processes <= before.processes
        and after.descriptors <= before.descriptors + 2
        and after.folders <= before.folders
        and after.groups <= before.groups
    )


class Saboteur:
    """Kills the sandbox's processes: children often, template processes now and then."""

    def __init__(self, sandbox: LocalSandbox, seed: int) -> None:
        self._sandbox = sandbox
        self._random = random.Random(seed)
        self.children = 0
        self.templates = 0

    def strike(self, *, template: bool) -> None:
        templates = self._sandbox.template_ids
        if not templates:
            return
        pid = self._random.choice(templates)
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if template:
                os.kill(pid, signal.SIGKILL)
                self.templates += 1
            elif family := psutil.Process(pid).children(recursive=True):
                os.kill(self._random.choice(family).pid, signal.SIGKILL)
                self.children += 1


def named(result: ExecutionResult) -> str:
    """What came of a call that did not go as it would without a kill."""
    if result.status is not ExecutionStatus.SANDBOX_ERROR:
        return result.status
    return f"sandbox_error: {result.message}"


async def one_call(sandbox: LocalSandbox, number: int) -> str:
    """Make one call, of a kind that depends on its number, and name what came of it."""
    kind = number % 50
    if kind == 0:
        result = await sandbox.run("while True: pass", timeout=0.2)
        return "as expected" if result.status is ExecutionStatus.TIMEOUT else named(result)
    if kind == 1:
        result = await sandbox.run("import ctypes; ctypes.string_at(0)")
        return "as expected" if result.status is ExecutionStatus.KILLED else named(result)
    if kind == 2:
        result = await sandbox.run("import os\nfor n in range(9): os.fork()\nimport time; time.sleep(9)", timeout=0.3)
        expected = (ExecutionStatus.TIMEOUT, ExecutionStatus.ERROR)  # without forks, or with too many
        return "as expected" if result.status in expected else named(result)
    if kind == 3:
        call = asyncio.create_task(sandbox.run("import time; time.sleep(9)"))
        await asyncio.sleep(0.02)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        return "as expected"
    if kind == 4:
        result = await sandbox.run(
            "open('a', 'wb').write(b'x' * 100000)", files={"in": bytes(10_000)}, fetch_files=["a", "in"]
        )
        return "as expected" if sorted(result.files) == ["a", "in"] else named(result)
    if kind in (5, 6):
        try:
            async with await sandbox.session() as session:
                await session.run_cell(f"n = {number}")
                cell = await session.run_cell("n")
        except SandboxError:
            return "session refused"
        return "as expected" if cell.result == str(number) else "session lost"
    code = f"import numpy\nprint(numpy.int64({number}))" if kind < 12 else f"print({number})"
    result = await sandbox.run(code)
    if result.status is ExecutionStatus.OK and result.stdout != f"{number}\n":
        return f"the answer to another call: {result.stdout!r}"
    return "as expected" if result.ok else named(result)


@pytest.fixture
def own_temporary_folder(monkeypatch):
    """Others on this machine may use sandboxes too. (Not `tmp_path`: the users of level `uid` must get through.)"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.parametrize("level", probe()["levels"])
async def test_soak(level, own_temporary_folder):
    try:
        LocalSandbox(level=level)
    except SandboxError as error:
        pytest.skip(f"{level} cannot be had with this interpreter: {error}")
    before = Stock.take()
    sandbox = LocalSandbox(level=level, limits=LIMITS, preload=("numpy",))
    saboteur = Saboteur(sandbox, seed=1)
    answers: Counter[str] = Counter()
    numbers = iter(range(EXECUTIONS))
    answered: list[int] = []

    async def worker() -> None:
        for number in numbers:
            answers[await asyncio.wait_for(one_call(sandbox, number), ANSWER)] += 1
            answered.append(number)
            if number % 40 == 39:
                saboteur.strike(template=number % 600 == 599)

    async with sandbox:
        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        early = await settled(sandbox)
        numbers = iter(range(EXECUTIONS, 2 * EXECUTIONS))
        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        late = await settled(sandbox)
    for _ in range(300):  # until what was killed is gone
        await asyncio.sleep(0.1)
        after = Stock.take()
        if no_more_than(before, after):
            break

    assert sorted(answered) == list(range(2 * EXECUTIONS))
    assert saboteur.children > 0
    if EXECUTIONS >= 600:
        assert saboteur.templates > 0
    # A killed child ends its own call, and one that waits for others no other; a killed template ends its sessions.
    bad = sum(answers.values()) - answers["as expected"]
    assert bad <= saboteur.children + AT_ONCE * saboteur.templates, answers
    assert not any(name.startswith("sandbox_error") for name in answers), answers
    assert not any(name.startswith("the answer to another") for name in answers), answers
    assert late.processes <= early.processes + 2, (early, late)
    assert late.descriptors <= early.descriptors + 4, (early, late)
    assert late.threads <= early.threads + 4, (early, late)
    assert late.folders <= early.folders, (early, late)
    assert late.groups <= early.groups, (early, late)
    assert late.memory_mb <= early.memory_mb * 1.2 + 20, (early, late)
    assert no_more_than(before, after), (before, after)
