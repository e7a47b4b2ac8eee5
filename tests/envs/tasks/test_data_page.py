"""docs/data.md: its programs run, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import toolgym.envs
from toolgym.envs.tasks.prepare.recipes import RECIPES

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_its_programs_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(PROGRAMS[number], {})


def test_its_table_has_every_data_set_with_its_env():
    rows = re.findall(r"^\| (`[a-z0-9`, -]+`) \|.*\| `([A-Za-z0-9]+-v0)` \|", PAGE, re.M)
    found = {name: env for names, env in rows for name in re.findall(r"`([^`]+)`", names)}
    assert found == {name: recipe.env_id for name, recipe in RECIPES.items()}


def test_its_names_exist():
    for name in ("from_parquet", "from_jsonl", "from_hf", "load_tasks", "from_generator", "write_tasks", "ByLevel"):
        assert f"`{name}" in PAGE
        assert name in toolgym.envs.__all__
