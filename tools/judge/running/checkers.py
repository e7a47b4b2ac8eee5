"""Runs the checker programs of data sets on the outputs of programs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

from toolgym.tools.judge.cases import CheckerTest, Verdict, VerdictStatus
from toolgym.tools.judge.running import verdicts
from toolgym.tools.judge.running.commands import command_of
from toolgym.tools.judge.running.runs import JobOutcome, JudgeJob, LoadableProgram, ProcessLimit, run_jobs
from toolgym.tools.sandbox.base import Sandbox

TIMEOUT = 30.0
"""CPU seconds of a checker on one output."""

COMPILE_TIMEOUT = 120.0
"""CPU seconds for the compiler of a checker: testlib is large."""

_INPUT, _ANSWER, _OUTPUT = "input.txt", "correct_output.txt", "solution_output.txt"
_ARGUMENTS = {"printed": (_INPUT, _ANSWER, _OUTPUT), "testlib": (_INPUT, _OUTPUT, _ANSWER)}
_REJECTED = {1, 2, 4, 5, 7, 8}
"""Exit codes of testlib for an output that is wrong, badly written, or right in part only."""

_MAX_OUTPUT = 1 << 16
_MAX_CONTROLS = 4096
_controls: OrderedDict[bytes, bool] = OrderedDict()
"""Whether checkers accept reference outputs, so that each is asked once."""


async def checked(sandbox: Sandbox, tests: Mapping[int, tuple[CheckerTest, JobOutcome]]) -> dict[int, Verdict]:
    """Return verdicts of checkers on outputs.

    A checker that does not accept an output is asked about the reference output as well. If it does not accept that
    either, it is at fault, and not the program.
    """
    numbers = [*tests]
    asked = [(test, verdicts.run_of(outcome).stdout) for test, outcome in tests.values()]
    opinions = dict(zip(numbers, await _ask(sandbox, asked), strict=True))
    refused = [number for number in numbers if not opinions[number][0]]
    faulty = await _faulty(sandbox, [tests[number][0] for number in refused])
    judged = {}
    for number, (test, outcome) in tests.items():
        accepted, detail = opinions[number]
        if accepted:
            status = VerdictStatus.PASSED
        elif _key(test) in faulty:
            status, detail = VerdictStatus.NOT_JUDGEABLE, f"the checker fails on the reference output too: {detail}"
        else:
            status = VerdictStatus.WRONG
        judged[number] = Verdict(status, "" if accepted else detail, verdicts.run_of(outcome))
    return judged


async def _faulty(sandbox: Sandbox, tests: Sequence[CheckerTest]) -> set[bytes]:
    """Return the keys of tests whose checkers do not accept the reference output."""
    new = {_key(test): test for test in tests if test.expected and _key(test) not in _controls}
    opinions = await _ask(sandbox, [(test, test.expected) for test in new.values()])
    for key, (accepted, _) in zip(new, opinions, strict=True):
        _controls[key] = accepted
    while len(_controls) > _MAX_CONTROLS:
        _controls.popitem(last=False)
    return {_key(test) for test in tests if not _controls.get(_key(test), True)}


def _key(test: CheckerTest) -> bytes:
    files = [part for pair in sorted(test.checker_files.items()) for part in pair]
    parts = (test.checker, test.checker_language, test.protocol, test.stdin, test.expected, *files)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


async def _ask(sandbox: Sandbox, asked: Sequence[tuple[CheckerTest, str]]) -> list[tuple[bool, str]]:
    """Return for each output whether its checker accepts it, and the checker's words."""
    opinions: list[tuple[bool, str]] = [(False, "")] * len(asked)
    groups: dict[object, list[int]] = defaultdict(list)
    for at, (test, _) in enumerate(asked):
        groups[test.checker, test.checker_language, tuple(sorted(test.checker_files.items()))].append(at)
    for numbers in groups.values():
        first = asked[numbers[0]][0]
        jobs = [_job(*asked[at]) for at in numbers]

        async def accept(outcomes: Mapping[int, JobOutcome], numbers: list[int] = numbers) -> None:
            for at, outcome in outcomes.items():
                opinions[numbers[at]] = _opinion(asked[numbers[at]][0], outcome)

        await run_jobs(sandbox, _program(sandbox, first), jobs, accept, stop=False)
    return opinions


def _program(sandbox: Sandbox, test: CheckerTest) -> LoadableProgram:
    command = command_of(sandbox, test.checker_language, test.checker, None)
    if command is None:
        return LoadableProgram("script", test.checker, ProcessLimit(TIMEOUT), files=test.checker_files)
    memory = int(command["memory_mb"]) if command["compile"] else 0
    load = ProcessLimit(COMPILE_TIMEOUT)
    return LoadableProgram(
        "command", command["code"], load, command=command, memory_mb=memory, files=test.checker_files
    )


def _job(test: CheckerTest, output: str) -> JudgeJob:
    files = {_INPUT: test.stdin, _ANSWER: test.expected, _OUTPUT: output}
    task = {"kind": "script", "stdin": "", "files": files, "reads": "", "argv": [*_ARGUMENTS[test.protocol]]}
    return JudgeJob(task, ProcessLimit(TIMEOUT), _MAX_OUTPUT)


def _opinion(test: CheckerTest, outcome: JobOutcome) -> tuple[bool, str]:
    run = verdicts.run_of(outcome)
    words = "\n".join(filter(None, (run.stdout.strip(), run.stderr.strip(), outcome.error)))[-verdicts.DETAIL :]
    if outcome.status != "output":
        return False, f"the checker ended with {outcome.status}: {words}"
    if test.protocol == "testlib":
        if run.return_code in (0, *_REJECTED):
            return run.return_code == 0, words or "the checker rejects the output"
        return False, f"the checker ended with code {run.return_code}: {words}"
    score = _number(run.stdout)
    if run.return_code != 0 or score is None:
        return False, f"the checker ended with code {run.return_code} and without a score: {words}"
    return score > 0, f"the checker's score is {score:g}"


def _number(text: str) -> float | None:
    """Return the number that a checker printed last."""
    try:
        return float(text.split()[-1])
    except (ValueError, IndexError):
        return None
