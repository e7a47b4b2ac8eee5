"""docs/batches.md has the table of a batch's fields, and its program runs as it stands there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rollout.trajectories import played
from toolgym.envs.types import ToolCallRecord
from toolgym.rollout.batch.fields import FIELDS, SHAPES, dtype_name
from toolgym.rollout.models.tiny import tiny_policy_path

PAGE = (Path(__file__).parents[2] / "docs" / "batches.md").read_text()


def table():
    """The rows of the page's table, as the page should have them."""
    lines = [
        "| tensor | dtype | shape | elsewhere | what | column in a data set |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for item in FIELDS:
        elsewhere = "" if item.padding is None else f"{item.padding}"
        column = "" if item.column is None else f"`{item.column}`"
        shape = SHAPES[item.place]
        lines.append(f"| `{item.name}` | {dtype_name(item.dtype)} | `{shape}` | {elsewhere} | {item.doc} | {column} |")
    return "\n".join(lines)


def test_the_pages_table_is_the_librarys():
    [found] = re.findall(r"^<!-- the table .*? -->\n(.*?)\n<!-- end of the table -->", PAGE, re.M | re.S)
    assert found == table(), f"docs/batches.md should have:\n{table()}"


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PROGRAMS = re.findall(r"^<!-- a program that the tests run[^\n]* -->\n```python\n(.*?)^```", PAGE, re.M | re.S)


def test_the_pages_program_gives_the_model_a_gradient(one_thread):
    program, _ = PROGRAMS
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32)
    trajectories = [
        played([[(3, None), (size, reward)]], name=f"{group}{size}", group=group)
        for group in "gh"
        for size, reward in ((2, 0.0), (4, 1.0), (5, 0.5))
    ]
    exec(program, {"model": model, "trajectories": trajectories, "torch": torch})
    assert all(one.grad is not None for one in model.parameters())
    assert sum(float(one.grad.abs().sum()) for one in model.parameters()) > 0


def test_the_page_keeps_a_trajectory_in_its_group_but_out_of_the_gradient():
    _, program = PROGRAMS
    failed_call = ToolCallRecord("1", "tool", {}, "error", "")
    trajectories = [played([[(3, reward)]], name=str(reward), group="g") for reward in (0.0, 0.5, 1.0)]
    turns = tuple(dataclasses.replace(turn, tool_calls=(failed_call,)) for turn in trajectories[2].turns)
    trajectories[2] = dataclasses.replace(trajectories[2], turns=turns)
    names = {"trajectories": trajectories}
    exec(program, names)
    assert names["part"].ids == ("0.0", "0.5")
    assert int(names["part"].response_mask.sum()) == 6
    assert names["values"].tolist() == pytest.approx([-1.0, 0.0], abs=1e-5), "the mean is that of all three"
