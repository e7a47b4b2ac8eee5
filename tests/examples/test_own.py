"""The examples of an own tool and an own env run, and need no more concepts than they say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "most", "printed"),
    [
        ("own_tool", 3, "1. The answer is a number.\n2. It is even.\n[0.01, 0.02, 0.03]\n"),
        ("own_env", 4, "How many r are in strawberry?\ns t r a w b e r r y\n1.0 1.0\n0.9\n"),
        (
            "own_user",
            4,
            "50 Lower.\n25 Higher.\n37 Higher.\n43 Lower.\n40 Higher.\n41 Higher.\n42 0.14285714285714285 answered\n",
        ),
    ],
)
def test_an_example_runs_and_needs_few_concepts(name, most, printed):
    path = FOLDER / f"{name}.py"
    code = ast.parse(path.read_text())
    used = {
        alias.name
        for node in ast.walk(code)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("toolgym")
        for alias in node.names
    }
    found = re.search(r"^Concepts \((\d+)\): (.+)\.$", ast.get_docstring(code) or "", re.MULTILINE)
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[2])) == used
    assert int(found[1]) == len(used) <= most
    assert "toolgym." not in ast.unparse(code.body[1:])  # nor are there others by their full names
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == printed
