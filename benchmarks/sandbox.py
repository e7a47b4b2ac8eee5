"""The sandbox against its targets, and against what else there is, in one run on one machine.

    python -m benchmarks.sandbox [--rows PATTERN ...] [--url NAME=http://host:port ...] [--level LEVEL] [--quick]
    python -m benchmarks.sandbox --without TRICK,... [--level LEVEL] [--quick]      see `benchmarks.sandbox_without`

In process: `LocalSandbox`, beside plain `python -I -c` without any protection as the bound. Over HTTP: any server
that speaks SandboxFusion's `/run_code` and `/run_jupyter`, each under the same client; without --url, our own is
started. Every answer is checked; a wrong one is an error and counts in its column. Rates are the median of three
rounds. `--rows` chooses by name (see --list), with `*`.

The targets in milliseconds and per second were set on one machine, where plain took 7.5 ms one at a time and did 237
per second at 32. Where a row's cost is that of starting processes, a faster, slower or busier machine moves it and
plain alike. For those rows the table also gives the target as a ratio to plain there (2.5 ms is 3 times as fast, 800
per second 3.4 times as many), the ratio to plain in this very run, and whether that one is met. It replaces nothing:
both are shown, and `--strict` asks for the absolute ones. Rows over HTTP are held against plain at 32 at once, whatever
their own concurrency; with --url of another machine, that says nothing.

The figures of SandboxFusion in the table (commit 469de08; `lite` isolation / none at all) were measured on two cores of
one machine; on another machine start it there and give its address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import fnmatch
import importlib.util
import json
import os
import platform
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.base import Limits, Session

STACK = tuple(name for name in ("numpy", "sympy", "pandas", "scipy") if importlib.util.find_spec(name))
STACK_CODE = "".join(f"import {name}\n" for name in STACK)


@dataclass(frozen=True)
class Sample:
    """What one measurement gave.

    Attributes:
        rate: per second.
        p50: milliseconds.
        p99: milliseconds.
        errors: wrong or missing answers.
        amount: another figure, in the row's unit.
    """

    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    errors: int = 0
    amount: float = 0.0


THERE = {"plain-1": 7.5, "plain-32": 237.0}
"""Plain's p50 (ms) and rate (per second) on the machine on which the targets were set."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: to choose it by.
        what: for people.
        figure: which part of the sample the target is about: `rate`, `p50` or `amount`.
        unit: of that figure.
        target: at least (rate) or at most (p50, amount).
        elsewhere: what others reach, as text.
        bound: name of the row of plain that this one is compared with.
    """

    name: str
    what: str
    figure: str
    unit: str
    target: float | None
    elsewhere: str = ""
    bound: str = ""

    @property
    def target_ratio(self) -> float | None:
        """The target as how many times better than plain it is on the machine on which it was set."""
        if self.target is None or self.bound not in THERE:
            return None
        return better(self.figure, self.target, THERE[self.bound])

    def ratio(self, sample: Sample, bound: Sample) -> float:
        """How many times better than plain a sample is; plain's own figure depends on the row: its rate, or its p50."""
        return better(self.figure, float(getattr(sample, self.figure)), float(getattr(bound, self.figure)))

    def met(self, sample: Sample) -> bool | None:
        if self.target is None:
            return None
        value = float(getattr(sample, self.figure))
        return sample.errors == 0 and (value >= self.target if self.figure == "rate" else value <= self.target)


def better(figure: str, one: float, other: float) -> float:
    """How many times better `one` is than `other`: a higher rate, or a shorter time."""
    over, under = (one, other) if figure == "rate" else (other, one)
    return over / under if under else 0.0


LOCAL_ROWS = (
    Row("plain-1", "plain `python -I -c pass`, unprotected, one at a time (the bound)", "p50", "ms", None),
    Row("plain-32", "the same, 32 at once", "rate", "/s", None),
    Row("plain-stack-1", "plain, with imports of the stack, one at a time", "p50", "ms", None),
    Row("pass-1", "`pass`, one at a time", "p50", "ms", 2.5, "plain 7.5", "plain-1"),
    Row("pass-stack-1", "imports of the stack, one at a time", "p50", "ms", 4.5, bound="plain-1"),
    Row("pass-32", "`pass`, 32 at once", "rate", "/s", 800, "plain 237", "plain-32"),
    Row("pass-stack-32", "imports of the stack, 32 at once", "rate", "/s", 450, bound="plain-32"),
    Row("session-open", "session open and first cell", "p50", "ms", 5.0, "ipykernel 427", "plain-1"),
    Row("session-cell", "cell in an open session", "p50", "ms", 0.2, "ipykernel 3.2"),
    Row("session-memory", "idle session, proportional memory (needs root)", "amount", "MB", 2.5, "ipykernel 36"),
    Row("session-fork", "fork of a session that holds 100 MB of numpy", "p50", "ms", 8.0, "AgentENV claims < 100"),
    Row(
        "session-2000",
        "2,000 open sessions, each answering: proportional memory of all (needs root)",
        "amount",
        "MB",
        8192,
    ),
)

HTTP_ROWS = (
    Row("http-print", "`print(1+1)`, 8 at once", "rate", "/s", 550, "9.4 / 97", "plain-32"),
    Row("http-numpy", "numpy, 8 at once", "rate", "/s", 300, "7.0 / 16.9", "plain-32"),
    Row("http-sympy", "sympy factor, 8 at once", "rate", "/s", 90, "3.5 / 5.5", "plain-32"),
    Row("http-jupyter", "`/run_jupyter`, 3 cells, 8 at once", "rate", "/s", 280, "2.5 / 3.2", "plain-32"),
    Row("http-print-256", "`print(1+1)`, 256 at once", "rate", "/s", 450, "– / 93", "plain-32"),
    Row("http-print-1000", "`print(1+1)`, 1,000 at once", "rate", "/s", 450, bound="plain-32"),
)


@dataclass
class Scale:
    """How much of everything."""

    executions: int = 300
    rounds: int = 3
    sessions: int = 2000
    level: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def summary(times: list[float], wall: float, errors: int) -> Sample:
    """Of one round; times in seconds."""
    return Sample(len(times) / wall, percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3, errors)


async def closed_loop(call: Callable[[], Awaitable[bool]], at_once: int, count: int) -> Sample:
    """`at_once` workers, each calling again when it was answered, `count` calls in all. A call says if it was right."""
    times: list[float] = []
    errors = 0
    left = count

    async def worker() -> None:
        nonlocal left, errors
        while left > 0:
            left -= 1
            began = time.perf_counter()
            if not await call():
                errors += 1
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return summary(times, time.perf_counter() - began, errors)


async def best_of(measure: Callable[[], Awaitable[Sample]], rounds: int) -> Sample:
    """The median round by rate, with the errors of all."""
    samples = [await measure() for _ in range(rounds)]
    middle = sorted(samples, key=lambda sample: sample.rate)[len(samples) // 2]
    return Sample(middle.rate, middle.p50, middle.p99, sum(sample.errors for sample in samples), middle.amount)


# ---------------------------------------------------------------------- in process


async def plain(code: str) -> bool:
    """What one writes without a sandbox."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code)
    return await process.wait() == 0


@contextlib.asynccontextmanager
async def local(scale: Scale, **options: Any) -> AsyncIterator[LocalSandbox]:
    """A sandbox whose templates are there, warm."""
    options = {"level": scale.level, "preload": STACK, **scale.options, **options}
    async with LocalSandbox(**options) as sandbox:
        await asyncio.gather(*(sandbox.run(code) for code in ("pass", STACK_CODE) for _ in range(8)))
        yield sandbox


async def measure_runs(scale: Scale, code: str, at_once: int) -> Sample:
    async with local(scale) as sandbox:

        async def call() -> bool:
            return (await sandbox.run(code)).ok

        count = scale.executions if at_once == 1 else scale.executions * 3
        return await best_of(lambda: closed_loop(call, at_once, count), scale.rounds)


async def measure_plain(scale: Scale, code: str, at_once: int) -> Sample:
    count = scale.executions // (10 if code != "pass" else 2)
    return await best_of(lambda: closed_loop(lambda: plain(code), at_once, max(count, 5)), scale.rounds)


async def measure_session_open(scale: Scale) -> Sample:
    async with local(scale) as sandbox:

        async def call() -> bool:
            opened.append(await sandbox.session())
            return (await opened[-1].run_cell("x = 1\nx")).result == "1"

        async def once() -> Sample:
            sample = await closed_loop(call, 1, scale.executions // 5)
            await asyncio.gather(*(session.close() for session in opened))
            opened.clear()
            return sample

        opened: list[Session] = []
        return await best_of(once, scale.rounds)


async def measure_session_cell(scale: Scale) -> Sample:
    async with local(scale) as sandbox, await sandbox.session() as session:
        await session.run_cell("x = 1")

        async def call() -> bool:
            return (await session.run_cell("x + 1")).result == "2"

        return await best_of(lambda: closed_loop(call, 1, scale.executions * 3), scale.rounds)


async def measure_session_memory(scale: Scale) -> Sample:
    async with local(scale) as sandbox:
        sessions = [await sandbox.session()]
        await sessions[0].run_cell("x = 1")
        await asyncio.sleep(0.3)
        before = proportional_mb(sandbox.template_ids)
        count = 64
        for _ in range(count):
            sessions.append(await sandbox.session())
            await sessions[-1].run_cell("x = 1")
        await asyncio.sleep(0.3)
        return Sample(amount=(proportional_mb(sandbox.template_ids) - before) / count)


async def measure_session_fork(scale: Scale) -> Sample:
    async with local(scale, limits=Limits(memory_mb=2048)) as sandbox, await sandbox.session() as session:
        made = "import numpy\ndata = numpy.ones(100 * 2**20 // 8)\ndata.nbytes >> 20"
        errors = (await session.run_cell(made)).result != "100"
        times: list[float] = []
        began = time.perf_counter()
        for _ in range(max(10, scale.executions // 10)):
            start = time.perf_counter()
            fork = await session.fork()
            times.append(time.perf_counter() - start)
            errors += (await fork.run_cell("int(data.sum()) >> 17")).result != "100"
            await fork.close()
        return summary(times, time.perf_counter() - began, int(errors))


async def measure_many_sessions(scale: Scale) -> Sample:
    async with local(scale) as sandbox:
        began = time.perf_counter()
        sessions = []
        for number in range(scale.sessions):
            sessions.append(await sandbox.session())
            await sessions[-1].run_cell(f"n = {number}")
        rate = len(sessions) / (time.perf_counter() - began)
        errors = 0
        times: list[float] = []
        for number, session in enumerate(sessions):
            start = time.perf_counter()
            errors += (await session.run_cell("n")).result != str(number)
            times.append(time.perf_counter() - start)
        amount = proportional_mb(sandbox.template_ids)
        await asyncio.gather(*(session.close() for session in sessions))
        return Sample(rate, percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3, errors, amount)


LOCAL_MEASURES: dict[str, Callable[[Scale], Awaitable[Sample]]] = {
    "plain-1": lambda scale: measure_plain(scale, "pass", 1),
    "plain-32": lambda scale: measure_plain(scale, "pass", 32),
    "plain-stack-1": lambda scale: measure_plain(scale, STACK_CODE, 1),
    "pass-1": lambda scale: measure_runs(scale, "pass", 1),
    "pass-stack-1": lambda scale: measure_runs(scale, STACK_CODE, 1),
    "pass-32": lambda scale: measure_runs(scale, "pass", 32),
    "pass-stack-32": lambda scale: measure_runs(scale, STACK_CODE, 32),
    "session-open": measure_session_open,
    "session-cell": measure_session_cell,
    "session-memory": measure_session_memory,
    "session-fork": measure_session_fork,
    "session-2000": measure_many_sessions,
}


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for child in children(pid):
        found += family(child)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def same_memory(one: int, other: int) -> bool:
    """Whether two processes run in the very same memory, which is not a copy (`kcmp(2)`, KCMP_VM)."""
    number = {"x86_64": 312, "aarch64": 272}[platform.machine()]
    return one != other and ctypes.CDLL(None).syscall(number, one, other, 1, 0, 0) == 0


def proportional_mb(pids: list[int]) -> float:
    """Memory of processes and all below them, what they share divided among them.

    The first process of a sandbox's namespace runs in the memory of its oldest sibling, the zygote that forked it:
    that counts once.
    """
    total = 0
    members = {member for pid in pids for member in family(pid)}
    eldest = {child: one[0] for member in members for one in [children(member)] for child in one}
    for member in members:
        with contextlib.suppress(OSError):
            if same_memory(member, eldest.get(member, member)):
                continue
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


# ---------------------------------------------------------------------- over HTTP

RUN_CODE = {
    "http-print": ("print(1+1)", "2", 8),
    "http-numpy": ("import numpy; print(numpy.arange(10).sum())", "45", 8),
    "http-sympy": ("import sympy; print(sympy.factor('x**2-1'))", "(x - 1)*(x + 1)", 8),
    "http-print-256": ("print(1+1)", "2", 256),
    "http-print-1000": ("print(1+1)", "2", 1000),
}
CELLS = ["a = 20", "a + 22", "print(a * 2)"]


async def measure_http(name: str, url: str, scale: Scale) -> Sample:
    limit = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as client:

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            try:
                async with client.post(url.rstrip("/") + path, json=body) as response:
                    answer = await response.json()
                    return answer if response.status == 200 and isinstance(answer, dict) else {}
            except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError):
                return {}

        async def run_code() -> bool:
            code, expected, _ = RUN_CODE[name]
            answer = await post("/run_code", {"code": code, "language": "python"})
            return ((answer.get("run_result") or {}).get("stdout") or "").strip() == expected

        async def run_jupyter() -> bool:
            answer = await post("/run_jupyter", {"cells": CELLS})
            cells = answer.get("cells") or []
            return (
                len(cells) == 3
                and any(one.get("text/plain") == "42" for one in cells[1]["display"])
                and cells[2]["stdout"] == "40\n"
            )

        call = run_jupyter if name == "http-jupyter" else run_code
        at_once = RUN_CODE[name][2] if name in RUN_CODE else 8
        await closed_loop(call, 4, 8)
        count = max(scale.executions, 2 * at_once)
        return await best_of(lambda: closed_loop(call, at_once, count), scale.rounds)


@contextlib.asynccontextmanager
async def own_server() -> AsyncIterator[str]:
    """Our own server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "toolgym", "serve", "sandbox", "--port", str(port), stdout=asyncio.subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as client:
            for _ in range(300):
                if process.returncode is not None:
                    raise SystemExit(f"the server ended with code {process.returncode}; give --url instead")
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"{url}/health") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


# ---------------------------------------------------------------------- the table


def cells(row: Row, sample: Sample, bound: Sample | None) -> list[str]:
    value = float(getattr(sample, row.figure))
    met = row.met(sample)
    target = "" if row.target is None else f"{'≥' if row.figure == 'rate' else '≤'} {row.target:g}"
    ratio = target_ratio = ratio_met = ""
    if bound is not None:
        ratio = f"{row.ratio(sample, bound):.1f} ×"
        if row.target_ratio is not None:
            target_ratio = f"≥ {row.target_ratio:.1f} ×"
            ratio_met = "yes" if sample.errors == 0 and row.ratio(sample, bound) >= row.target_ratio else "**no**"
    return [
        row.what,
        f"{value:.2f} {row.unit}",
        f"{sample.rate:.0f}" if sample.rate else "",
        f"{sample.p50:.2f} / {sample.p99:.2f}" if sample.p50 else "",
        str(sample.errors),
        target,
        {None: "", True: "yes", False: "**no**"}[met],
        ratio,
        target_ratio,
        ratio_met,
        row.elsewhere,
    ]


HEAD = [
    "what", "figure", "per second", "p50 / p99 ms", "errors", "target", "met", "times better than plain",
    "target of that", "met", "elsewhere",
]  # fmt: skip


def show(columns: list[str]) -> None:
    print("| " + " | ".join(columns) + " |", flush=True)


async def run(options: argparse.Namespace) -> bool:
    scale = Scale(level=options.level)
    if options.quick:
        scale = Scale(executions=60, rounds=1, sessions=200, level=options.level)

    def wanted(row: Row) -> bool:
        return not options.rows or any(fnmatch.fnmatch(row.name, pattern) for pattern in options.rows)

    rows = [row for row in (*LOCAL_ROWS, *HTTP_ROWS) if wanted(row)]
    needed = {row.name for row in rows} | {row.bound for row in rows}
    seen: dict[str, Sample] = {}
    good = True
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, stack: {', '.join(STACK) or 'none'}\n")
    if any(row.name in needed for row in LOCAL_ROWS):
        async with LocalSandbox(level=options.level, preload=()) as sandbox:
            await sandbox.run("pass")
            print(f"in process: {sandbox.isolation}\n")
        show(HEAD)
        show(["---"] * len(HEAD))
        for row in LOCAL_ROWS:
            if row.name in needed:
                seen[row.name] = await LOCAL_MEASURES[row.name](scale)
                show(cells(row, seen[row.name], seen.get(row.bound)))
                good = good and row.met(seen[row.name]) is not False
    if any(wanted(row) for row in HTTP_ROWS):
        async with contextlib.AsyncExitStack() as stack:
            urls = dict(text.partition("=")[::2] for text in options.url)
            if not urls:
                urls["toolgym"] = ""
            for name, url in urls.items():
                if not url:
                    url = await stack.enter_async_context(own_server())
                print(f"\nover HTTP: {name}\n")
                show(HEAD)
                show(["---"] * len(HEAD))
                for row in HTTP_ROWS:
                    if wanted(row):
                        sample = await measure_http(row.name, url, scale)
                        show(cells(row, sample, seen.get(row.bound)))
                        good = good and row.met(sample) is not False
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=[], metavar="PATTERN")
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="NAME alone: our own is started")
    parser.add_argument("--level", default=None)
    parser.add_argument("--quick", action="store_true", help="a fifth of everything: to see that it works")
    parser.add_argument("--strict", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--without", action="append", default=[], metavar="TRICK,...", help="what one trick saves, in CPU time"
    )
    options = parser.parse_args()
    if options.list:
        for row in (*LOCAL_ROWS, *HTTP_ROWS):
            print(f"{row.name:18s} {row.what}")
        return
    if options.without:
        from benchmarks.sandbox_without import run_without

        tricks = [trick for text in options.without for trick in text.split(",")]
        asyncio.run(run_without(tricks, level=options.level, quick=options.quick))
        return
    good = asyncio.run(run(options))
    sys.exit(1 if options.strict and not good else 0)


if __name__ == "__main__":
    main()
