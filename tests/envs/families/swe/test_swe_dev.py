"""`SWEDev-v0` in process: rewards, failures, forks, and tasks of one's own."""

from __future__ import annotations

import json

import pytest

import toolgym
from tests.tools.sandbox.served import serving
from toolgym.envs import EpisodeFailedError, StopReason, Task
from toolgym.envs.families.swe.env import SWEDevEnv
from toolgym.envs.families.swe.task import RepositoryTask, load_repository_tasks
from toolgym.testing import EnvSuite
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxBusyError, SandboxUnsupportedError
from toolgym.tools.message import assistant, tool_call
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.shared import SharedSandbox

FORKS = "namespaces" in probe()["levels"]
FIXES = {"calc.py": "def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef three():\n    return 3\n"}
TESTS = """
import unittest

import calc


class CalcTest(unittest.TestCase):
    def test_one(self):
        self.assertEqual(calc.one(), 1)

    def test_two(self):
        self.assertEqual(calc.two(), 2)

    def test_three(self):
        self.assertEqual(calc.three(), 3)
"""
TASK = RepositoryTask(
    instance_id="calc",
    problem_statement="one() and two() are 0.",
    files={"calc.py": FIXES["calc.py"].replace("return 1", "return 0").replace("return 2", "return 0")},
    test_files={"test_calc.py": TESTS},
    test_command="python -m unittest",
    fail_to_pass=("test_calc.CalcTest.test_one", "test_calc.CalcTest.test_two"),
    pass_to_pass=("test_calc.CalcTest.test_three",),
)


def action(name, **arguments):
    return assistant("", [tool_call(name, arguments)])


def bash(command):
    return action("bash", command=command)


class TestSWEDev(EnvSuite):
    actions = (
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        '<tool_call>{"name": "editor", "arguments": {"command": "view", "path": "."}}</tool_call>',
        "done",
    )
    forks = FORKS

    @pytest.fixture
    def env(self):
        return toolgym.make("SWEDev-v0")

    @pytest.mark.long  # what a policy may not read is tested in test_verdict_attacks.py as well
    async def test_secrets(self, env):
        await super().test_secrets(env)


@pytest.mark.parametrize(
    ("command", "strict", "reward", "components"),
    [
        ("true", False, 0.0, (0.0, 1.0, 0.0)),
        ("sed -i '2s/0/1/' calc.py", False, 0.5, (0.5, 1.0, 0.0)),
        ("sed -i '2s/0/1/' calc.py", True, 0.0, (0.5, 1.0, 0.0)),
        ("sed -i '2s/0/1/; 6s/0/2/' calc.py", True, 1.0, (1.0, 1.0, 1.0)),
        ("sed -i '2s/0/1/; 6s/0/2/; 10s/3/0/' calc.py", False, 0.0, (1.0, 0.0, 0.0)),
        ("kill -9 -1; sleep 9", False, 0.0, (0.0, 0.0, 0.0)),
    ],
)
async def test_the_reward_is_the_share_of_repaired_tests_if_nothing_broke(command, strict, reward, components):
    async with SWEDevEnv([TASK], strict=strict) as env:
        await env.reset()
        await env.step(bash(command))
        if command.startswith("kill"):
            await env.step(bash("true"))  # it may see the end of the session only now
        result = await env.step("done")
    assert result.reward == reward
    metrics = result.info["metrics"]
    assert tuple(metrics[f"score/{name}"] for name in ("f2p", "p2p", "resolved")) == components


async def test_work_counts_where_the_turns_are_used_up():
    async with SWEDevEnv([TASK], max_turns=2) as env:
        await env.reset()
        await env.step(action("editor", command="create", path="calc.py", file_text=FIXES["calc.py"]))
        result = await env.step(bash("ls"))
    assert (result.stop_reason, result.reward) == (StopReason.MAX_TURNS, 1.0)


async def test_a_sandbox_that_fails_is_no_zero():
    async with SWEDevEnv([TASK]) as env:
        await env.reset()
        await env._repository.session.close()
        with pytest.raises(EpisodeFailedError, match="the tests could not be run: SessionLostError") as failed:
            await env.step("done")
        assert failed.value.stop_reason is StopReason.SANDBOX_FAILED
        await env.reset()  # and the next episode begins
        with pytest.raises(EpisodeError, match="reset"):
            await SWEDevEnv([TASK]).run_tests()


class Full(SharedSandbox):
    """Has no room."""

    async def open_session(self, request):
        raise SandboxBusyError("there is no room")


async def test_a_repository_that_cannot_be_opened_fails_the_episode():
    async with Full() as sandbox, SWEDevEnv([TASK], sandbox=sandbox) as env:
        with pytest.raises(EpisodeFailedError, match="the repository cannot be opened: .*no room") as failed:
            await env.reset()
        assert failed.value.stop_reason is StopReason.SANDBOX_FAILED
        with pytest.raises(EpisodeError):
            await env.step("done")
        assert env._workspace._shared == {}
    large = RepositoryTask.from_row({**TASK.to_row(), "files": {"calc.py": "#" * 2_000_000}})
    async with SWEDevEnv([large], session_options={"disk_mb": 1}) as env:
        with pytest.raises(ConfigError, match="disk_mb is 1"):
            await env.reset()


@pytest.mark.skipif(not FORKS, reason="forks need namespaces")
async def test_a_fork_is_judged_by_itself():
    async with SWEDevEnv([TASK]) as env:
        await env.reset()
        await env.step(bash("sed -i '2s/0/1/' calc.py"))
        async with await env.fork() as twin:
            await twin.step(bash("sed -i '6s/0/2/' calc.py"))
            assert (await twin.step("done")).reward == 1.0
        assert (await env.step("done")).reward == 0.5
        assert env._workspace._shared == {}


async def test_the_policy_reads_where_the_repository_is():
    async with SWEDevEnv([TASK]) as env:
        messages, info = await env.reset()
        assert "one() and two() are 0." in messages[0]["content"]
        assert [tool["function"]["name"] for tool in info["tools"]] == ["bash", "editor"]
        assert (await env.step(bash("basename $PWD; ls"))).obs[0]["content"] == "repo\ncalc.py"
        assert "calc.py" in (await env.step(action("editor", command="view", path="."))).obs[0]["content"]


async def test_tasks_may_be_a_file_or_rows_of_verls_shape(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(TASK.to_row()) + "\n")
    rows = toolgym.envs.load_tasks([json.loads(json.dumps(TASK.to_task().to_row()))])
    for tasks in (file, str(file), rows, [TASK.to_task()]):
        env = SWEDevEnv(tasks)
        assert RepositoryTask.from_task(env.tasks.task(0)) == TASK
        await env.close()
    async with SWEDevEnv([Task(({"role": "user", "content": "x"},), id="7")]) as env:
        with pytest.raises(ConfigError, match="'7' has no extra_info"):
            await env.reset()


async def test_a_solution_that_deletes_is_played():
    hunks = "@@ -2 +2 @@\n-    return 0\n+    return 1\n@@ -6 +6 @@\n-    return 0\n+    return 2\n"
    row = {**TASK.to_row(), "files": {**TASK.to_row()["files"], "it's old.py": "x\n"}}
    row["gold_patch"] = f"--- a/calc.py\n+++ b/calc.py\n{hunks}--- a/it's old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    async with SWEDevEnv([RepositoryTask.from_row(row)]) as env:
        await env.reset()
        assert len(env.gold_actions()) == 3
        for one in env.gold_actions()[:-1]:
            await env.step(one)
        assert (await env.step(bash("ls"))).obs[0]["content"] == "calc.py"
        assert (await env.step(env.gold_actions()[-1])).reward == 1.0
        await env.reset()
        for one in env.gold_actions()[:-1]:
            await env.step(one)
        cut = await env.truncate(StopReason.LENGTH, "The repository is repaired, beca")
        assert (cut.reward, cut.stop_reason) == (1.0, StopReason.LENGTH)
    async with SWEDevEnv([TASK]) as env:
        await env.reset()
        assert env.gold_actions() is None


async def test_what_cannot_work_is_refused():
    with pytest.raises(SandboxUnsupportedError, match="no sessions"):
        SWEDevEnv(sandbox=ProcessSandbox())
    with pytest.raises(ConfigError, match="not both"):
        SWEDevEnv(sandbox=LocalSandbox(preload=()), tool_config={})
    with pytest.raises(ConfigError, match="test_timeout"):
        SWEDevEnv(test_timeout=0)
    with pytest.raises(ConfigError, match="tasks must be"):
        SWEDevEnv(3)


async def test_it_runs_in_a_sandbox_of_the_caller():
    task = load_repository_tasks()[0]
    async with LocalSandbox(preload=()) as sandbox, SWEDevEnv([task], sandbox=sandbox) as env:
        await env.reset()
        for one in env.gold_actions():
            result = await env.step(one)
        assert result.reward == 1.0


async def test_it_runs_on_a_server():
    async with LocalSandbox(preload=()) as sandbox, serving(sandbox) as service:
        env = SWEDevEnv([TASK], tool_config={"sandbox_url": service.url})
        await env.reset()
        said = (await env.step(bash("cd ..; x=1; pwd; exit 3"))).obs[0]["content"]
        assert said.endswith("\n[Exit code 3]")
        await env.step(bash("cd repo; sed -i '2s/0/1/; 6s/0/2/' calc.py"))
        shown = await env.step(action("editor", command="view", path="calc.py", view_range=[1, 2]))
        assert shown.obs[0]["content"] == "     1\tdef one():\n     2\t    return 1"
        assert (await env.step("done")).reward == 1.0
        await env.close()
