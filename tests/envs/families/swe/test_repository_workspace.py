"""`RepositoryWorkspace`: files, patches, snapshots, forks, and tests in a session of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from toolgym.envs.families.swe.task import load_repository_tasks
from toolgym.envs.families.swe.tree import Node, unpack
from toolgym.envs.families.swe.workspace import RepositoryWorkspace
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.local import probe

NAMESPACES = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="forks need namespaces")


@pytest.mark.parametrize("task", load_repository_tasks(), ids=lambda task: task.instance_id)
async def test_embedded_tasks_fail_before_and_pass_with_their_solution(task, sandbox):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        before = await workspace.run_tests()
        assert (before.f2p_count, before.p2p_count) == (0, before.p2p_total), before.output
        await workspace.apply_patch(task.gold_patch)
        after = await workspace.run_tests()
        assert after.resolved, after.output


async def test_commands_run_in_the_repository(task, sandbox):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        assert (await workspace.exec("./run.sh; cat link.py | head -1; exit 3")).stdout == "ran\ndef add(a, b):\n"
        await workspace.session.write_file("repo/new/x.txt", b"hello")
        assert await workspace.session.read_file("repo/new/x.txt") == b"hello"
        assert (await workspace.exec("git diff --stat; git status --short")).stdout == "?? new/\n"


async def test_a_patch_is_applied_as_a_whole_or_not_at_all(task, sandbox):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        bad = task.gold_patch + "--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-nothing\n+like it\n"
        said = await workspace.apply_patch(bad)
        assert said.startswith("The patch was not applied: run.sh: hunk 1 of 1")
        assert await workspace.session.read_file("repo/calc.py") == task.files["calc.py"]
        assert await workspace.apply_patch(task.gold_patch) == "The patch was applied:\nchanged calc.py"
        assert "no unified diff" in await workspace.apply_patch("nonsense")
        through_link = task.gold_patch.replace("calc.py", "link.py")
        assert "symbolic link" in await workspace.apply_patch(through_link)


async def test_a_snapshot_holds_what_changed_and_opens_again(task, sandbox):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        assert unpack(await workspace.snapshot()) == {}
        await workspace.exec(
            "echo x > new.txt; mkdir -p a/b; echo y > a/b/c; chmod +x a/b/c; rm run.sh; ln -s new.txt l; rm link.py;"
            "mkdir __pycache__; touch __pycache__/x.pyc; sed -i s/2/3/ calc.py"
        )
        snapshot = await workspace.snapshot()
    made = unpack(snapshot)
    assert made == {
        "new.txt": Node(b"x\n"),
        "a/b/c": Node(b"y\n", 0o755),
        "run.sh": None,
        "link.py": None,
        "l": Node(b"new.txt", 0o777, link=True),
        "calc.py": Node(task.files["calc.py"].replace(b"2", b"3")),
    }
    async with await RepositoryWorkspace.open(task, sandbox, snapshot=snapshot) as again:
        assert await again.changes() == made
        assert await again.snapshot() == snapshot
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        await workspace.exec(
            "rm -r tests run.sh; echo x > tests; mkdir run.sh; echo y > run.sh/z; ln -sf run.sh calc.py"
        )
        made = await workspace.changes()
        async with await RepositoryWorkspace.open(task, sandbox, snapshot=await workspace.snapshot()) as again:
            assert await again.changes() == made
            assert (await again.exec("cat tests calc.py/z")).stdout == "x\ny\n"
    with pytest.raises(ConfigError, match="no tar archive"):
        await RepositoryWorkspace.open(task, sandbox, snapshot=b"nonsense")


async def test_large_repositories_are_compared_by_size_and_time(task, sandbox, monkeypatch):
    monkeypatch.setattr("toolgym.envs.families.swe.workspace.SMALL", 0)
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        await workspace.exec("echo longer >> run.sh")
        assert set(await workspace.changes()) == {"run.sh"}


@NAMESPACES
async def test_a_fork_is_independent(task, sandbox):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        await workspace.session.write_file("repo/a.txt", b"1")
        async with await workspace.fork() as twin:
            await twin.apply_patch(task.gold_patch)
            assert set(await twin.changes()) == {"a.txt", "calc.py"}
            assert set(await workspace.changes()) == {"a.txt"}
            assert (await twin.run_tests()).resolved
            assert not (await workspace.run_tests()).resolved


async def test_any_command_with_the_id_of_a_test_in_it_can_judge(task, sandbox):
    task = dataclasses.replace(
        task, test_command="grep -q {test} calc.py", fail_to_pass=("a + b",), pass_to_pass=("return 2", "def")
    )
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        await workspace.session.write_file("repo/calc.py", b"a + b\nreturn 2\n")
        report = await workspace.run_tests()
    assert {**report.outcomes} == {"a + b": "passed", "return 2": "passed", "def": "failed"}
    assert (report.f2p_count, report.p2p_count, report.resolved) == (1, 1, False)


async def test_a_runner_that_is_not_there_is_no_verdict(task, sandbox):
    broken = dataclasses.replace(task, test_command="make test")
    async with await RepositoryWorkspace.open(broken, sandbox) as workspace:
        with pytest.raises(ConfigError, match="test_command of 'calc-1' must be"):
            await workspace.run_tests()


async def test_a_sandbox_without_sessions_is_refused(task):
    with pytest.raises(SandboxUnsupportedError, match="no sessions"):
        await RepositoryWorkspace.open(task, ProcessSandbox())


PYTHON = "/usr/bin/python3"
"""An interpreter that every user may run, as the level `uid` needs."""


@pytest.mark.skipif("uid" not in probe()["levels"] or not Path(PYTHON).exists(), reason=f"needs root and {PYTHON}")
@pytest.mark.parametrize("level", ["uid"])
async def test_it_works_at_weaker_levels(level, task):
    async with (
        LocalSandbox(level=level, python=PYTHON, preload=()) as sandbox,
        await RepositoryWorkspace.open(task, sandbox) as workspace,
    ):
        assert not (await workspace.run_tests()).resolved
        await workspace.apply_patch(task.gold_patch)
        assert (await workspace.run_tests()).resolved


@pytest.mark.skipif("landlock" not in probe()["levels"], reason="needs landlock")
async def test_a_level_without_programs_is_refused(task):
    async with LocalSandbox(level="landlock", preload=()) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="landlock"):
            await RepositoryWorkspace.open(task, sandbox)
