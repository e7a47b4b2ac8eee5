"""Checks that an env frees what it takes: a step that is cancelled, and what episodes leave behind."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toolgym.envs.base import Action, BaseEnv
from toolgym.testing.env_attacks import SLEEP, program_call, program_tools
from toolgym.testing.env_checks import EnvSubject, begin
from toolgym.testing.errors import expect

CANCEL_SECONDS = 20.0
"""Seconds within which a cancelled step must end."""

CANCEL_AFTER = (0.0, 0.02, 0.2)
"""Seconds after which a step is cancelled: at its first wait, at the start of a call, in the middle of a long one."""

WARM_UP, EPISODES = 2, 4
"""Envs that are played before what they leave is counted, since the first ones start what all share, and after."""

SETTLE_SECONDS = 30.0
"""Seconds that processes and threads get to end after their env was closed."""


async def check_cancellation(subject: EnvSubject) -> None:
    """A step may be cancelled at any time: it ends at once, and the env begins another episode and closes."""
    env = subject.env
    for seconds in CANCEL_AFTER:
        for at, action in enumerate(subject.actions):
            await env.reset(seed=0)
            if not await _play_until(subject, at):
                break
            await _cancel(env, action, seconds)
        for schema, argument, language in program_tools(env):
            await env.reset(seed=0)
            await _cancel(env, program_call(schema, argument, SLEEP[language]), seconds)
    await begin(env, seed=0)
    await subject.play()


async def _cancel(env: BaseEnv, action: Action, seconds: float) -> None:
    step = asyncio.create_task(env.step(action), name="toolgym-check-cancellation")
    await asyncio.wait([step], timeout=seconds)
    if step.done():
        step.result()
        return
    step.cancel()
    done, _ = await asyncio.wait([step], timeout=CANCEL_SECONDS)
    expect(bool(done), f"a cancelled step ends within {CANCEL_SECONDS:g} seconds", "a step that goes on")
    if not step.cancelled():
        got = step.exception() or step.result()
        expect(False, f"a step that is cancelled after {seconds:g} seconds raises CancelledError", got)


async def _play_until(subject: EnvSubject, at: int) -> bool:
    """Take the actions before the one at `at`; return whether the episode goes on."""
    for action in subject.actions[:at]:
        if (await subject.env.step(action)).done:
            return False
    return True


async def check_leaks(subject: EnvSubject) -> str | None:
    """Envs that were made, played and closed leave no task, thread, process, open file or temporary file behind."""
    make = subject.make
    if make is None:
        return "it needs a function that makes the env: give its id, or a factory"
    for _ in range(WARM_UP):
        await _play_one(subject, make)
    with own_temporary_folder() as folder:
        before = await _settled(folder, None)
        for _ in range(EPISODES):
            await _play_one(subject, make)
        after = await _settled(folder, before)
    for name, count in after.items():
        left = count - before[name]
        expect(left < EPISODES, f"a closed env leaves no {name} behind", f"{left} more after {EPISODES} episodes")
    return None


async def _play_one(subject: EnvSubject, make: Callable[[], BaseEnv]) -> None:
    env = make()
    try:
        await env.reset(seed=0)
        await subject.play(env)
        await env.reset(seed=1)  # closed in the middle of an episode
        await env.step(subject.actions[0])
    finally:
        await env.close()
        await env.close()


async def _settled(folder: Path, before: dict[str, int] | None) -> dict[str, int]:
    """Count what there is, once it is no more than before or the time is up."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        await asyncio.sleep(0.05)
        gc.collect()
        now = _counts(folder)
        if before is None or time.monotonic() > end or all(now[name] - before[name] < EPISODES for name in now):
            return now


def _counts(folder: Path) -> dict[str, int]:
    counts = {"task": len(asyncio.all_tasks()), "thread": threading.active_count()}
    counts["temporary file"] = sum(1 for _ in folder.iterdir())
    if Path("/proc/self/fd").is_dir():
        counts["open file"] = len(os.listdir("/proc/self/fd"))
        counts["process"] = sum(1 for _ in _descendants(os.getpid()))
    return counts


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended since
        return
    for child in children:
        yield int(child)
        yield from _descendants(int(child))


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Make `tempfile` and programs that are started now use a folder of their own, which is removed at the end."""
    default, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="toolgym-check-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = default
            if variable is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = variable
