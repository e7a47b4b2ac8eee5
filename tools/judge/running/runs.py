"""Runs a program on many inputs or calls, in as few runs of a sandbox as its behaviour allows.

All jobs of a program start in one run of the sandbox: see `in_sandbox`. A run ends early if a job may have left
something behind for the next one (a file, a process), if the program killed it, or if its time slice is over. The
remaining jobs then go to new runs, several at once.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import marshal
import secrets
import sys
import weakref
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from typing import Any

from toolgym.tools.errors import ConfigError, SandboxError, SandboxUnsupportedError
from toolgym.tools.judge import inside
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox

AT_ONCE = 8
"""Runs of one program at once."""

SLICE = 3.0
"""Seconds of a program after which a run hands its remaining jobs back, so that several runs can share them."""

_MIN_SLICE = 0.1

MAX_JOBS = 200
"""Jobs of one run."""

MAX_BYTES = 8 << 20
"""Characters of the inputs of one run, and likely bytes of its outputs, unless a single job has more."""

WALL_FACTOR, WALL_GRACE = 10.0, 10.0
"""A process may take this many times its limit in wall seconds, and some more."""

MIN_IDLE = 2.0
"""Seconds that a program may sleep at least, however short its limit."""

_MAX_WALL = 3000.0
"""Wall seconds of one run of the sandbox. Servers refuse more than an hour."""

_PACKAGE = "toolgym.tools.judge.inside"


@dataclass(frozen=True)
class ProcessLimit:
    """Limits of one process: CPU seconds, and memory in MiB (None: the sandbox's)."""

    seconds: float
    memory_mb: int | None = None

    @property
    def wall(self) -> float:
        return WALL_FACTOR * self.seconds + WALL_GRACE

    def task(self, output_bytes: int) -> dict[str, Any]:
        idle = max(self.seconds, MIN_IDLE)
        return {"seconds": self.seconds, "idle": idle, "wall": self.wall, "output_bytes": output_bytes}


@dataclass(frozen=True)
class JudgeJob:
    """One execution of a program.

    Attributes:
        task: what the process of the tests gets, see `in_sandbox`: its `kind` and the fields of that kind.
        limit: its limits.
        output_bytes: bytes of its output that are kept.
        expected_bytes: bytes of output that are likely.
    """

    task: Mapping[str, Any]
    limit: ProcessLimit
    output_bytes: int
    expected_bytes: int = 0

    @functools.cached_property
    def packed(self) -> str:
        return json.dumps({**self.task, **self.limit.task(self.output_bytes)})


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job.

    Attributes:
        status: `output`, `value` or `passed` if it came to its end; or a value of `VerdictStatus`.
        error: what went wrong.
        run: the run of the sandbox that it was part of.
        report: further fields of the report of the process of the tests.
        seconds: seconds that the program computed or slept.
        size: characters of the report.
    """

    status: str
    error: str = ""
    run: ExecutionResult | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    size: int = 0

    @property
    def ended(self) -> bool:
        return self.status in ("output", "value", "passed")


@dataclass(frozen=True)
class LoadableProgram:
    """A program, and how a run loads it.

    Attributes:
        kind: `functions`, `script` or `command`, see `in_sandbox.main`.
        code: its source.
        setup: source that runs before a program with functions.
        command: how a program of another language is compiled and run.
        load: limits of loading or compiling it.
        memory_mb: memory that the sandbox must allow for loading or compiling it.
        hint: further source that runs beside it, so that the sandbox knows which libraries are needed.
        files: further files, which are there when it is loaded or compiled.
    """

    kind: str
    code: str
    load: ProcessLimit
    setup: str = ""
    command: Mapping[str, Any] | None = None
    memory_mb: int = 0
    hint: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


Accept = Callable[[Mapping[int, JobOutcome]], Awaitable[int | None]]
"""Called with outcomes of jobs, by their numbers. Returns the first job after which none is of interest, if any."""


class NoForkError(SandboxUnsupportedError):
    """The sandbox lets a program have one process, so no process can watch another."""


async def run_jobs(
    sandbox: Sandbox,
    program: LoadableProgram,
    jobs: Sequence[JudgeJob],
    accept: Accept,
    *,
    stop: bool,
    total: float | None = None,
) -> None:
    """Run all jobs of a program, and hand each outcome to `accept`.

    Args:
        sandbox: runs them.
        program: the program.
        jobs: its jobs.
        accept: gets each outcome, those of jobs that run at once in any order; and then once more those of jobs that
            are over `total`.
        stop: whether a run ends at the first job that does not come to its end.
        total: seconds that all jobs together may compute or sleep. The jobs after that, in their order, get the status
            `timeout`, also if they have run at once with others.

    Raises:
        NoForkError: the sandbox allows no second process.
        ConfigError: the language is not installed, or an input does not fit into the sandbox.
        SandboxError: the sandbox failed.
    """
    waiting = list(range(len(jobs)))
    seconds: dict[int, float] = {}
    running: dict[asyncio.Task[dict[int, JobOutcome]], list[int]] = {}
    at_once, last = 1, len(jobs)
    try:
        while waiting or running:
            chunks = list(_chunks(jobs, waiting, at_once)) if waiting else []
            while chunks and len(running) < at_once:
                chunk = chunks.pop(0)
                waiting = [number for number in waiting if number not in chunk]
                slice_ = SLICE if total is None else min(SLICE, max(_MIN_SLICE, total - sum(seconds.values())))
                running[asyncio.create_task(_run(sandbox, program, jobs, chunk, stop=stop, slice_=slice_))] = chunk
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                chunk = running.pop(task)
                outcomes = task.result()
                seconds |= {number: outcome.seconds for number, outcome in outcomes.items()}
                failed = await accept(outcomes)
                last = last if failed is None else min(last, failed)
                waiting += [number for number in chunk if number not in outcomes]
            at_once = AT_ONCE
            for task, chunk in [*running.items()]:
                if min(chunk) > last:
                    await _cancelled(task)
                    del running[task]
            if total is not None and sum(seconds.values()) > total:
                late = range(_first_late(seconds, total), min(last + 1, len(jobs)))
                first = min(map(min, running.values()), default=0)
                for task, chunk in [*running.items()]:
                    if late or min(chunk) != first:  # jobs after the first ones may turn out to be late
                        await _cancelled(task)
                        del running[task]
                        waiting += chunk
                if late:
                    await accept(dict.fromkeys(late, _over(total)))
                    return
                at_once = 1
            waiting = sorted(number for number in waiting if number < last)
    finally:
        for task in running:
            await _cancelled(task)


def _first_late(seconds: Mapping[int, float], total: float) -> int:
    """Return the first job such that the jobs before it have all ended and used more than `total` seconds."""
    spent, number = 0.0, 0
    while spent <= total and number in seconds:
        spent += seconds[number]
        number += 1
    return number if spent > total else sys.maxsize


def _over(total: float) -> JobOutcome:
    return JobOutcome("timeout", f"all tests together used more than {total:g} s")


async def run_alone(
    sandbox: Sandbox,
    language: str,
    program: LoadableProgram,
    jobs: Sequence[JudgeJob],
    accept: Accept,
    *,
    stop: bool,
    total: float | None = None,
) -> None:
    """Run jobs of a program that reads and prints as `run_jobs`, each in a run of its own, without a watching process.

    A sandbox measures the CPU time of such a run only at its end, so programs that compute for too long run until the
    wall limit. Raises SandboxUnsupportedError for jobs with files or arguments.
    """
    if any(job.task["files"] or job.task["reads"] or job.task["argv"] for job in jobs):
        raise SandboxUnsupportedError("tests with files need a sandbox that lets a program have several processes")
    seconds: dict[int, float] = {}
    last = len(jobs)
    limit = asyncio.Semaphore(AT_ONCE)

    async def run(number: int) -> None:
        nonlocal last
        async with limit:
            if number > last or (total is not None and number >= _first_late(seconds, total)):
                return
            outcome = await _run_alone(sandbox, language, program, jobs[number])
            seconds[number] = outcome.seconds
            failed = await accept({number: outcome})
            last = last if failed is None else min(last, failed)

    tasks = [asyncio.ensure_future(run(number)) for number in range(len(jobs))]
    try:
        await asyncio.gather(*tasks)
        if total is not None and (late := range(_first_late(seconds, total), min(last + 1, len(jobs)))):
            await accept(dict.fromkeys(late, _over(total)))
    finally:
        for task in tasks:
            await _cancelled(task)


async def _run_alone(sandbox: Sandbox, language: str, program: LoadableProgram, job: JudgeJob) -> JobOutcome:
    run = await sandbox.run(
        program.code,
        language=language,
        timeout=job.limit.wall,
        compile_timeout=program.load.wall,
        memory_mb=job.limit.memory_mb,
        output_bytes=job.output_bytes,
        stdin=job.task["stdin"],
    )
    if run.status is ExecutionStatus.SANDBOX_ERROR:
        raise SandboxError(f"a test could not be run: {run.message}")
    seconds = run.cpu_seconds if run.cpu_seconds is not None else run.duration
    if run.status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED):
        if run.cpu_seconds is not None and run.cpu_seconds > job.limit.seconds:
            error = f"it used more than {job.limit.seconds:g} s of CPU time"
            return JobOutcome("timeout", error, run, seconds=seconds)
        report = {
            "code": run.return_code,
            "stdout": run.stdout,
            "stderr": run.stderr,
            "truncated": run.stdout_truncated,
        }
        return JobOutcome("output", "", run, report, seconds, len(run.stdout))
    return JobOutcome("killed", "", run, seconds=seconds)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _chunks(jobs: Sequence[JudgeJob], waiting: Sequence[int], at_once: int) -> Iterator[list[int]]:
    """Divide jobs into runs, in their order: about equal ones, with the same limit of memory and bounded sizes."""
    most = min(MAX_JOBS, -(-len(waiting) // at_once))
    chunk: list[int] = []
    size = 0
    for number in waiting:
        job = jobs[number]
        more = len(job.packed) + job.expected_bytes
        too_large = len(chunk) >= most or size + more > MAX_BYTES
        if chunk and (too_large or job.limit.memory_mb != jobs[chunk[0]].limit.memory_mb):
            yield chunk
            chunk, size = [], 0
        chunk.append(number)
        size += more
    yield chunk


async def _run(
    sandbox: Sandbox,
    program: LoadableProgram,
    jobs: Sequence[JudgeJob],
    chunk: Sequence[int],
    *,
    stop: bool,
    slice_: float,
) -> dict[int, JobOutcome]:
    """Run some jobs. Returns the outcomes of the first of them, at least of one."""
    word = secrets.token_hex(16)
    memory = jobs[chunk[0]].limit.memory_mb
    head = {"word": word, "stop": stop, "slice": slice_, "memory_mb": memory, "load": program.load.task(1 << 20)}
    tests = ", ".join(jobs[number].packed for number in chunk)
    text = f'{json.dumps(head)[:-1]}, "tests": [{tests}]}}'
    call = f"main({program.kind!r}, {program.setup!r}, {program.code!r}, file_name, {program.command!r})"
    wall = program.load.wall + WALL_FACTOR * SLICE + max(jobs[number].limit.wall for number in chunk)
    options: dict[str, Any] = {
        "timeout": min(_MAX_WALL, wall),
        "memory_mb": max(memory or 0, program.memory_mb) or None,
        "output_bytes": sum(2 * jobs[number].output_bytes + (16 << 10) for number in chunk),
        "files": {name: text.encode("utf-8", "surrogatepass") for name, text in program.files.items()},
        "stdin": base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1)).decode(),
    }
    run = await _driven(sandbox, f"exec({call})  # {program.hint}\n", options)
    return _outcomes(run, word, chunk)


async def _driven(sandbox: Sandbox, call: str, options: Any) -> ExecutionResult:
    """Run a call of the code that runs in the sandbox."""
    for form in _FORMS[_forms.get(sandbox, 0) :]:
        run = await sandbox.run(f"{_driver(form)}\n{call}", **options)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(f"a test could not be run: {run.message}")
        if form == "source" or not run.stdout.startswith(_OTHER_FORM):
            return run
        _forms[sandbox] = _FORMS.index(form) + 1
    raise AssertionError


def _outcomes(run: ExecutionResult, word: str, chunk: Sequence[int]) -> dict[int, JobOutcome]:
    """Read the reports of the process of the tests. Without its word there is none."""
    outcomes: dict[int, JobOutcome] = {}
    for line in run.stdout.split("\n"):
        if not line.startswith(word):
            continue
        try:
            report = json.loads(line.removeprefix(word))
        except (ValueError, RecursionError):  # cut in its middle
            continue
        if report.get("status") == "no_fork":
            raise NoForkError(
                "functions and assertions are judged by two processes, and the sandbox lets a program have one "
                f"({report['error']}); use the isolation level namespaces or uid"
            )
        if "load" in report:
            return _not_loaded(run, report, chunk)
        if report["status"] == "no_room":
            raise ConfigError(f"the files of a test do not fit into the sandbox's limits: {report['error']}")
        outcomes[chunk[report["test"]]] = JobOutcome(
            report["status"],
            _readable(report.get("error", "")),
            run,
            report,
            float(report.get("seconds", 0.0)),
            len(line),
        )
    missing = [number for number in chunk if number not in outcomes]
    if run.stdout_truncated:  # all reports together, or one alone, were too long
        if not outcomes:
            outcomes[chunk[0]] = JobOutcome(
                "limit", "its output is longer than the sandbox keeps", run, {}, run.duration
            )
    elif not outcomes or (missing and not run.ok):
        # The first job without an outcome was running when the run was killed, or ended by the program.
        outcomes[missing[0]] = JobOutcome("killed", run=run, seconds=run.duration)
    return outcomes


def _not_loaded(run: ExecutionResult, report: Mapping[str, Any], chunk: Sequence[int]) -> dict[int, JobOutcome]:
    if report["load"] == "not_installed":
        raise ConfigError(
            f"the language needs {report['error']}, which is not installed where the sandbox runs programs"
        )
    error = _readable(report["error"])
    outcomes = {number: JobOutcome(report["load"], error, run) for number in chunk}
    for at, reason in report["unprepared"].items():
        outcomes[chunk[int(at)]] = JobOutcome("not_judgeable", _readable(reason), run)
    return outcomes


def _readable(text: object) -> str:
    return str(text).encode(errors="replace").decode()  # it may hold half a character


_FORMS = ("loaded", "compiled", "source")
"""Forms of the code that runs in a sandbox. A `LocalSandbox` of this version has it loaded. Other sandboxes get it with
each run: compiled, if their Python has this version."""

_OTHER_FORM = "the judge needs its files in another form"
"""Printed before the program is loaded, where code of a form cannot run."""

_forms: weakref.WeakKeyDictionary[Sandbox, int] = weakref.WeakKeyDictionary()
"""The first of `_FORMS` that a sandbox may run, where it is not the first of all."""

_NAME = "file_name = sys._getframe().f_code.co_filename\n"


@functools.cache
def _driver(form: str) -> str:
    """Return the code that runs in the sandbox, in one of `_FORMS`."""
    if form == "loaded":
        refusal = f"if 'main' not in globals():\n    raise SystemExit(print({_OTHER_FORM!r}))\n"
        return f"{inside.first_line()}\nimport sys\n{refusal}{_NAME}"
    sources: list[Any] = [inside.source_of(name) for name in inside.FILES]
    load, check = "compile(source, '<judge>', 'exec')", ""
    if form == "compiled":
        sources = [compile(source, "<judge>", "exec", optimize=2) for source in sources]
        load, check = "source", f"if _frozen_importlib_external.MAGIC_NUMBER != {MAGIC_NUMBER!r}:\n"
        check += f"    raise SystemExit(print({_OTHER_FORM!r}))\n"
    packed = base64.b64encode(zlib.compress(marshal.dumps(sources), 9)).decode()
    return (
        f"import base64, marshal, sys, types, zlib, _frozen_importlib_external\n{check}"
        f"sources = marshal.loads(zlib.decompress(base64.b64decode({packed!r})))\n"
        f"package = sys.modules[{_PACKAGE!r}] = types.ModuleType({_PACKAGE!r})\n"
        f"for name, source in zip({inside.FILES!r}, sources):\n"
        f"    module = sys.modules[{_PACKAGE!r} + '.' + name] = types.ModuleType({_PACKAGE!r} + '.' + name)\n"
        "    setattr(package, name, module)\n"
        f"    exec({load}, vars(module))\n"
        f"main = module.main\n{_NAME}"
    )
