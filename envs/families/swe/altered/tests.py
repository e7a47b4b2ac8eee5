"""The runs in which some tests are altered: the tests, drawn at random, and their trees of files."""

from __future__ import annotations

import ast
import math
import random
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from toolgym.envs.families.swe.altered.edits import Edit, Source, failing_edit
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.tree import Tree

BITS = 5
"""Choices, over all runs, about which tests of `fail_to_pass` are altered, each in about half of the runs."""

MOST_RUNS, LEAST_RUNS = 5, 2


class Function(NamedTuple):
    """A test function by its file, its class (empty: none) and its name; or, without a name, a whole file."""

    file: str
    owner: str
    name: str


@dataclass(frozen=True)
class AlteredRun:
    """A run of tests, some of which are altered.

    Attributes:
        tree: the files, with the altered tests.
        tests: the tests to run.
        must_fail: those of them that are altered.
    """

    tree: Tree
    tests: tuple[str, ...]
    must_fail: frozenset[str]


class AlterableTests:
    """The tests of a task that passed, and the functions of Python that they are.

    Only tests in files of Python count that the repository began with, or that are hidden. Tests that share a function
    are altered together.
    """

    def __init__(self, task: RepositoryTask, tree: Tree, tests: Iterable[str]) -> None:
        self._task, self._tree, self._tests = task, tree, tuple(tests)
        self._sources = _sources(task, tree, self._tests)
        self._bodies = {function: body for file in self._sources for function, body in _functions(file, self._sources)}
        by_name: dict[str, list[Function]] = {}
        for function in self._bodies:
            by_name.setdefault(function.name, []).append(function)
        by_test = {test: _functions_of(test, by_name) for test in self._tests}
        self.functions = {test: functions for test, functions in by_test.items() if functions}
        self._groups = _groups(self.functions)
        self._edits: dict[Function, set[Edit]] = {}

    def runs(self) -> list[AlteredRun]:
        """Return runs, at random. The first one has all tests that passed, the others those of `fail_to_pass`."""
        choose = random.Random(secrets.randbits(64))
        wanted = [test for test in self._tests if test in {*self._task.fail_to_pass}]
        groups = {self._groups[self.functions[test][0]] for test in wanted if test in self.functions}
        if not groups:
            return [self._run(self._tests, {*self._groups.values()}, choose)] if self._groups else []
        count = min(max(math.ceil(BITS / len(groups)), LEAST_RUNS), MOST_RUNS)
        flips: list[set[int]] = [set() for _ in range(count)]
        for group in sorted(groups):
            times = choose.randint(count // 2, max(count // 2, count - 1))
            for flip in choose.sample(flips, times):
                flip.add(group)
        others = {group for group in sorted({*self._groups.values()} - groups) if choose.random() < 0.5}
        runs = [self._run(self._tests, flips[0] | others, choose)]
        return [*runs, *(self._run(wanted, flip, choose) for flip in flips[1:])]

    def run_of(self, tests: Iterable[str]) -> AlteredRun:
        """Return a run in which all of some tests are altered."""
        wanted = [test for test in tests if test in self.functions]
        groups = {self._groups[self.functions[test][0]] for test in wanted}
        return self._run(wanted, groups, random.Random(secrets.randbits(64)))

    def _edit(self, function: Function, choose: random.Random) -> Edit:
        """Return an edit that no run before has, if there is one: then no answer is wrong for one value alone."""
        edits = self._edits.setdefault(function, set())
        inner = self._bodies_in(function.file) if function.name == function.file else []
        for _ in range(64):
            edit, _ = failing_edit(self._sources[function.file], self._bodies[function], choose, inner)
            if edit not in edits:
                break
        edits.add(edit)
        return edit

    def _bodies_in(self, file: str) -> list[Sequence[ast.stmt]]:
        """Return the bodies of the test functions of a file."""
        return [body for function, body in self._bodies.items() if function.file == file != function.name]

    def _run(self, tests: Sequence[str], groups: set[int], choose: random.Random) -> AlteredRun:
        edits: dict[str, list[Edit]] = {}
        for function, group in self._groups.items():
            if group in groups:
                edit = self._edit(function, choose)
                edits.setdefault(function.file, []).append(edit)
        tree = dict(self._tree)
        for file, its_edits in edits.items():
            tree[file] = tree[file]._replace(data=self._sources[file].edited(its_edits))
        must_fail = {test for test, its in self.functions.items() if self._groups[its[0]] in groups}
        return AlteredRun(tree, tuple(tests), frozenset(must_fail & {*tests}))


def _sources(task: RepositoryTask, tree: Tree, tests: Iterable[str]) -> dict[str, Source]:
    mentioned = {word for test in tests for word in re.findall(r"\w+", test)}
    sources = {}
    for name, node in tree.items():
        place = PurePosixPath(name)
        if place.suffix != ".py" or node.link or not task.is_test(name):
            continue
        if place.stem not in mentioned and name not in task.test_files:
            continue
        try:
            node.data.decode()
            sources[name] = Source(node.data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another Python, or not UTF-8
            continue
    return sources


def _functions(file: str, sources: Mapping[str, Source]) -> list[tuple[Function, list[ast.stmt]]]:
    """Return the test functions of a file, and the file itself for tests that are programs."""
    module = sources[file].module
    functions: list[tuple[Function, list[ast.stmt]]] = []
    if module.body:
        functions.append((Function(file, "", file), module.body))
    waiting: list[tuple[ast.stmt, str]] = [(statement, "") for statement in module.body]
    while waiting:
        statement, owner = waiting.pop(0)  # in their order: the last definition of a name counts
        if isinstance(statement, ast.ClassDef):
            waiting += [(inner, statement.name) for inner in statement.body]
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name.startswith(("test", "runTest")):
                functions.append((Function(file, owner, statement.name), statement.body))
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            waiting += [(inner, owner) for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)]
    return functions


def _functions_of(test: str, by_name: Mapping[str, Sequence[Function]]) -> list[Function]:
    """Return the functions that a test may be: those of its name, in its class and file if it names them."""
    words = {*re.findall(r"\w+", test.partition("[")[0])}
    functions = [*by_name.get(test, ())] or [function for word in words for function in by_name.get(word, ())]
    dotted = test.replace(".", "/")
    in_class = [function for function in functions if function.owner in words] or functions
    in_file = [function for function in in_class if PurePosixPath(function.file).stem in words] or in_class
    return [function for function in in_file if dotted.startswith(function.file.removesuffix(".py"))] or in_file


def _groups(functions: Mapping[str, Sequence[Function]]) -> dict[Function, int]:
    """Return a number for each function, the same for all functions that one test may be."""
    groups: dict[Function, int] = {}
    for number, its in enumerate(functions.values()):
        joined = {groups[function] for function in its if function in groups}
        groups |= {function: number for function, group in groups.items() if group in joined}
        groups |= dict.fromkeys(its, number)
    return groups
