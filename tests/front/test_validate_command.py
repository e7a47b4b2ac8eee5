"""`toolgym validate` finds tasks that cannot be solved as they say, and training leaves them out."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from toolgym.cli.app import app
from toolgym.envs import End, Task, ToolEnv
from toolgym.envs.families.swe.task import load_repository_tasks
from toolgym.envs.tasks.verdicts import known_faults, verdict_file
from toolgym.tools.errors import ConfigError
from toolgym.validation.sweep import validate_tasks


class Sums(ToolEnv):
    """The known solution is the ground truth; the answer is `answer` of the row."""

    def __init__(self, tasks=()):
        super().__init__([], tasks, scorer=lambda text, task: float(text == task.extra_info["answer"]))

    def gold_actions(self):
        return [self.task.ground_truth] if self.task.ground_truth else None

    def respond(self, turn):
        if turn.content == "crash":
            raise ConfigError("the row has no table 'x'")
        return End()


def task(name, gold, answer):
    return Task(({"role": "user", "content": "?"},), id=name, ground_truth=gold, row={"extra_info": {"answer": answer}})


async def test_each_task_is_played_with_its_solution_and_without_a_change():
    tasks = [
        task("good", "3", "3"),
        task("wrong", "4", "3"),
        task("free", "3", "I am done."),
        task("broken", "crash", "3"),
        task("unknown", "", "3"),
    ]
    verdicts = {verdict.id: verdict async for verdict in validate_tasks(lambda: Sums(tasks), tasks, repeats=2)}
    assert [*verdicts] == [each.id for each in tasks]
    assert (verdicts["good"].gold, verdicts["good"].no_op, verdicts["good"].fault) == ((1.0, 1.0), (0.0, 0.0), "")
    assert verdicts["wrong"].fault == "the known solution earns 0 and not 1"
    assert verdicts["free"].fault == "the known solution earns 0 and not 1"
    assert verdicts["broken"].fault == "ConfigError: the row has no table 'x'"
    assert (verdicts["unknown"].gold, verdicts["unknown"].fault) == ((), "")


@pytest.fixture
def rows(tmp_path):
    tasks = [each.to_row() for each in load_repository_tasks()[:2]]
    tasks[1]["fail_to_pass"] = ["tests.test_gone.X.test_gone"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in tasks))
    return path


def test_the_command_writes_verdicts_that_loading_obeys(rows, caplog):
    command = ["validate", "SWEDev-v0", "--tasks", str(rows), "--repeats", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "1 of 2 tasks hold" in result.output
    first, second = (json.loads(line) for line in verdict_file(rows).read_text().splitlines())
    assert (first["fault"], first["gold"], first["no_op"]) == ("", [1.0], [0.0])
    assert "tests.test_gone.X.test_gone" in second["fault"]
    assert [each.instance_id for each in load_repository_tasks(rows)] == [first["id"]]
    assert second["id"] in caplog.text
    assert CliRunner().invoke(app, command).exit_code == 1  # the verdicts are there
    assert verdict_file(rows).read_text().count("\n") == 2


def test_verdicts_on_other_tasks_are_refused(rows):
    verdict_file(rows).write_text('{"id": "a", "fault": "x"}\n')
    os.utime(rows, (4e9, 4e9))
    with pytest.raises(ConfigError, match="was changed after rows.jsonl.verdicts.jsonl was written"):
        known_faults(rows)
    os.utime(rows, (1, 1))
    assert known_faults(rows) == {"a": "x"}
    verdict_file(rows).write_text("no JSON")
    with pytest.raises(ConfigError, match="does not hold verdicts"):
        load_repository_tasks(rows)


def test_all_tasks_may_be_broken(rows):
    names = [json.loads(line)["instance_id"] for line in rows.read_text().splitlines()]
    verdict_file(rows).write_text("".join(f'{{"id": "{name}", "fault": "x"}}\n' for name in names))
    with pytest.raises(ConfigError, match="holds no tasks but the 2 that its verdicts refuse"):
        load_repository_tasks(rows)
