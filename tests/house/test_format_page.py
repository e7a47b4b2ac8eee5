"""docs/format.md and docs/trajectory.schema.json are what `TrajectoryRow` says."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from toolgym.exports.row_model import SegmentRow, TrajectoryRow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("format_page", ROOT / "scripts/format_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_schema_are_as_they_are_made(script):
    for path, text in script.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/format_page.py: {path.name} is older"


def test_the_page_has_every_part_and_field(script):
    tables = script.tables()
    parts = script.models_of(TrajectoryRow)
    assert SegmentRow in parts
    for model in parts:
        assert f"## {script.title_of(model)}\n" in tables
        assert all(field.description for field in model.model_fields.values())
    assert tables.count("\n| `") == sum(len(model.model_fields) for model in parts)


def test_its_programs_run(tmp_path):
    pytest.importorskip("datasets")
    shutil.copy(ROOT / "front/viewer/demo/1.jsonl", tmp_path / "0.jsonl")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/format.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    program = "\n".join(blocks).replace("demo-out", str(tmp_path))
    program = program.replace('.jsonl")\n\nimport pyarrow', f'.jsonl", cache_dir={str(tmp_path)!r})\n\nimport pyarrow')
    names = {}
    exec(compile(program, "docs/format.md", "exec"), names)
    assert len(names["ids"]) == len(names["mask"]) > sum(names["mask"]) > 0
    assert names["table"].num_rows == len(names["frame"]) == len(names["loaded"]) == len(names["rows"])
