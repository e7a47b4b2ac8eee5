"""The program that runs hidden tests beside the policy's files, and reports the end of each.

It stands alone: `verdict` passes its source to the sandbox's Python, which may be 3.6. Its reports go to the standard
output that it was started with, each line behind a token that it read from its standard input; all that the tests and
the policy's files print goes to standard error. It imports all it needs before the policy's folder is on the path.
Beside the hidden tests it runs controls, which fail unless something has changed what a test is.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import unittest
from typing import Any, NoReturn

CONTROLS: Any = {
    "assertEqual": (1, 2),
    "assertNotEqual": (1, 1),
    "assertTrue": (False,),
    "assertFalse": (True,),
    "assertIs": (None, 1),
    "assertIsNone": (1,),
    "assertIn": (1, ()),
    "assertAlmostEqual": (1.0, 2.0),
    "assertGreater": (1, 2),
    "assertListEqual": ([1], [2]),
    "assertDictEqual": ({}, {1: 1}),
    "assertRaises": (ValueError, int),
    "fail": (),
}
"""Methods of a unittest case, with arguments for which they fail."""


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    report = TestReporter(os.dup(1), request["token"], request["tests"], request["control"], request["cut"])
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["tests"]
    sys.dont_write_bytecode = True
    try:
        os.chdir(request["folder"])
        run = run_unittest if request["kind"] == "unittest" else run_pytest(importlib.import_module("pytest"))
    except (OSError, ImportError) as error:
        report(None, str(error))
        leave()
    report(None, "started")
    try:
        run(request, report)
    except BaseException:  # noqa: BLE001  the policy's files may raise anything, SystemExit too
        traceback.print_exc()
    leave()


def leave() -> NoReturn:
    """Exit at once, without the exit handlers and threads of the policy's files."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


class TestReporter:
    """Writes two lines for each wanted test and each control: that it began, and how it ended.

    A wanted test has its place for a name, since what can be printed is bounded. A test that a `cut` id stands for has
    the place of that id and its own id.
    """

    def __init__(self, fd: int, token: str, tests: list[str], control: str, cut: list[str]) -> None:
        self._fd, self._token, self._write, self._dumps = fd, token, os.write, json.dumps
        self._places = {test: place for place, test in enumerate(tests)}
        self._control, self.cut = control, cut

    def wants(self, test: str) -> bool:
        return test in self._places or self._control in test or any(test.startswith(cut) for cut in self.cut)

    def name_of(self, test: str | None) -> Any:
        if test is None:
            return None
        if test in self._places or self._control in test:
            names: dict[str, Any] = self._places
            return names.get(test, test)  # a control has its own name
        return next(([self._places[cut], test] for cut in self.cut if test.startswith(cut)), None)

    def __call__(self, test: str | None, outcome: str) -> None:
        name = self.name_of(test)
        if name is None and test is not None:
            return
        line = f"\n{self._token} {self._dumps([name, outcome])}\n".encode("ascii")
        while line:
            line = line[self._write(self._fd, line) :]


# ---------------------------------------------------------------------- unittest


class ReportedResult(unittest.TestResult):
    def __init__(self, report: TestReporter, control: str) -> None:
        super().__init__()
        self._report, self._control = report, control
        self._outcome = ""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._outcome = ""
        self._report(test.id(), "began")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._outcome = self._outcome or "passed"

    def addError(self, test: Any, err: Any) -> None:
        self._failed(test, "error", err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._failed(test, "failed", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._failed(subtest, "failed", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._outcome = self._outcome or "skipped"

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._outcome = self._outcome or "expected failure"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._outcome = self._outcome or "unexpected success"

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._report(test.id(), self._outcome or "error")

    def _failed(self, test: Any, how: str, err: Any) -> None:
        self._outcome = how
        if self._control not in test.id():
            print(f"{how.upper()}: {test}", file=sys.stderr)
            traceback.print_exception(*err)


def control_case(name: str) -> type[unittest.TestCase]:
    def control(method: str, arguments: tuple[Any, ...]) -> Any:
        return lambda case: getattr(case, method)(*arguments)

    def raises(case: unittest.TestCase) -> None:
        raise AssertionError

    tests = {f"test_{method}": control(method, arguments) for method, arguments in CONTROLS.items()}
    return type(name, (unittest.TestCase,), {**tests, "test_raises": raises, "__module__": name})


def load_wanted(loader: unittest.TestLoader, request: dict[str, Any], report: TestReporter) -> list[Any]:
    """Load the wanted tests by their names, and those that are known by the first line of their docstring alone."""
    described = {*request["described"]}
    suites = []
    for name in request["tests"]:
        if name not in described:
            loaded = loader.loadTestsFromName(name)
            suites.append(loaded)
            error = next((getattr(test, "_exception", None) for test in cases_of(loaded)), None)
            if isinstance(error, AttributeError):
                report(name, "absent")
    for module in request["modules"] if described else ():
        for test in cases_of(loader.loadTestsFromName(module)):
            line = test.shortDescription()
            if line in described:
                described.remove(line)
                report._places[test.id()] = report._places[line]
                suites.append(test)
    return suites


def cases_of(suite: Any) -> list[Any]:
    waiting, cases = [suite], []
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, unittest.TestCase):
            cases.append(part)
        else:
            waiting[:0] = list(part)
    return cases


def run_unittest(request: dict[str, Any], report: TestReporter) -> None:
    sys.path[:0] = [os.path.abspath(path) for path in request["paths"]]
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(load_wanted(loader, request, report))
    suite.addTests(loader.loadTestsFromTestCase(control_case(request["control"])))
    stderr, result = sys.stderr, ReportedResult(report, request["control"])
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    suite.run(result)
    sys.stderr = stderr


# ---------------------------------------------------------------------- pytest


class Plugin:
    def __init__(self, request: dict[str, Any], report: TestReporter) -> None:
        self._report, self._tests = report, request["tests"]
        self._unread: list[str] = []
        self._paths = [os.path.abspath(path) for path in request["paths"]]
        self._outcomes: dict[str, str] = {}

    def pytest_load_initial_conftests(self) -> None:
        # Not before: what the repository holds must not pass for an installed plugin.
        sys.path[:0] = self._paths

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._unread.append(report.nodeid)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self._report.wants(item.nodeid)]
        ids = [item.nodeid for item in items]
        for test in self._tests:
            is_read = not any(test.startswith(nodeid) for nodeid in self._unread)
            is_cut = test in self._report.cut
            if is_read and not any(nodeid == test or (is_cut and nodeid.startswith(test)) for nodeid in ids):
                self._report(test, "absent")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._report(nodeid, "began")

    def pytest_runtest_logreport(self, report: Any) -> None:
        before = self._outcomes.get(report.nodeid, "")
        outcome = before
        if hasattr(report, "wasxfail"):
            outcome = "expected failure" if report.skipped else "unexpected success"
        elif not report.passed:
            outcome = report.outcome
        elif report.when == "call":
            outcome = before or "passed"
        self._outcomes[report.nodeid] = outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._report(nodeid, self._outcomes.get(nodeid) or "error")


def run_pytest(pytest: Any) -> Any:
    def run(request: dict[str, Any], report: TestReporter) -> None:
        control = request["control"]
        with open(f"test_{control}.py", "x", encoding="utf-8") as file:
            file.write(f"def test_{control}_assert():\n    value = 1\n    assert value == 2\n\n\n")
            file.write(f"def test_{control}_raise():\n    raise AssertionError\n")
        named = dict.fromkeys(test.partition("::")[0] for test in request["tests"])
        files = [*(name for name in named if os.path.exists(name)), file.name]  # pytest refuses to run without one
        fixed = ["-c", request["config"], "--rootdir", ".", "-p", "no:cacheprovider"]
        fixed += ["--continue-on-collection-errors", "--maxfail=0"]
        pytest.main([*request["options"], *fixed, *files], plugins=[Plugin(request, report)])

    return run


if __name__ == "__main__":
    main()
