"""Hidden tests that must fail: each as it is, and at its end what cannot hold.

A test of these that passes is no test any more: something has changed what a test is, or reports what did not happen.
The process of the tests cannot see which ones it has, except in their code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.test_program import CONTROLS
from toolgym.envs.families.swe.tree import Tree


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
