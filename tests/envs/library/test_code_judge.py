from __future__ import annotations

import gzip
import json
import shutil
from contextlib import AsyncExitStack

import aiohttp
import pytest

import toolgym
from tests.tools.sandbox.served import serving
from toolgym.envs import Task
from toolgym.envs.library.code_judge import EMBEDDED, code_tasks
from toolgym.envs.rewards.base import Outcome
from toolgym.envs.rewards.unit_tests import UnitTests
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.integrations.sandbox_fusion.api import EvaluationApi
from toolgym.tools.integrations.sandbox_fusion.config import EvaluatingServerConfig
from toolgym.tools.judge import Judge, read_tests
from toolgym.tools.message import user
from toolgym.tools.sandbox import LocalSandbox, SharedSandbox

MBPP = {
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\n    return a + b",
    "task_id": 1,
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 7654321) == 7654323"],
}
SETS = {**MBPP, "test_list": ["assert set([add(1, 2)]) == set([3])", "assert abs(add(2, 7654321) - 7654323) < 1e-6"]}
FORGER = """
import gc
[link] = [one for one in gc.get_objects() if type(one).__name__ == "Link"]
send = link._send
def forged(message):
    if message[0] == "answer" and "dict" in (message[-2] if isinstance(message[-2], dict) else ()):
        message[-2]["dict"] += [["set", link.encode(lambda *a: 1)], ["abs", link.encode(lambda x: 0.0)]]
    send(message)
link._send = forged
def add(a, b): return 0
"""
"""Answers with builtins that the tests have not asked for."""


async def test_each_embedded_solution_passes_its_tests():
    tasks = code_tasks(EMBEDDED).tasks
    assert len(tasks) == 25
    async with SharedSandbox(preload=()) as sandbox:
        for task in tasks:
            verdicts = await Judge(sandbox).judge(task.extra_info["solution"], read_tests(task.ground_truth))
            assert all(one.passed for one in verdicts), task.id
            assert len(verdicts) >= 5


def test_no_prompt_shows_a_hidden_test():
    for task in code_tasks(EMBEDDED).tasks:
        shown = json.dumps([task.messages, task.tools_kwargs])
        inputs = [json.dumps(one.get("stdin") or one.get("args")) for one in task.ground_truth[2:]]
        assert not [one for one in inputs if len(one) > 12 and one in shown]


def test_the_prompt_shows_what_an_example_expects():
    prompts = {task.id: task.messages[-1]["content"] for task in code_tasks(EMBEDDED).tasks}
    assert "digit_steps(1) == 0\n\ndigit_steps(19) == 4" in prompts["digit_steps"]
    read_and_print = [task for task in code_tasks(EMBEDDED).tasks if "stdin" in task.ground_truth[0]]
    for task in read_and_print:
        first = task.ground_truth[0]
        assert f"Output:\n{first['expected'].rstrip()}" in prompts[task.id]


async def test_the_policy_writes_tries_and_answers():
    async with toolgym.make("CodeJudge-v0", tasks=[MBPP]) as env:
        (message,), info = await env.reset(seed=0)
        assert "add(1, 2) == 3" in message["content"]
        assert "7654321" not in message["content"]
        assert {one["function"]["name"] for one in info["tools"]} == {"code_interpreter", "run_tests"}
        call = {"name": "run_tests", "arguments": {"code": "def add(a, b): return a"}}
        result = await env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert "0 of 1 tests passed." in result.obs[0]["content"]
        assert "got 1, expected 3" in result.obs[0]["content"]
        assert "7654321" not in result.obs[0]["content"]
        result = await env.step("```python\ndef add(a, b): return 3\n```")
        assert (result.reward, result.done) == (0.0, True)
        assert result.info["metrics"]["score/tests_passed"] == 0.5


async def test_a_part_of_the_tests_is_a_part_of_the_reward():
    async with toolgym.make("CodeJudge-v0", tasks=[MBPP], reward="fraction") as env:
        await env.reset(seed=0)
        assert (await env.step("```python\ndef add(a, b): return 3\n```")).reward == 0.5


async def test_hidden_tests_are_nowhere_in_the_policys_sandbox():
    look = (
        "import os\nneedle = bytes(map(ord, reversed('1234567')))\n"
        "tops = ('/tmp', '.', '/dev/shm')\n"
        "places = [os.path.join(at, name) for top in tops for at, _, names in os.walk(top) for name in names]\n"
        "places = [place for place in places if not place.startswith(os.sys.prefix)]\n"
        "places += [f'/proc/self/{n}' for n in ('environ', 'cmdline')]\n"
        "print([p for p in places if needle in open(p, 'rb').read()], len(places) > 1)"
    )
    call = {"name": "code_interpreter", "arguments": {"code": look}}
    async with toolgym.make("CodeJudge-v0", tasks=[MBPP]) as env:
        await env.reset(seed=0)
        result = await env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert result.obs[0]["content"] == "[] True"


async def test_a_fork_goes_on_by_itself_and_the_last_one_closes_the_tools():
    env = toolgym.make("CodeJudge-v0", tasks=[MBPP])
    await env.reset(seed=0)
    twin = await env.fork()
    assert (await env.step("")).reward == 0.0
    await env.close()
    assert (await twin.step(f"```python\n{MBPP['code']}\n```")).reward == 1.0
    await twin.close()


PRINTING = [
    ("print(1 / int(input()))", "3\n", "0.3333333333", True),
    ("print(1 / int(input()))", "3\n", "0.33", False),
    ("print(0.25)", "", "0.250", True),
    ("print(5.0)", "", "5", True),
    ("print('yes')", "", "YES", False),
    ("print(10000001)", "", "10000000", False),
    ("print('a   b ')", "", "a b\n", True),
    ("print(7); raise SystemExit(3)", "", "7", False),
    ("print(open(0).read())", "7\n", "7", True),
    ("import sys; sys.exit(0)", "", "7", False),
]
CALLING = [
    ("def add(a, b): return a + b", True),
    ("def add(a, b): return 3", False),
    (FORGER, False),
    ("import gc\nclass Liar(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Liar()", False),
]


@pytest.fixture
async def verdicts():
    """Asks env, `/submit` and scorer for their verdict on one program: a set, of one if they agree."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(LocalSandbox(preload=()))
        routes = {"routes_of": lambda app, config: EvaluationApi(app, config).routes()}
        server = await stack.enter_async_context(serving(sandbox, config_class=EvaluatingServerConfig, **routes))
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(program, truth, format, row):
            answer = f"```python\n{program}\n```"
            task = Task((user("?"),), truth)
            async with toolgym.make("CodeJudge-v0", tasks=[task]) as env:
                await env.reset(seed=0)
                found = [(await env.step(answer)).reward]
            found.append((await UnitTests(sandbox)(Outcome(task, (), 1, (), answer, StopReason.ANSWERED))).value)
            config = {"dataset_type": format, "provided_data": row, "language": "python"}
            body = {"dataset": "x", "id": 1, "completion": answer, "config": config}
            async with client.post(f"{server.url}/submit", json=body) as response:
                found.append(float((await response.json())["accepted"]))
            return set(found)

        yield ask


async def test_env_server_and_scorer_agree_on_what_is_printed(verdicts):
    for program, stdin, expected, right in PRINTING:
        truth = {"inputs": [stdin], "outputs": [expected]}
        row = {"id": 1, "content": "?", "test": [{"input": {"stdin": stdin}, "output": {"stdout": expected}}]}
        assert await verdicts(program, truth, "CommonOJDataset", row) == {float(right)}, program


async def test_env_server_and_scorer_agree_on_what_is_returned(verdicts):
    for program, right in CALLING:
        assert await verdicts(program, SETS, "MBPPDataset", {**SETS, "id": 1}) == {float(right)}, program


async def test_decimal_answers_are_right():
    cases = {"inputs": ["3\n", "7\n", "8\n"], "outputs": ["0.3333333", "0.14285714", "0.1250"]}
    program = "print(1 / int(input()))"
    call = {"name": "run_tests", "arguments": {"code": program}}
    for tolerance, passed, reward in ((None, 2, 1.0), (0, 0, 0.0)):
        row = {"question": "Print 1/n.", "input_output": cases}
        async with toolgym.make("CodeJudge-v0", tasks=[row], tolerance=tolerance) as env:
            await env.reset(seed=0)
            result = await env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
            assert f"{passed} of 2 tests passed" in result.obs[0]["content"]
            assert (await env.step(f"```python\n{program}\n```")).reward == reward


async def test_an_episode_whose_test_cannot_be_judged_does_not_count():
    task = Task((user("?"),), [{"code": "assert f(1) == 1", "setup": "import no_such_module"}])
    async with toolgym.make("CodeJudge-v0", tasks=[task]) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match="cannot be judged") as caught:
            await env.step("```python\ndef f(x): return 1\n```")
    assert not caught.value.stop_reason.in_group_statistics


async def test_tasks_of_verls_shape_and_files(tmp_path):
    truth = json.dumps({"inputs": ["2\n"], "outputs": ["4\n"]})
    task = Task.from_row({"prompt": [user("Double.")], "reward_model": {"ground_truth": truth}, "data_source": "codes"})
    async with toolgym.make("CodeJudge-v0", tasks=[task]) as env:
        await env.reset(seed=0)
        assert env.gold_actions() is None
        assert (await env.step("```python\nprint(int(input()) * 2)\n```")).reward == 1.0
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(MBPP))
    async with toolgym.make("CodeJudge-v0", tasks=tmp_path / "mbpp.jsonl") as env:
        await env.reset(seed=0)
        assert env.task.source == "mbpp"


async def test_rows_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match=r"row 2: a row of a code data set needs"):
        toolgym.make("CodeJudge-v0", tasks=[MBPP, {"question": "?"}])
    (tmp_path / "a.jsonl").write_text('{"question": "?"}')
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 1: "):
        toolgym.make("CodeJudge-v0", tasks=tmp_path / "a.jsonl")
    with pytest.raises(UnknownNameError):
        toolgym.make("CodeJudge-v0", tasks="nowhere.jsonl")
    async with toolgym.make("CodeJudge-v0", tasks=[Task((user("?"),), 7, id="odd")]) as env:
        with pytest.raises(ConfigError, match="the ground truth of the task 'odd' holds no tests"):
            await env.reset(seed=0)


def test_data_sets_come_in_several_kinds_of_files(tmp_path):
    lines = "".join(f"{json.dumps(row)}\n" for row in (MBPP, {**MBPP, "task_id": 2}))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.json").write_text(json.dumps([MBPP, {**MBPP, "task_id": 2}]))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("a.jsonl", "a.json", "a.jsonl.gz"):
        assert [task.id for task in code_tasks(tmp_path / name).tasks] == ["1", "2"]
    with pytest.raises(UnknownNameError, match=r"a\.jsonlx"):
        code_tasks(tmp_path / "a.jsonlx")
    for name, content, message in (
        ("bad", b"1\n", "must be an object|expected a JSON object"),
        ("bad.gz", b"\x1f\x8b", r"bad\.gz"),
        ("rows.jsonl", b'{"id": 1}\n', r"rows\.jsonl, line 1: a row of a code data set needs"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            code_tasks(tmp_path / name)
    with pytest.raises(ConfigError, match="there are none"):
        code_tasks([])


def test_a_data_set_as_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([MBPP, {**MBPP, "task_id": 2}]), tmp_path / "a.parquet")
    assert [task.id for task in code_tasks(tmp_path / "a.parquet").tasks] == ["1", "2"]


JAVASCRIPT = "const n = Number(require('fs').readFileSync(0, 'utf8'));\nconsole.log(n * 2);"


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
async def test_programs_in_another_language(tmp_path):
    row = {"question": "Print twice the number.", "input_output": {"inputs": ["2\n", "4\n"], "outputs": ["4\n", "8\n"]}}
    async with toolgym.make("CodeJudge-v0", tasks=[row], language="nodejs") as env:
        (message,), _ = await env.reset(seed=0)
        assert "Write a JavaScript program" in message["content"]
        assert "begins with ```javascript" in message["content"]
        answer = f"In Python:\n```python\nprint(0)\n```\nIn JavaScript:\n```js\n{JAVASCRIPT}\n```\n```\n4\n```"
        assert (await env.step(answer)).reward == 1.0
    async with toolgym.make("CodeJudge-v0", tasks=[row], language="nodejs") as env:
        await env.reset(seed=0)
        call = {"name": "run_tests", "arguments": {"code": JAVASCRIPT.replace("* 2", "+ 2")}}
        assert (await env.step("```js\nconsole.log(4)\n```")).reward == 0.0
        await env.reset(seed=0)
        result = await env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert result.obs[0]["content"] == "[This task has no example tests]"


def test_tests_of_python_functions_are_refused_for_other_languages():
    with pytest.raises(ConfigError, match="row 1: the tests of a row of MBPP call functions of Python programs"):
        toolgym.make("CodeJudge-v0", tasks=[MBPP], language="cpp")


def test_rows_that_are_not_tasks_are_left_out_and_counted(caplog):
    without_tests = {"question": "?", "input_output": ""}
    tasks = code_tasks([MBPP, without_tests, without_tests]).tasks
    assert [task.id for task in tasks] == ["1"]
    assert "Left out 2 of 3 rows: each has no tests" in caplog.text
    with pytest.raises(ConfigError, match="there are none"):
        code_tasks([without_tests])


async def test_a_usage_example_after_the_program_does_not_replace_it():
    answer = f"```python\n{MBPP['code']}\n```\nFor example:\n```python\nprint(add(1, 2))\n```"
    async with toolgym.make("CodeJudge-v0", tasks=[MBPP]) as env:
        await env.reset(seed=0)
        assert (await env.step(answer)).reward == 1.0


def test_columns_can_be_ignored():
    row = {**MBPP, "timeout": 3}
    with pytest.raises(ConfigError, match="row 1: the column 'timeout' of a row of MBPP is not read"):
        toolgym.make("CodeJudge-v0", tasks=[row])
    toolgym.make("CodeJudge-v0", tasks=[row], ignore_columns=["timeout"])
