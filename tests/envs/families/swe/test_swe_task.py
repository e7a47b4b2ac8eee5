"""`RepositoryTask`: rows, repositories, and which files belong to the tests."""

from __future__ import annotations

import json
import tarfile

import pytest

from toolgym.envs.families.swe.task import RepositoryTask, load_repository_tasks
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError

TEST_PATCH = """\
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1 +1,2 @@
+import os
 import unittest
"""


def test_a_row_gives_an_equal_task(task):
    row = json.loads(json.dumps(task.to_row()))
    assert RepositoryTask.from_row(row) == task
    assert RepositoryTask.from_task(Task.from_row(json.loads(json.dumps(task.to_task().to_row())))) == task


def test_bytes_survive_a_row(task):
    row = {**task.to_row(), "files": {"x.bin": {"base64": "/wA="}, "calc.py": "x = 1\n"}, "gold_patch": "", "links": {}}
    assert RepositoryTask.from_row(row).files["x.bin"] == b"\xff\0"
    assert RepositoryTask.from_row(RepositoryTask.from_row(row).to_row()).files["x.bin"] == b"\xff\0"


def test_the_prompt_tells_neither_the_tests_nor_the_solution(task):
    made = task.to_task()
    text = made.messages[0]["content"]
    assert "add(1, 2) is -1." in text
    assert "test_add" not in text
    assert made.ground_truth == "calc-1"


@pytest.mark.parametrize("packed", [False, True])
def test_a_repository_may_be_a_folder_or_an_archive_beside_the_file(packed, task, tmp_path):
    root = tmp_path / "calc"
    for name, data in task.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "run.sh").chmod(0o755)
    (root / "link.py").symlink_to("calc.py")
    (root / ".git").mkdir()
    (root / ".git" / "packed-refs").write_text("the future")
    if packed:
        with tarfile.open(tmp_path / "calc.tar.gz", "w:gz") as archive:
            archive.add(root, "calc-1.0")
    row = {
        "instance_id": "calc-1",
        "problem_statement": "add(1, 2) is -1.",
        "repository": "calc.tar.gz" if packed else "calc",
        "test_patch": TEST_PATCH,
        "test_command": task.test_command,
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "patch": task.gold_patch,
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = load_repository_tasks(tmp_path / "tasks.jsonl")
    assert (read.tree, read.fail_to_pass, read.gold_patch) == (task.tree, task.fail_to_pass, task.gold_patch)
    assert read.test_files["tests/test_calc.py"].startswith(b"import os\nimport unittest\n")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"instance_id": ""}, "instance_id"),
        ({"files": {}}, "no files"),
        ({"files": {"../x": "y"}}, "stay inside"),
        ({"files": {"x": 1}}, "must be a text"),
        ({"fail_to_pass": []}, "no change would earn"),
        ({"fail_to_pass": "not json"}, "no JSON"),
        ({"pass_to_pass": ["tests.test_calc.CalcTest.test_add"]}, "both in"),
        ({"repository": "x"}, "either 'files' or 'repository'"),
        ({"test_patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "test_files": {}}, "does not apply"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(change, problem, task):
    with pytest.raises(ConfigError, match=f"row 2: .*{problem}"):
        load_repository_tasks([{**task.to_row(), "instance_id": "first"}, {**task.to_row(), **change}])


def test_files_that_are_not_there_are_named(tmp_path, task):
    with pytest.raises(UnknownNameError, match="no task file"):
        load_repository_tasks(tmp_path / "x.jsonl")
    row = {name: value for name, value in task.to_row().items() if name != "files"}
    with pytest.raises(UnknownNameError, match="no repository"):
        load_repository_tasks([{**row, "repository": str(tmp_path / "x")}])
    with pytest.raises(ConfigError, match="another task"):
        load_repository_tasks([task.to_row(), task.to_row()])
    with pytest.raises(ConfigError, match=r"has no extra_info\['repository_task'\]"):
        RepositoryTask.from_task(Task(({"role": "user", "content": "x"},), id="7"))


def test_what_belongs_to_the_tests(task):
    names = [
        "calc.py",
        "tests/test_calc.py",
        "tests/data/x.txt",
        "conftest.py",
        "test_x.py",
        "pkg/conftest.py",
        "x_test.py",
    ]
    assert [name for name in names if not task.is_test(name)] == ["calc.py"]


def test_the_embedded_tasks_have_solutions_that_apply():
    tasks = load_repository_tasks()
    assert len(tasks) == 9
    assert len({task.instance_id.partition("__")[0] for task in tasks}) == 3
    for task in tasks:
        assert len(task.files) >= 4
        assert task.gold_files()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("eval_script", "pytest -x"),
        ("before_repo_set_up_cmd", "make"),
        ("interface", "def add(a, b)"),
        ("log_parser", "pytest"),
        ("test_timeout", 30),
        ("selected_test_files_to_run", ["tests/test_calc.py"]),
    ],
)
def test_a_column_that_is_not_read_is_refused_if_it_may_matter(task, column, value):
    with pytest.raises(ConfigError, match=f"the column '{column}' of the repository task 'calc-1' is not read"):
        RepositoryTask.from_row({**task.to_row(), column: value})
    assert RepositoryTask.from_row({**task.to_row(), column: None, "repo": "a/b", "hints_text": "x"}) == task
