"""Rows of newfacade/LeetCodeDataset: assertions about a method of a class `Solution`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import AssertTest, Problem
from toolgym.tools.judge.rows.columns import RowFormat, names, other_columns, row_id
from toolgym.tools.judge.rows.functions import text_of

_METHOD = re.compile(r"Solution\(\)\.([A-Za-z_]\w*)")
_IN_PROGRAM = """
def _call_solution(args, kwargs):
    def build(value):
        if isinstance(value, tuple) and len(value) == 2 and value[0] in ("linked list", "tree"):
            return (list_node if value[0] == "linked list" else tree_node)(value[1])
        if isinstance(value, list):
            return [build(item) for item in value]
        if isinstance(value, dict):
            return {key: build(item) for key, item in value.items()}
        return value

    def write(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(write, value)) if type(value) in (list, tuple) else value
        if isinstance(value, dict):
            return {key: write(item) for key, item in value.items()}
        if hasattr(value, "val") and hasattr(value, "next"):
            return ("linked list", write_list(value))
        if hasattr(value, "val") and hasattr(value, "left") and hasattr(value, "right"):
            return ("tree", write_tree(value))
        return value

    def write_list(node):
        values, seen = [], set()
        while node is not None:
            if id(node) in seen:
                raise ValueError("the linked list has a cycle")
            seen.add(id(node))
            values.append(node.val)
            node = node.next
        return values

    def write_tree(root):
        values, nodes, seen = [], [root], set()
        for node in nodes:
            if node is None:
                values.append(None)
                continue
            if id(node) in seen:
                raise ValueError("a node is in the tree more than once")
            seen.add(id(node))
            values.append(node.val)
            nodes += [node.left, node.right]
        while values and values[-1] is None:
            values.pop()
        return values

    return write(Solution().METHOD(*build(list(args)), **build(dict(kwargs))))
"""
"""Source before the program, after the data set's own: builds linked lists and trees, and writes them as plain data."""

_IN_TESTS = """
def list_node(values):
    return ("linked list", list(values)) if values else None

def tree_node(values):
    values = list(values or ())
    while values and values[-1] is None:
        values.pop()
    return ("tree", values) if values else None

def is_same_list(left, right):
    return _is_same_node(left, right, "linked list")

def is_same_tree(left, right):
    return _is_same_node(left, right, "tree")

def _is_same_node(left, right, kind):
    for node in (left, right):
        if node is not None and not (isinstance(node, tuple) and len(node) == 2 and node[0] == kind):
            return False
    return (left is None) == (right is None) and (left is None or list(left[1]) == list(right[1]))

def candidate(*args, **kwargs):
    return _call_solution(args, kwargs)
"""
"""Source before the tests: the data set's functions for linked lists and trees, on plain data."""


def _leetcode(row: Mapping[str, Any], language: str) -> Problem:
    """Read a row whose tests call a method of a class `Solution`, with linked lists and trees as arguments.

    A test and the program run in two processes, and only plain data crosses between them. So lists and trees are built
    in the program's process, and its results are compared as plain data.
    """
    method = _METHOD.fullmatch(text_of(row, "entry_point"))
    assert method is not None
    if not re.search(r"^def check\(", text_of(row, "test"), re.M):
        raise ConfigError(f"'test' must define check(candidate), got {shorten(repr(row['test']))}")
    prelude = row.get("prompt") or ""
    test = AssertTest(
        f"{_IN_TESTS}\n{row['test']}\n\ncheck(candidate)\n",
        setup=f"{prelude}\n{_IN_PROGRAM.replace('METHOD', method[1])}",
        entry_points=("_call_solution", "Solution"),
    )
    return Problem(
        prompt=_leetcode_prompt(row),
        hidden=(test,),
        id=row_id(row, "task_id"),
        solution=row.get("completion") or "",
        source="leetcode",
        labels=other_columns(row, LEETCODE.uses),
    )


def _leetcode_prompt(row: Mapping[str, Any]) -> str:
    starter = (row.get("starter_code") or "").rstrip()
    problem = (row.get("problem_description") or "").strip()
    if problem and starter:
        return f"{problem}\n\nComplete this Python code.\n\n```python\n{starter}\n```"
    query = (row.get("query") or "").strip()
    if query:
        return query
    raise ConfigError(
        "a row with 'entry_point' of a class 'Solution' needs the problem: 'problem_description' with 'starter_code', "
        f"or 'query'; it has {shorten(', '.join(row))}"
    )


LEETCODE = RowFormat(
    "LeetCodeDataset",
    marks=("entry_point",),
    uses=names("task_id, prompt, entry_point, test, starter_code, problem_description, query, completion"),
    # `input_output` has the cases of `test` once more, as texts.
    labels=names("input_output, response, question_id, difficulty, tags, estimated_date, meta"),
    read=_leetcode,
    matches=lambda row: bool(_METHOD.fullmatch(str(row["entry_point"]))),
)
