"""The program of docs/trees.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "trees.md").read_text()


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
def test_the_pages_program_makes_a_tree(one_thread):
    program, line = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    names = {"__name__": "page"}
    exec(program, names)
    trajectories, tree = names["trajectories"], names["tree"]
    assert {one.branch_turn for one in trajectories} == {None, 1}
    assert len(tree) < len(tree.packed.input_ids)
    exec(line, {**names})
