"""Run the programs in a sandbox, and judge them: one JSON object per line.

    python tests/tools/sandbox/abuse/runner.py [--sandbox local|process] [--level LEVEL] [--in SURROUNDINGS] [--image]
                                               [--only PATTERN ...] [--list]

The first line tells what isolation there was; each further one is the verdict about one program. This process gets into
a limiting control group and into the surroundings first, so it is best started by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.tools.sandbox.abuse import in_image
from tests.tools.sandbox.abuse.cage import Cage
from tests.tools.sandbox.abuse.catalog import PROGRAMS
from tests.tools.sandbox.abuse.program import LIMITS, SAME, Outcome, Program
from tests.tools.sandbox.abuse.scene import ENVIRONMENT_SECRET, Scene, marked
from tests.tools.sandbox.abuse.surroundings import SURROUNDINGS, enter
from toolgym.tools.errors import ToolgymError
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.base import ExecutionResult, Sandbox

AT_ONCE = 3
GRACE = 60.0
"""Seconds beyond a program's deadline after which a call counts as hanging."""


class Sandboxes:
    """The sandbox under test, one per network mode, opened when first needed."""

    def __init__(self, kind: str, level: str | None, image: Path | None = None) -> None:
        self.kind = kind
        self.level = level
        self.image = image
        self._open: dict[str, Sandbox] = {}

    def get(self, network: str = "off") -> Sandbox:
        if network not in self._open:
            self._open[network] = self._make(network)
        return self._open[network]

    async def close(self) -> None:
        for sandbox in self._open.values():
            await sandbox.close()

    def _make(self, network: str) -> Sandbox:
        if self.kind == "process":
            return ProcessSandbox(max_output_bytes=LIMITS.output_bytes)
        from toolgym.tools.sandbox.local import LocalSandbox

        preload = tuple(name for name in ("numpy",) if importlib.util.find_spec(name) and not self.image)
        sandbox = LocalSandbox(level=self.level, limits=LIMITS, preload=preload, network=network)
        return in_image.InImage(sandbox, self.image) if self.image else sandbox


@asynccontextmanager
async def census(mark: str, *, wanted: bool) -> AsyncIterator[list[int]]:
    """Counts the processes with a mark, every few milliseconds; the list's only item is the most that were seen."""
    most = [0]

    async def count() -> None:
        while True:
            most[0] = max(most[0], len(await asyncio.to_thread(marked, mark)))
            await asyncio.sleep(0.05)

    task = asyncio.create_task(count()) if wanted else None
    try:
        yield most
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


async def try_program(program: Program, sandbox: Sandbox, environment_secret: str) -> tuple[str, float]:
    """Run one program. Returns what went wrong (nothing: it was held), and the seconds that it took."""
    scene = Scene()
    beside: asyncio.Task[ExecutionResult] | None = None
    began = time.monotonic()
    try:
        code = await scene.fill(program.code)
        if program.neighbour:
            neighbour = await scene.fill(program.neighbour)
            beside = asyncio.create_task(sandbox.run(neighbour, timeout=60))
            await asyncio.sleep(0.7)
        extra: dict[str, Any] = {}
        if program.files:
            extra["files"] = program.files
        if program.fetch:
            extra["fetch_files"] = program.fetch
        if program.stdin:
            extra["stdin"] = program.stdin
        templates = set(getattr(sandbox, "template_ids", ()))
        async with census(scene.mark, wanted=program.alone) as most:
            began = time.monotonic()
            result = await asyncio.wait_for(
                sandbox.run(code, timeout=program.timeout, **extra), program.timeout + GRACE
            )
            wall = time.monotonic() - began
        isolated = not isinstance(sandbox, ProcessSandbox)
        survivors = await _survivors(scene.mark, 20.0 if isolated else 3.0) if program.survivors else []
        second = None
        if program.follow_up:
            follow_up = code if program.follow_up == SAME else await scene.fill(program.follow_up)
            second = await asyncio.wait_for(sandbox.run(follow_up, timeout=60, **extra), 60 + GRACE)
        neighbour_result = await asyncio.wait_for(beside, 60 + GRACE) if beside is not None else None
        outcome = Outcome(result, wall, scene, second, neighbour_result, most[0])
        said = [program.judge(outcome), scene.check()]
        if program.alone and not templates <= set(getattr(sandbox, "template_ids", ())):
            said.append("a template process died, and with it the sessions of others")
        if survivors:
            said.append(f"{len(survivors)} processes outlived the call")
        for text in (result.stdout, result.stderr, result.message):
            if scene.secret in text or environment_secret in text:
                said.append("a secret of the host came back")
        return "; ".join(dict.fromkeys(filter(None, said))), wall
    except TimeoutError:
        return "the call never came back", time.monotonic() - began
    except Exception as error:
        return f"the call raised {type(error).__name__}: {error}", time.monotonic() - began
    finally:
        if beside is not None:
            beside.cancel()
            await asyncio.wait({beside})
        await scene.close()


async def _survivors(mark: str, seconds: float) -> list[int]:
    """What still runs some seconds after the call. (A killed process may take a moment to be gone, and one that forks
    anew all the time may be missed by a look.)"""
    quiet = 0
    found: list[int] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = await asyncio.to_thread(marked, mark)
        found = now or found
        quiet = 0 if now else quiet + 1
        if quiet == 3:
            return []
        await asyncio.sleep(0.1 if now else 0.01)
    return found


def chosen(patterns: list[str], *, unprotected: bool, caged: bool, image: bool) -> dict[str, Program]:
    """The programs to run. Without isolation, those that would harm the machine are left out."""
    wanted = {}
    for key, program in PROGRAMS.items():
        if patterns and not any(fnmatch.fnmatch(key, pattern) for pattern in patterns):
            continue
        if unprotected and (program.bare == "unsafe" or (program.category == "bombs" and not caged)):
            continue
        if program.image > image or (
            image and (program.category not in in_image.CATEGORIES or key in in_image.LEFT_OUT)
        ):
            continue
        if any(importlib.util.find_spec(name) is None for name in program.needs):
            continue
        wanted[key] = program
    return wanted


async def run_all(options: argparse.Namespace, cage: Cage) -> None:
    environment_secret = os.environ[ENVIRONMENT_SECRET]
    place = tempfile.mkdtemp(prefix="toolgym-abuse-images-")
    os.environ["TOOLGYM_IMAGES"] = f"{place}/unpacked"
    image = in_image.make(Path(place, "image.tar")) if options.image else None
    sandboxes = Sandboxes(options.sandbox, options.level, image)
    try:
        try:
            first = await asyncio.wait_for(sandboxes.get().run("print(1)"), 120)
        except ToolgymError as error:
            print(json.dumps({"unavailable": str(error)}), flush=True)
            return
        isolation = getattr(sandboxes.get(), "isolation", None)
        print(
            json.dumps(
                {
                    "sandbox": options.sandbox,
                    "level": getattr(isolation, "level", "none"),
                    "isolation": str(isolation),
                    "cage": cage.description,
                    "works": first.stdout == "1\n",
                    "said": first.message or first.stderr,
                }
            ),
            flush=True,
        )
        unprotected = options.sandbox == "process" or options.level == "none"
        wanted = chosen(options.only, unprotected=unprotected, caged=cage.active, image=options.image)
        places = asyncio.Semaphore(AT_ONCE)

        async def one(key: str, program: Program) -> None:
            try:
                sandbox = sandboxes.get(program.network)
            except ToolgymError as error:
                if program.category != "works":
                    print(json.dumps({"name": key, "skipped": str(error)}), flush=True)
                    return
                print(json.dumps({"name": key, "held": False, "said": str(error), "wall": 0.0}), flush=True)
                return
            async with places:
                said, wall = await try_program(program, sandbox, environment_secret)
            print(json.dumps({"name": key, "held": not said, "said": said[:2000], "wall": round(wall, 2)}), flush=True)

        await asyncio.gather(*(one(key, program) for key, program in wanted.items() if not program.alone))
        for key, program in wanted.items():
            if program.alone:
                await one(key, program)
        print(json.dumps({"end": len(wanted)}), flush=True)
    finally:
        await sandboxes.close()
        shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", choices=("local", "process"), default="local")
    parser.add_argument("--level", default=None)
    parser.add_argument("--in", dest="surroundings", choices=SURROUNDINGS, default=None)
    parser.add_argument("--image", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATTERN")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(PROGRAMS))
        return
    if ENVIRONMENT_SECRET not in os.environ:
        # The first environment of a process stays readable in /proc: begin anew with the secret in it.
        os.environ[ENVIRONMENT_SECRET] = f"env{secrets.token_hex(12)}"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    cage = Cage()
    child = os.fork()
    if child == 0:
        # The child changes what it is; this process stays itself, and so can leave the group and clear it away.
        if options.surroundings:
            enter(options.surroundings)
        asyncio.run(run_all(options, cage))
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    cage.leave()
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
