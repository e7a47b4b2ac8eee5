"""Tries to be let off, the envs that they are made against, and one way to play each."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import shutil
from contextlib import asynccontextmanager, contextmanager
from unittest import mock

import pytest

import toolgym
from tests.actors import call
from tests.envs.families.swe.conftest import BEFORE, HIDDEN, PATCH, PYTEST, VISIBLE
from tests.hostile.let_off import models
from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.envs.families.swe.env import SWEDevEnv
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.tools import BashTool, CodeInterpreterTool
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox import ExecutionStatus

TASK = Task(({"role": "user", "content": "Write 42 to answer.txt."},), id="t")

PACKAGES = {
    "SearchQA-v0": "bm25s",
    "ReasoningGym/gcd-v0": "reasoning_gym",
    "ReasoningGym/countdown-v0": "reasoning_gym",
    "Math-v0": "math_verify",
    "MCP-v0": "mcp",
    "PlotReader-v0": "matplotlib",
    "BFCL/multi_turn_base-v0": "bfcl_eval",
}
"""Packages that envs need."""


@dataclasses.dataclass(frozen=True)
class Try:
    """A try to be let off.

    Attributes:
        name: what it does.
        env: the env that it is made against, a name of `opened`.
        turns: the turns of the policy.
        wait: seconds before the last turn.
        is_quick: whether it takes less than a second, and represents others like it.
    """

    name: str
    env: str
    turns: tuple[str, ...]
    wait: float = 0.0
    is_quick: bool = False


# ---------------------------------------------------------------------- scorers of sessions


VERIFIER = b"""\
mkdir -p logs
[ "$(timeout 1 head -c 9 answer.txt)" = 42 ] && echo 1 >logs/reward.txt || echo 0 >logs/reward.txt
"""


async def reads_a_file(outcome):
    session = await outcome.session("bash").sandbox_session()
    return _is_42(await session.read_file("answer.txt"))


async def reads_a_file_of_cells(outcome):
    session = await outcome.session("code_interpreter").sandbox_session()
    return _is_42(await session.read_file("answer.txt"))


async def reads_all_files(outcome):
    session = await outcome.session("bash").sandbox_session()
    files = await session.walk()
    contents = await session.read_files(".", [file for file in files if file.kind == "file"])
    return _is_42(contents.get("answer.txt", b""))


async def runs_a_cell(outcome):
    session = await outcome.session("code_interpreter").sandbox_session()
    cell = await session.run_cell("print(open('answer.txt').read())", timeout=2)
    return _is_42(_of(cell).stdout.encode())


async def runs_a_verifier(outcome, session=None):
    """Upload tests, run them, and read the reward that they write: as Harbor does, and benchmarks of terminals."""
    session = session or await outcome.session("bash").sandbox_session()
    await session.write_file("tests/test.sh", VERIFIER)
    _of(await session.exec(["sh", "tests/test.sh"], timeout=3))
    return float((await session.read_file("logs/reward.txt")).strip() == b"1")


async def runs_a_verifier_on_a_copy(outcome):
    session = await outcome.session("bash").clean_copy()
    try:
        return await runs_a_verifier(outcome, session)
    finally:
        await session.close()


def _of(result):
    if result.status is ExecutionStatus.SANDBOX_ERROR:
        raise SandboxError(result.message)
    return result


def _is_42(data: bytes) -> float:
    return float(data.strip() == b"42")


SHELLS = {
    "bash, file": reads_a_file,
    "bash, all files": reads_all_files,
    "bash, verifier": runs_a_verifier,
    "bash, verifier on a copy": runs_a_verifier_on_a_copy,
}
CELLS = {"python, file": reads_a_file_of_cells, "python, cell": runs_a_cell}

# ---------------------------------------------------------------------- envs

INTERACTOR = """\
import sys
hidden = int(open("input.txt").read())
print(hidden, flush=True)
sys.exit(int(input()) != hidden + 1)
"""
CHECKER = """\
import sys
print(int(int(open(sys.argv[3]).read()) == int(open(sys.argv[1]).read()) + 1))
"""

PROGRAM_TASKS = {
    "judge, functions": [{"function": "f", "args": [1], "expected": 2}, {"function": "f", "args": [2], "expected": 3}],
    "judge, output": [{"stdin": "1\n", "expected": "2\n"}, {"stdin": "2\n", "expected": "3\n"}],
    "judge, checker": [{"stdin": str(n), "checker": CHECKER, "expected": str(n + 1)} for n in (1, 2)],
    "judge, interactor": [{"stdin": str(n), "interactor": INTERACTOR} for n in (1, 2)],
    "judge, assertions": [{"code": "assert f(1) == 2"}, {"code": "assert f(2) == 3"}],
}

COMPILED_TASKS = {"judge, C++": "judge, output", "judge, C++ and interactor": "judge, interactor"}
"""Tasks for programs in C++: the same tests as those of a task above."""

_UNITTEST = RepositoryTask(
    instance_id="calc-1",
    problem_statement="add(1, 2) is -1.",
    files={"calc.py": BEFORE, "tests/__init__.py": "", "tests/test_calc.py": VISIBLE},
    test_files={"tests/test_calc.py": HIDDEN},
    test_command="python -m unittest discover -s tests -t .",
    fail_to_pass=("tests.test_calc.CalcTest.test_add",),
    pass_to_pass=("tests.test_calc.CalcTest.test_double",),
    gold_patch=PATCH,
)
REPOSITORIES = {
    "repository, unittest": _UNITTEST,
    "repository, pytest": dataclasses.replace(
        _UNITTEST,
        test_files={"tests/test_calc.py": PYTEST},
        test_command="pytest",
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_calc.py::test_double",),
    ),
    "repository, commands": dataclasses.replace(_UNITTEST, test_command="python3 -m unittest {test}"),
}


@asynccontextmanager
async def opened(name: str):
    """Open the env of a name: an id, or one of those above."""
    if name in models.ENVS:
        async with models.ENVS[name]() as env:
            yield env
        return
    async with make(name) as env:
        yield env


def make(name: str):
    """Return the env of a name that is not a model's."""
    if name in SHELLS:
        tool = BashTool({"timeout": 2})
        return ToolEnv([tool], [TASK], scorer=SHELLS[name], score_timeout=5.0, owns_tools=True)
    if name in CELLS:
        tool = CodeInterpreterTool({"default_timeout": 1})
        return ToolEnv([tool], [TASK], scorer=CELLS[name], score_timeout=5.0, owns_tools=True)
    if name in PROGRAM_TASKS:
        task = dataclasses.replace(TASK, ground_truth=json.dumps(PROGRAM_TASKS[name]))
        return toolgym.make("CodeJudge-v0", tasks=[task], test_timeout=1.0)
    if name in COMPILED_TASKS:
        if shutil.which("g++") is None:
            pytest.skip("g++ is not installed")
        task = dataclasses.replace(TASK, ground_truth=json.dumps(PROGRAM_TASKS[COMPILED_TASKS[name]]))
        return toolgym.make("CodeJudge-v0", tasks=[task], test_timeout=1.0, language="cpp")
    if name in REPOSITORIES:
        return SWEDevEnv([REPOSITORIES[name]], test_timeout=4.0, bash_config={"timeout": 3})
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    return toolgym.make(name)


def command(text: str) -> str:
    return call("bash", command=text)


def cell(text: str) -> str:
    return call("code_interpreter", code=text)


@contextmanager
def shortened():
    """Shorten the deadlines that the tries run into."""
    with (
        mock.patch.multiple("toolgym.tools.sessions.session_check", CHECK_TIMEOUT=5.0),
        mock.patch.multiple("toolgym.envs.families.swe.workspace", OPEN_TIMEOUT=20.0),
    ):
        yield


async def play(attempt: Try):
    """Play an episode to its end. Returns its reward and the last result; raises if the episode fails."""
    reward, result = 0.0, None
    with shortened():
        async with opened(attempt.env) as env:
            await env.reset(seed=0)
            for number, turn in enumerate(attempt.turns, start=1):
                if number == len(attempt.turns):
                    await asyncio.sleep(attempt.wait)
                result = await env.step(turn)
                reward += result.reward
                if result.done:
                    break
            if not result.done:
                result = await env.truncate(StopReason.MAX_TURNS)
                reward += result.reward
    return reward, result
