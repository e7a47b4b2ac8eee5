"""The sandbox against its targets and other ways to run code, in one run on one machine.

    python benchmarks/sandbox.py [--rows PATTERN ...] [--url NAME=http://host:port ...] [--level LEVEL] [--quick]
    python benchmarks/sandbox.py --without TRICK,... [--level LEVEL] [--quick]      see `sandbox_measures/without.py`
    python benchmarks/sandbox.py --shadow [--level LEVEL] [--quick]                 see `sandbox_measures/shadows.py`

In process: `LocalSandbox`, beside plain `python -I -c` without any protection as the bound. Over HTTP: any server
that speaks SandboxFusion's `/run_code` and `/run_jupyter`, each under the same client; without --url, our own is
started. Every answer is checked; a wrong one is an error and counts in its column. Rates are the median of three
rounds. `--rows` chooses by name (see --list), with `*`.

The targets in milliseconds and per second were set on one machine, where plain took 7.5 ms one at a time and did 237
per second at 32. Where a row's cost is that of starting processes, a faster, slower or busier machine changes it and
plain by the same factor. For those rows the table also gives the target as a ratio to plain there (2.5 ms is 3 times as
fast, 800 per second 3.4 times as many), the ratio to plain in this run, and whether it is met. `--strict` checks the
absolute targets. Rows over HTTP are compared with plain at 32 at once, for any concurrency of their own; with --url of
another machine, that says nothing.

The figures of SandboxFusion in the table (commit 469de08; `lite` isolation / none at all) were measured on two cores of
one machine; to compare on another machine, start it there and pass `--url`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import os
import sys
from dataclasses import dataclass

from sandbox_measures.forks import FORK_MEASURES
from sandbox_measures.in_process import LOCAL_MEASURES
from sandbox_measures.over_http import measure_http, own_server
from sandbox_measures.samples import STACK, Sample, Scale, show
from sandbox_measures.shadows import run_shadows
from sandbox_measures.transfers import TRANSFER_MEASURES
from sandbox_measures.without import run_without

from toolgym.tools.sandbox import LocalSandbox

REFERENCE = {"plain-1": 7.5, "plain-32": 237.0}
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
        others: what others reach, as text.
        bound: name of the row of plain that this one is compared with.
    """

    name: str
    what: str
    figure: str
    unit: str
    target: float | None
    others: str = ""
    bound: str = ""

    @property
    def target_ratio(self) -> float | None:
        """The target as how many times better than plain it is on the machine on which it was set."""
        if self.target is None or self.bound not in REFERENCE:
            return None
        return better(self.figure, self.target, REFERENCE[self.bound])

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
    Row("bare-fork", "`os.fork` in a session with numpy, CPU time of each (the bound)", "amount", "ms", None),
    Row(
        "session-fork-cpu",
        "`fork(n=100)` of such a session, CPU time of each; 100 in 0.3 s on 2 cores are 6 ms",
        "amount",
        "ms",
        6.0,
        bound="bare-fork",
    ),
    Row(
        "session-checkpoint-cpu",
        "a checkpoint before each turn, CPU time of each",
        "amount",
        "ms",
        5.0,
        bound="bare-fork",
    ),
    Row("plain-forks", "plain `os.fork` of a process with numpy: 1,000 copies (the bound)", "rate", "/s", None),
    Row("plain-forks-memory", "the same, proportional memory of each (needs root)", "amount", "MB", None),
    Row(
        "session-forks",
        "`fork(n=1000)` of a session with numpy, each answering",
        "rate",
        "/s",
        1000,
        bound="plain-forks",
    ),
    Row("session-forks-memory", "the same, proportional memory of each", "amount", "MB", 1, bound="plain-forks-memory"),
    Row(
        "session-2000",
        "2,000 open sessions, each answering: proportional memory of all (needs root)",
        "amount",
        "MB",
        8192,
    ),
    Row("sleepers", "a step of 64 envs, 32 of whose programs sleep a second: the bound is 1 s", "amount", "×", 1.5),
    Row("pass-256", "`pass`, 256 at once", "rate", "/s", 800, bound="plain-32"),
    Row("pass-stack-256", "imports of the stack, 256 at once", "rate", "/s", 450, bound="plain-32"),
    Row("tar-small", "`tar -c | tar -x`, 1,000 files of 8 KiB (the bound of the next two)", "rate", "MB/s", None),
    Row("upload-small", "`upload_folder` of these", "rate", "MB/s", None, bound="tar-small"),
    Row("download-small", "`download_folder` of these", "rate", "MB/s", None, bound="tar-small"),
    Row("tar-large", "`tar -c | tar -x`, 2 files of 24 MiB (the bound of the next two)", "rate", "MB/s", None),
    Row("upload-large", "`upload_folder` of these", "rate", "MB/s", None, bound="tar-large"),
    Row("download-large", "`download_folder` of these", "rate", "MB/s", None, bound="tar-large"),
)

HTTP_ROWS = (
    Row("http-print", "`print(1+1)`, 8 at once", "rate", "/s", 550, "9.4 / 97", "plain-32"),
    Row("http-numpy", "numpy, 8 at once", "rate", "/s", 300, "7.0 / 16.9", "plain-32"),
    Row("http-sympy", "sympy factor, 8 at once", "rate", "/s", 90, "3.5 / 5.5", "plain-32"),
    Row("http-jupyter", "`/run_jupyter`, 3 cells, 8 at once", "rate", "/s", 280, "2.5 / 3.2", "plain-32"),
    Row("http-print-256", "`print(1+1)`, 256 at once", "rate", "/s", 450, "– / 93", "plain-32"),
    Row("http-print-1000", "`print(1+1)`, 1,000 at once", "rate", "/s", 450, bound="plain-32"),
)


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
        row.others,
    ]


HEAD = [
    "what", "figure", "per second", "p50 / p99 ms", "errors", "target", "met", "times better than plain",
    "target of that", "met", "others",
]  # fmt: skip


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
                seen[row.name] = await (LOCAL_MEASURES | FORK_MEASURES | TRANSFER_MEASURES)[row.name](scale)
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
    parser.add_argument("--shadow", action="store_true", help="what the shadow of a session costs each cell")
    options = parser.parse_args()
    if options.list:
        for row in (*LOCAL_ROWS, *HTTP_ROWS):
            print(f"{row.name:18s} {row.what}")
        return
    if options.without:
        tricks = [trick for text in options.without for trick in text.split(",")]
        asyncio.run(run_without(tricks, level=options.level, quick=options.quick))
        return
    if options.shadow:
        asyncio.run(run_shadows(level=options.level, quick=options.quick))
        return
    good = asyncio.run(run(options))
    sys.exit(1 if options.strict and not good else 0)


if __name__ == "__main__":
    main()
