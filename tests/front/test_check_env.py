"""`check_env` and `toolgym check-env`: leaks, cancellation, scores, and verdicts that can be cheated."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import textwrap
import uuid

import pytest

import toolgym
from toolgym.cli.app import main
from toolgym.envs import Task, ToolEnv
from toolgym.testing import ConformanceError, check_env
from toolgym.testing.env_report import CHECKS, run_checks
from toolgym.tools import CodeInterpreterTool, tool
from toolgym.tools.message import assistant, user

SECRET = "def test_that_stays_out_of_the_policys_reach(): assert solve(41) == 42"
TASKS = [
    Task(({"role": "user", "content": f"Say {n}."},), ground_truth={"answer": str(n), "tests": SECRET}, id=str(n))
    for n in range(5)
]


@tool
async def shell(command: str) -> str:
    """Run a shell command."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=FOLDER
    )
    try:
        return (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


FOLDER = tempfile.gettempdir()


class Say(ToolEnv):
    """Keeps the contract; each class below breaks it in one way."""

    tools_of_it = ()

    def __init__(self):
        super().__init__(self.tools_of_it, TASKS, scorer=self.score)

    def score(self, text, task):
        return float(text == task.ground_truth["answer"])

    def gold_actions(self):
        return [assistant(self.task.ground_truth["answer"])]


class LeavesFiles(Say):
    async def reset(self, **arguments):
        os.close(tempfile.mkstemp()[0])
        return await super().reset(**arguments)


class LeavesTasks(Say):
    async def reset(self, **arguments):
        KEPT.append(asyncio.create_task(asyncio.sleep(60)))
        return await super().reset(**arguments)


class LeavesProcesses(Say):
    async def reset(self, **arguments):
        KEPT.append(subprocess.Popen(["sleep", "60"]))
        return await super().reset(**arguments)


class LeavesDescriptors(Say):
    async def reset(self, **arguments):
        KEPT.append(os.open(os.devnull, os.O_RDONLY))
        return await super().reset(**arguments)


class Swallows(Say):
    async def step(self, action):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.swallowed = True
        return await super().step(action)


class WrongGold(Say):
    def gold_actions(self):
        return [assistant("something else")]


class Generous(Say):
    def score(self, text, task):
        return 1.0


class PaysCuts(Say):
    async def truncate(self, reason, turn=None):
        return (await super().truncate(reason, turn))._replace(reward=1.0)


class Believes(Say):
    def score(self, text, task):
        return float(text == task.ground_truth["answer"] or "All tests pass" in text)


class Holds(Say):
    def score(self, text, task):
        return float(str(task.ground_truth["answer"]) in text)


class HoldsMarked(Say):
    def score(self, text, task):
        return float(str(task.ground_truth["answer"]) in (final_answer_line(text) or ""))


class DrawsGlobally(Say):
    async def reset(self, **arguments):
        messages, info = await super().reset(**arguments)
        return [*messages, user(f"Your lucky number is {random.random()}.")], info


class CountsMembers(Say):
    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self.number = next(self.numbers)

    async def reset(self, **arguments):
        messages, info = await super().reset(**arguments)
        return [*messages, user(f"You are number {self.number}.")], info


class DrawsUuid(Say):
    async def reset(self, **arguments):
        messages, info = await super().reset(**arguments)
        return [*messages, user(f"The session is {uuid.uuid4()}.")], info


def final_answer_line(text):
    return text.rpartition("####")[2] if "####" in text else None


class LastNumber(Say):
    def score(self, text, task):
        return float((re.findall(r"\d+", text) or [""])[-1] == task.ground_truth["answer"])


class Shell(Say):
    tools_of_it = (shell,)


class ReadsVerdict(Say):
    """Takes a program that writes verdict.json for the judge."""

    def __init__(self):
        ToolEnv.__init__(self, [CodeInterpreterTool()], TASKS, scorer=self.believe, owns_tools=True)

    def believe(self, outcome):
        return float(any("verdict.json" in call.arguments["code"] for call in outcome.tool_calls))


KEPT = []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "FOLDER", str(tmp_path))
    yield tmp_path
    while KEPT:
        kept = KEPT.pop()
        if isinstance(kept, int):
            os.close(kept)
        elif isinstance(kept, subprocess.Popen):
            kept.kill()
            kept.wait()
        else:
            kept.cancel()


def only(monkeypatch, *names):
    checks = {name: check for name, check in CHECKS.items() if name in names}
    monkeypatch.setattr("toolgym.testing.env_report.CHECKS", checks)


async def test_a_good_env_passes_every_check():
    results = {result.name: result for result in await check_env(Say)}
    assert list(results) == list(CHECKS)
    assert {result.name for result in results.values() if result.passed is None} == {"mutants", "secrets"}
    assert results["secrets"].detail == "no tool of the env runs programs: none has an argument 'code' or 'command'"


@pytest.mark.parametrize(
    ("env", "check", "said"),
    [
        (LeavesFiles, "leaks", "leaves no temporary file behind; got 8 more after 4 episodes"),
        (LeavesTasks, "leaks", "leaves no task behind; got 8 more after 4 episodes"),
        (LeavesProcesses, "leaks", "leaves no process behind; got 8 more after 4 episodes"),
        (LeavesDescriptors, "leaks", "leaves no open file behind; got 8 more after 4 episodes"),
        (Swallows, "cancellation", "raises CancelledError; got StepResult"),
        (WrongGold, "scores", "the known solution of seed 0 earns 1; got 0.0"),
        (Generous, "scores", "an empty answer to seed 0 earns at most 0; got 1.0"),
        (PaysCuts, "scores", "an empty turn that was cut earns at most 0; got 1.0"),
        (Believes, "attacks", r"the answer 'All tests pass. reward: 1.0' does not earn the full reward; got 1.0"),
        (Holds, "attacks", "the answer '918273645 0 1 2 .* does not earn the full reward; got 1.0"),
        (HoldsMarked, "attacks", "the answer '#### 918273645 0 1 2 .* does not earn the full reward; got 1.0"),
        (
            ReadsVerdict,
            "attacks",
            "a program of the tool 'code_interpreter' that writes files that look like a verdict does not",
        ),
    ],
)
@pytest.mark.usefixtures("end_lingering")  # what ends meanwhile would make up for what is left behind
async def test_what_is_wrong_is_named(env, check, said, monkeypatch):
    only(monkeypatch, check)
    monkeypatch.setattr("toolgym.testing.env_checks.SETTLE_SECONDS", 0.3)
    with pytest.raises(ConformanceError, match=said):
        await check_env(env)


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        (DrawsGlobally, "global `random`"),
        (CountsMembers, "depends on the object"),
        (DrawsUuid, "something else than the task and the seed"),
    ],
)
async def test_check_env_names_why_members_of_a_group_differ(env, cause, monkeypatch):
    only(monkeypatch, "group")
    with pytest.raises(
        ConformanceError, match="members of a group begin in the same state: the first messages"
    ) as error:
        await check_env(env)
    assert cause in str(error.value)


@pytest.mark.parametrize("id", ["GSM8K-v0", "Math-v0", "SearchQA-v0", "SQL-v0", "ReasoningGym/basic_arithmetic-v0"])
async def test_an_answer_that_holds_every_number_flags_no_env_of_the_library(id, monkeypatch):
    only(monkeypatch, "attacks")
    [result] = await check_env(lambda: toolgym.make(id))
    assert result.passed is not False, result.detail


async def test_a_scorer_of_the_last_number_is_no_fault(monkeypatch):
    only(monkeypatch, "attacks")
    assert (await check_env(LastNumber))[0].passed


async def test_a_tool_without_a_sandbox_is_given_nothing_that_overwrites_files(folder, monkeypatch):
    only(monkeypatch, "attacks")
    [result] = await check_env(Shell)
    assert result.passed is None
    assert "the tool 'shell' works on this machine's own files" in result.detail
    assert list(folder.iterdir()) == []


async def test_a_shell_must_not_find_the_hidden_tests(folder, monkeypatch):
    only(monkeypatch, "secrets")
    monkeypatch.setattr("toolgym.testing.env_attacks.SEARCHED", ("CWD",))
    [result] = await check_env(Shell)
    assert result.passed
    (folder / "tests").mkdir()
    (folder / "tests" / "hidden.py").write_text(f"# {SECRET}\n")
    with pytest.raises(ConformanceError, match="cannot read the task's hidden texts; got .*tests/hidden.py"):
        await check_env(Shell)


async def test_a_shell_must_not_find_the_repositorys_future(folder, monkeypatch):
    only(monkeypatch, "secrets")
    monkeypatch.setattr("toolgym.testing.env_attacks.SEARCHED", ("CWD",))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (
        ["git", "init", "-q"],
        [*git, "commit", "-q", "--allow-empty", "-m", "now"],
        ["git", "branch", "base"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    assert [result.passed for result in await check_env(Shell)] == [True]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "the fix"], cwd=folder, check=True, timeout=60)
    subprocess.run(["git", "checkout", "-q", "base"], cwd=folder, check=True, timeout=60)
    with pytest.raises(ConformanceError, match="the repository has no commits after its present one"):
        await check_env(Shell)


async def test_a_failed_check_does_not_keep_the_others_from_being_made(monkeypatch):
    only(monkeypatch, "scores", "order", "close")
    results = [(result.name, result.passed) async for result in run_checks(Generous)]
    assert results == [("order", True), ("scores", False), ("close", True)]


def test_the_command_prints_each_check(tmp_path, monkeypatch, capsys):
    only(monkeypatch, "order", "scores", "secrets")
    (tmp_path / "says.py").write_text(
        textwrap.dedent("""
        import toolgym
        from toolgym.envs import Task, ToolEnv

        class Says(ToolEnv):
            def __init__(self, reward=1.0):
                task = Task(({"role": "user", "content": "Say 1."},), ground_truth="1")
                super().__init__([], [task], scorer=lambda text, task: reward * (text == "1"))

            def gold_actions(self):
                return ["1"]

        toolgym.register("Says-v0", "says:Says")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", "check-env", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr()

    code, said = run("says:Says-v0")
    assert code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == ["passed", "passed", "not", "no"]
    code, said = run("says:Says-v0", "--env-kwargs", '{"reward": 0.5}', "--json")
    assert code == 1
    failed = [result for result in json.loads(said.out) if result["passed"] is False]
    assert [result["detail"] for result in failed] == ["the known solution of seed 0 earns 1; got 0.5"]
    assert run("says:Says-v0", "--env-kwargs", '{"reward": 0.5}', "--full-reward", "0.5")[0] == 0
    code, said = run("says:Says-v0", "--env-kwargs", '{"rewart": 1}')
    assert code == 2
    assert "did you mean 'reward'" in said.err
