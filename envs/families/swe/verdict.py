"""The verdict: hidden tests beside the policy's files, in a session that the policy has never seen."""

from __future__ import annotations

import ast
import configparser
import itertools
import json
import secrets
import shlex
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.test_names import (
    ABSENT,
    NOT_RUN,
    PASSED,
    counts_as_passed,
    is_cut,
    united_outcome,
    unittest_name,
)
from toolgym.envs.families.swe.tree import Changes, Node, Tree, changed, is_left_out
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import ExecResult, ExecutionStatus, Session


def _plain(source: str) -> str:
    """Return a program without the annotations of its functions, so that a Python as old as 3.6 runs it."""
    program = ast.parse(source)
    for node in ast.walk(program):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.unparse(program).replace("from __future__ import annotations", "")


TEST_PROGRAM = _plain((Path(__file__).parent / "test_program.py").read_text(encoding="utf-8"))

OUTPUT_CHARS = 20_000

SLACK = 30.0
"""Seconds beyond the deadline of the tests until the sandbox must have said how they ended."""

CONFIGS = {
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "pyproject.toml": "tool.pytest.ini_options",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}
"""Files that pytest reads its options from, in its order, and the section
(https://docs.pytest.org/en/stable/reference/customize.html)."""


@dataclass(frozen=True)
class TestReport:
    """The ends of the hidden tests.

    Attributes:
        f2p_count, f2p_total: tests of `fail_to_pass` that count as passed, and all of them.
        p2p_count, p2p_total: the same of `pass_to_pass`.
        output: the end of their output. It quotes hidden tests: no policy may read it.
        infra_error: why there is no verdict; None: there is one. The counts are 0 then and mean nothing.
        tampered: tests passed that cannot pass, or reports came that were not due: something in the repository changed
            what a test is, or forged its end. None counts.
        outcomes: the end of each test, by id; one that is missing did not run to its end.
        seconds: wall seconds that the tests took.
        measured: whether the test runner got as far as running tests, which its controls show, or ran out of time.
        broken_by_policy: the policy left nothing that tests could be run on, or its code ended the session that
            they ran in. None counts.
    """

    __test__ = False  # it is no test of pytest's

    f2p_count: int
    f2p_total: int
    p2p_count: int
    p2p_total: int
    output: str = ""
    infra_error: str | None = None
    tampered: bool = False
    outcomes: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    measured: bool = True
    broken_by_policy: bool = False

    @property
    def passed(self) -> set[str]:
        return {test for test, how in self.outcomes.items() if how == PASSED}

    @property
    def resolved(self) -> bool:
        return self.infra_error is None and self.f2p_count == self.f2p_total and self.p2p_count == self.p2p_total

    @property
    def resolved_by_passing(self) -> bool:
        """Whether all tests passed, none by being skipped or by failing as expected."""
        return self.resolved and self.passed == {*self.outcomes}

    def counted(self, task: RepositoryTask, reference: Mapping[str, str]) -> TestReport:
        """Return the report with ends counted that tests also have in a `reference`; see `counts_as_passed`."""
        counts = report_of(task, self.outcomes, self.output, self.seconds, reference=reference)
        return replace(counts, measured=self.measured)

    def worth(self, *, strict: bool) -> float:
        """Return the share of `fail_to_pass` that passed if all `pass_to_pass` did; if `strict`, 1 for all tests."""
        if strict:
            return float(self.resolved)
        return self.f2p_count / self.f2p_total if self.p2p_count == self.p2p_total else 0.0


def repository_to_judge(task: RepositoryTask, changes: Changes) -> Tree:
    """Return the files that the tests see: the policy's, but the tests as they were, and the hidden ones."""
    counted = {
        name: node
        for name, node in changes.items()
        if not (is_left_out(name) or task.is_test(name) or _shadows(task, name))
    }
    return changed(changed(task.tree, counted), task.hidden)


def _shadows(task: RepositoryTask, name: str) -> bool:
    """Whether Python might import a new file in place of a hidden test, or of a folder that it lies in.

    Such are `tests.py` beside `tests/`, a link in place of that folder, and `tests/test_x.so` or a folder
    `tests/test_x/` beside `tests/test_x.py`.
    """
    if name in task.tree:
        return False
    for test in task.test_files:
        module = test.removesuffix(".py")
        folder, _, last = name.rpartition("/")
        stem = f"{folder}/{last.partition('.')[0]}" if folder else last.partition(".")[0]
        if stem == module or module.startswith(f"{stem}/") or name.startswith(f"{module}/"):
            return True
    return False


async def judge(
    task: RepositoryTask,
    session: Session,
    folder: str,
    tree: Tree,
    timeout: float,
    *,
    tests: Sequence[str] | None = None,
) -> TestReport:
    """Run the hidden tests, or those of `tests`, in a session that holds the files already.

    Raises ConfigError or SandboxError.
    """
    asked = [*task.fail_to_pass, *task.pass_to_pass] if tests is None else [*tests]
    if "{test}" in task.test_command:
        return await _run_each(task, session, folder, timeout, asked)
    token, control = secrets.token_hex(8), f"control_{secrets.token_hex(8)}"
    command = _command(task, tree)
    names = {test: command.name_of(test) for test in asked}
    request = {**command.request(task, names), "token": token, "control": control, "folder": folder}
    if command.kind == "pytest":
        name, data = _pytest_config(task.tree, control)
        await session.write_file(f"{folder}/{name}", data)
        request["config"] = name
    run = await session.exec(["python3", "-I", "-c", TEST_PROGRAM], stdin=f"{json.dumps(request)}\n", timeout=timeout)
    ends, forged = _outcomes(run.stdout, token, request, control)
    started = ends.pop(None, "")
    if run.status is ExecutionStatus.SANDBOX_ERROR or started != "started":
        return no_verdict(task, started or run.message or run.stderr[-2000:] or f"the tests ended: {run.status}", run)
    controls = {test: how for test, how in ends.items() if control in test}
    tampered = forged or PASSED in controls.values()
    outcomes = {} if tampered else {test: ends[name] for test, name in names.items() if name in ends}
    report = report_of(task, outcomes, run.stderr, run.duration, tampered=tampered)
    return replace(report, measured=bool(controls) or run.status is ExecutionStatus.TIMEOUT)


def no_verdict(task: RepositoryTask, why: str, run: ExecResult | None = None) -> TestReport:
    return replace(report_of(task, {}, "" if run is None else run.stderr, 0.0), infra_error=why)


async def _run_each(
    task: RepositoryTask, session: Session, folder: str, timeout: float, tests: Sequence[str]
) -> TestReport:
    outcomes: dict[str, str] = {}
    output: list[str] = []
    started = time.monotonic()
    for test in tests:
        left = timeout - (time.monotonic() - started)
        if left <= 0:
            break
        command = task.test_command.replace("{test}", shlex.quote(test))
        run = await session.exec(command, cwd=folder, timeout=left)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            return no_verdict(task, run.message or "the sandbox failed", run)
        if run.status is not ExecutionStatus.TIMEOUT:
            outcomes[test] = PASSED if run.ok else NOT_RUN if run.return_code in (126, 127) else "failed"
        output += [f"{test}: {run.status}\n", run.stdout, run.stderr]
    return report_of(task, outcomes, "".join(output), time.monotonic() - started)


def report_of(
    task: RepositoryTask,
    outcomes: Mapping[str, str],
    output: str,
    seconds: float,
    *,
    tampered: bool = False,
    reference: Mapping[str, str] = MappingProxyType({}),
) -> TestReport:
    def passed(tests: Sequence[str], *, may_skip: bool) -> int:
        return sum(counts_as_passed(test, outcomes.get(test), reference, may_skip=may_skip) for test in tests)

    return TestReport(
        f2p_count=passed(task.fail_to_pass, may_skip=False),
        f2p_total=len(task.fail_to_pass),
        p2p_count=passed(task.pass_to_pass, may_skip=True),
        p2p_total=len(task.pass_to_pass),
        output=output[-OUTPUT_CHARS:],
        tampered=tampered,
        outcomes=outcomes,
        seconds=seconds,
    )


def _outcomes(stdout: str, token: str, request: Mapping[str, Any], control: str) -> tuple[dict[Any, str], bool]:
    """Return the end of each test (None stands for the program itself), and whether reports were forged.

    The policy's code runs in the process that reports, and can find its token. So every report must be due: a test that
    was asked for begins once, and after that ends once.
    """
    tests: Sequence[str] = request["tests"]
    outcomes: dict[Any, str] = {}
    united: dict[str, list[str]] = {}
    begun: set[str] = set()
    forged = False
    for line in stdout.splitlines():
        head, _, rest = line.partition(" ")
        if not secrets.compare_digest(head.encode(), token.encode()):
            continue
        try:
            name, outcome = json.loads(rest)
        except (ValueError, TypeError):  # the middle of too much output was dropped
            continue
        test, cut = name, None
        if isinstance(name, int) and 0 <= name < len(tests):
            test = tests[name]
        elif isinstance(name, list) and len(name) == 2 and name[0] in range(len(tests)):
            cut, test = tests[name[0]], name[1]
            forged |= cut not in request["cut"] or not isinstance(test, str) or not test.startswith(cut)
        elif name is not None and not (isinstance(name, str) and control in name):
            forged = True
        if forged:
            continue
        if outcome == "began" and test not in begun and test is not None:
            begun.add(test)
        elif test in outcomes or (test is not None and test not in begun and outcome != ABSENT):
            forged = True
        else:
            outcomes[test] = str(outcome)
            if cut is not None:
                united.setdefault(cut, []).append(str(outcome))
    return outcomes | {cut: united_outcome(ends) for cut, ends in united.items()}, forged


# ---------------------------------------------------------------------- the command


@dataclass(frozen=True)
class TestCommand:
    """A test command of `unittest` or `pytest`, read into what the test program needs."""

    __test__ = False

    kind: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()

    def name_of(self, test: str) -> str:
        """Return the name by which the test runner knows a test of the row."""
        return test if self.kind == "pytest" else unittest_name(test) or test

    def request(self, task: RepositoryTask, names: Mapping[str, str]) -> dict[str, Any]:
        is_pytest = self.kind == "pytest"
        modules = [name.removesuffix(".py").replace("/", ".") for name in task.test_files if name.endswith(".py")]
        top = "" if self.paths[0] == "." else f"{self.paths[0].strip('/').replace('/', '.')}."
        return {
            "kind": self.kind,
            "tests": [*dict.fromkeys(names.values())],
            "cut": [test for test in names if is_cut(test)] if is_pytest else [],
            "described": [] if is_pytest else [test for test in names if unittest_name(test) is None],
            "modules": [module.removeprefix(top) for module in modules],
            "paths": self.paths,
            "options": self.options,
        }


def _command(task: RepositoryTask, tree: Tree) -> TestCommand:
    try:
        words = shlex.split(task.test_command)
    except ValueError as error:
        raise ConfigError(f"{task.instance_id!r}: test_command cannot be read: {error}") from error
    if words[:2] in (["python", "-m"], ["python3", "-m"]):
        words = words[2:]
    if words[:1] == ["unittest"]:
        values = dict(itertools.pairwise(words[1:]))
        names = ("-t", "--top-level-directory", "-s", "--start-directory")
        top = next((values[name] for name in names if name in values), ".")  # of the modules' names for discovery
        return TestCommand("unittest", tuple(dict.fromkeys([top, "."])))
    if words[:1] == ["pytest"]:
        files = {test.partition("::")[0] for test in (*task.fail_to_pass, *task.pass_to_pass)}
        return TestCommand("pytest", (".",), tuple(_pytest_options(words[1:], files, tree)))
    raise ConfigError(
        f"test_command of {task.instance_id!r} must be 'python -m unittest ...' or 'pytest ...', or have '{{test}}' in "
        f"it for the id of one test, got {task.test_command!r}"
    )


def _pytest_options(words: Sequence[str], files: set[str], tree: Tree) -> list[str]:
    folders = {name[:at] for name in tree for at, char in enumerate(name) if char == "/"}
    return [
        word
        for word in words
        if word.partition("::")[0].rstrip("/") not in folders | files and word not in tree and word != "."
    ]


def _pytest_config(tree: Tree, name: str) -> tuple[str, bytes]:
    """Return the configuration of pytest that the repository began with, under a name of its own.

    The policy's own one might load a plugin.
    """
    for config, section in CONFIGS.items():
        node = tree.get(config)
        if node is not None and _has_section(config, node, section):
            return f"{name}{config[config.rindex('.') :]}", node.data
    return f"{name}.ini", b"[pytest]\n"


def _has_section(config: str, node: Node, section: str) -> bool:
    text = node.data.decode("utf-8", "replace")
    if config.endswith("pytest.ini"):
        return True
    if config.endswith(".toml"):
        try:
            return "ini_options" in tomllib.loads(text).get("tool", {}).get("pytest", {})
        except tomllib.TOMLDecodeError:
            return False
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return False
    return parser.has_section(section)
