"""docs/runner.md has the table of stop reasons, and its programs run as they stand there."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.actors import tasks
from tests.rollout.conftest import ScriptedEngine
from tests.rollout.held_engine import Envs, held_engine
from toolgym.envs import types
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, GroupPlan, RolloutQueue, RunConfig, Runner, load_tokenizer, tiny_policy_path

PAGE = (Path(__file__).parents[2] / "docs" / "runner.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def documented():
    """What the source says of each stop reason."""
    [made] = [node for node in ast.parse(inspect.getsource(types)).body if getattr(node, "name", "") == "StopReason"]
    said = {}
    for member, text in zip(made.body, made.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            said[member.targets[0].id] = " ".join(text.value.value.split())
    return said


def table():
    """The rows of the page's table, as the page should have them."""
    said = documented()
    lines = [
        "| stop reason | when | blame | failed | trainable | in group statistics |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in StopReason:
        flags = ["yes" if flag else "" for flag in (one.failed, one.trainable, one.in_group_statistics)]
        lines.append(
            f"| `{one.value}` | {said[one.name].removesuffix('.')} | {one.blame.value} | {' | '.join(flags)} |"
        )
    return "\n".join(lines)


def test_the_pages_table_is_the_librarys():
    [found] = re.findall(r"^<!-- the table .*? -->\n(.*?)\n?<!-- end of the table -->", PAGE, re.M | re.S)
    assert found == table(), f"docs/runner.md should have:\n{table()}"


def test_the_page_has_each_field_of_a_plan():
    assert [one.name for one in fields(GroupPlan) if f"| `{one.name}` |" not in PAGE] == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.strip().splitlines()[-1][:40])
async def test_a_program_of_the_page_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = load_tokenizer(tiny_policy_path())
    engine, seen = held_engine(ScriptedEngine, tokenizer, lambda asked, member: f"#### {member % 2}"), []
    names = {
        "env": Envs(),
        "engine": engine,
        "tasks": tasks(*"abcdefgh"),
        "train": seen.append,
        "log": lambda *said: seen.append(said),
    }
    names["runner"] = Runner(names["env"], engine, config=RunConfig(seed=0))
    names |= {"Runner": Runner, "RunConfig": RunConfig, "GroupPlan": GroupPlan}
    run = eval(compile(program, "docs/runner.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    await run
    results = seen + [names[name] for name in ("batch", "done", "trajectory") if name in names]
    assert results
    assert all(results)


def test_there_are_programs():
    assert len(PROGRAMS) >= 6


def test_the_page_has_each_deadline_of_an_episode():
    timeouts = [one.name for one in fields(EpisodeLimits) if one.name.endswith("_timeout")]
    assert len(timeouts) == 5
    assert [name for name in timeouts if f"| `EpisodeLimits.{name}`" not in PAGE] == []


def test_the_page_on_queues_names_every_figure_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "async_training.md").read_text()
    [table] = re.findall(r"^## Figures\n(.*?)^## ", page, re.M | re.S)
    found = re.findall(r"queue/\w+", inspect.getsource(RolloutQueue.metrics))
    assert re.findall(r"queue/\w+", table) == found
    assert found


def test_the_page_leads_to_the_others():
    pages = ("metrics", "resume", "async_training", "trees", "ray", "scaling", "batches")
    assert [name for name in pages if f"]({name}.md)" not in PAGE] == []
