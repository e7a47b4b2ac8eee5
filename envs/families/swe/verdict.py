"""The verdict: hidden tests beside the policy's files, in a session that the policy has never seen."""

from __future__ import annotations

import ast
import configparser
import itertools
import json
import re
import secrets
import shlex
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.test_program import CONTROLS
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
        f2p_count, f2p_total: tests of `fail_to_pass` that passed, and all of them.
        p2p_count, p2p_total: the same of `pass_to_pass`.
        output: the end of their output. It quotes hidden tests: no policy may read it.
        infra_error: why there is no verdict; None: there is one. The counts are 0 then and mean nothing.
        tampered: tests passed that cannot pass, or reports came that were not due: something in the repository changed
            what a test is, or forged its end. None counts.
        outcomes: the end of each test, by id; one that is missing did not run to its end.
        seconds: wall seconds that the tests took.
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

    @property
    def passed(self) -> set[str]:
        return {test for test, how in self.outcomes.items() if how == "passed"}

    @property
    def resolved(self) -> bool:
        return self.infra_error is None and self.f2p_count == self.f2p_total and self.p2p_count == self.p2p_total

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


async def judge(task: RepositoryTask, session: Session, folder: str, tree: Tree, timeout: float) -> TestReport:
    """Run the hidden tests in a session that holds the files already. Raises ConfigError or SandboxError."""
    if "{test}" in task.test_command:
        return await _run_each(task, session, folder, timeout)
    token, control = secrets.token_hex(8), f"control_{secrets.token_hex(8)}"
    request = {**_request(task, tree), "token": token, "control": control, "folder": folder}
    if request["kind"] == "pytest":
        name, data = _pytest_config(task.tree, control)
        await session.write_file(f"{folder}/{name}", data)
        request["config"] = name
    run = await session.exec(["python3", "-I", "-c", TEST_PROGRAM], stdin=f"{json.dumps(request)}\n", timeout=timeout)
    outcomes, forged = _outcomes(run.stdout, token, request["tests"], control)
    started = outcomes.pop(None, "")
    if run.status is ExecutionStatus.SANDBOX_ERROR or started != "started":
        return no_verdict(task, started or run.message or run.stderr[-2000:] or f"the tests ended: {run.status}", run)
    controls = {test: how for test, how in outcomes.items() if control in test}
    tampered = forged or "passed" in controls.values()
    counted = {test: how for test, how in outcomes.items() if test not in controls}
    return report_of(task, {} if tampered else counted, run.stderr, run.duration, tampered=tampered)


def no_verdict(task: RepositoryTask, why: str, run: ExecResult | None = None) -> TestReport:
    return replace(report_of(task, {}, "" if run is None else run.stderr, 0.0), infra_error=why)


async def _run_each(task: RepositoryTask, session: Session, folder: str, timeout: float) -> TestReport:
    outcomes: dict[str, str] = {}
    output: list[str] = []
    started = time.monotonic()
    for test in [*task.fail_to_pass, *task.pass_to_pass]:
        left = timeout - (time.monotonic() - started)
        if left <= 0:
            break
        command = task.test_command.replace("{test}", shlex.quote(test))
        run = await session.exec(command, cwd=folder, timeout=left)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            return no_verdict(task, run.message or "the sandbox failed", run)
        outcomes[test] = "passed" if run.ok else "failed"
        output += [f"{test}: {run.status}\n", run.stdout, run.stderr]
    return report_of(task, outcomes, "".join(output), time.monotonic() - started)


def report_of(
    task: RepositoryTask, outcomes: Mapping[str, str], output: str, seconds: float, *, tampered: bool = False
) -> TestReport:
    def passed(tests: Sequence[str]) -> int:
        return sum(outcomes.get(test) == "passed" for test in tests)

    return TestReport(
        f2p_count=passed(task.fail_to_pass),
        f2p_total=len(task.fail_to_pass),
        p2p_count=passed(task.pass_to_pass),
        p2p_total=len(task.pass_to_pass),
        output=output[-OUTPUT_CHARS:],
        tampered=tampered,
        outcomes=outcomes,
        seconds=seconds,
    )


def _outcomes(stdout: str, token: str, tests: Sequence[str], control: str) -> tuple[dict[Any, str], bool]:
    """Return the end of each test (None stands for the program itself), and whether reports were forged.

    The policy's code runs in the process that reports, and can find its token. So every report must be due: a test that
    was asked for begins once, and after that ends once.
    """
    outcomes: dict[Any, str] = {}
    begun: set[str] = set()
    forged = False
    for line in stdout.splitlines():
        head, _, rest = line.partition(" ")
        if not secrets.compare_digest(head.encode(), token.encode()):
            continue
        try:
            test, outcome = json.loads(rest)
        except ValueError:  # the middle of too much output was dropped
            continue
        if isinstance(test, int) and 0 <= test < len(tests):
            test = tests[test]
        elif test is not None and not (isinstance(test, str) and control in test):
            forged = True
            continue
        if outcome == "began" and test not in begun and test is not None:
            begun.add(test)
        elif test in outcomes or (test is not None and test not in begun):
            forged = True
        else:
            outcomes[test] = outcome
    return outcomes, forged


# ---------------------------------------------------------------------- the command


def _request(task: RepositoryTask, tree: Tree) -> dict[str, Any]:
    try:
        words = shlex.split(task.test_command)
    except ValueError as error:
        raise ConfigError(f"{task.instance_id!r}: test_command cannot be read: {error}") from error
    if words[:2] in (["python", "-m"], ["python3", "-m"]):
        words = words[2:]
    tests = [*task.fail_to_pass, *task.pass_to_pass]
    if words[:1] == ["unittest"]:
        values = dict(itertools.pairwise(words[1:]))
        names = ("-t", "--top-level-directory", "-s", "--start-directory")
        top = next((values[name] for name in names if name in values), ".")  # of the modules' names for discovery
        return {"kind": "unittest", "tests": tests, "paths": [*dict.fromkeys([top, "."])]}
    if words[:1] == ["pytest"]:
        options = _pytest_options(words[1:], {test.partition("::")[0] for test in tests}, tree)
        return {"kind": "pytest", "tests": tests, "paths": ["."], "options": options}
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


def failing_tests(task: RepositoryTask, tree: Tree, tests: Iterable[str]) -> tuple[Tree, set[str]]:
    """Return the tree with tests that must fail, and those of the wanted tests that must.

    Only tests count in files of Python that the repository began with, or that are hidden.
    """
    words = {test: {*re.findall(r"\w+", test)} for test in tests}
    mentioned = set().union(*words.values())
    changed, names = dict(tree), set()
    for name, node in tree.items():
        place = PurePosixPath(name)
        if place.suffix != ".py" or place.stem not in mentioned or node.link or not task.is_test(name):
            continue
        try:
            module = ast.parse(node.data)
            functions = _fail(module, whole=name in words)
            source = ast.unparse(ast.fix_missing_locations(module))
        except (SyntaxError, ValueError, RecursionError):  # of another Python, or none
            continue
        changed[name] = node._replace(data=source.encode())
        names |= functions | ({name} if name in words else set())
    return changed, {test for test in words if test in names or words[test] & names}


def _fail(module: ast.Module, whole: bool) -> set[str]:
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(("test", "runTest")):
            node.body = [_then(node.body, _control(node))]
            names.add(node.name)
    if whole:
        first = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        rest = [node for node in module.body if node not in first]
        module.body = [*first, _then(rest, ast.parse("raise AssertionError").body)]
    return names


def _then(body: list[ast.stmt], last: list[ast.stmt]) -> ast.stmt:
    return ast.Try(body=body, handlers=[], orelse=[], finalbody=last)


def _control(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return code that raises, unless an assertion of the test holds for values for which it cannot hold."""
    fails = ast.parse("raise AssertionError").body
    used = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)} & {*CONTROLS}
    if not function.args.args or function.args.args[0].arg != "self":
        return fails
    for method in sorted(used):
        values = ", ".join(getattr(value, "__name__", repr(value)) for value in CONTROLS[method])
        call = ast.parse(f"self.{method}({values})").body
        fails = [ast.Try(body=[*call], handlers=[ast.ExceptHandler(body=fails)], orelse=[], finalbody=[])]
    return fails
