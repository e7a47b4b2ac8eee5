"""`toolgym.testing` as a third party uses it: a test file of its own that subclasses a suite, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from toolgym.tools.sandbox.local import probe

ENGINE = '''
import asyncio, dataclasses
import numpy as np
import pytest_asyncio
from toolgym.rollout.engines import Engine, FinishReason, Generation
from toolgym.testing import EngineSubject, EngineSuite
from toolgym.tools.errors import ConfigError

TABLE = np.random.default_rng(0).normal(size=(256, 256)) * 2

class Bigrams(Engine):
    """The next token depends on the last one."""

    vocab_size, context_length = 256, 512
    stops, narrow = True, False

    def __init__(self):
        self.running = set()

    async def _generate(self, request):
        if request.request_id in self.running:
            raise ConfigError("a request with this id is already running")
        self.running.add(request.request_id)
        try:
            return await self.sample(request)
        finally:
            self.running.discard(request.request_id)

    async def sample(self, request):
        params = request.params
        draw = np.random.default_rng(params.seed)
        last, ids, logprobs, reason = request.prompt_ids[-1], [], [], FinishReason.LENGTH
        while len(ids) < params.max_new_tokens:
            await asyncio.sleep(0.001)
            scaled = TABLE[last] / (params.temperature or 1.0)
            whole = np.exp(scaled - np.logaddexp.reduce(scaled))
            kept = whole * (whole >= np.sort(whole)[-params.top_k if params.top_k > 0 else 0])
            kept = kept * (kept >= params.min_p * kept.max())
            order = np.argsort(-kept)
            kept[order[1:][np.cumsum(kept[order])[:-1] > params.top_p * kept.sum()]] = 0
            kept /= kept.sum()
            last = int(kept.argmax()) if params.temperature == 0 else int(draw.choice(256, p=kept))
            ids.append(last)
            logprobs.append(float(np.log((kept if self.narrow else whole)[last])))
            if self.stops and last in params.stop_token_ids:
                reason = FinishReason.STOP
                break
        return Generation(tuple(ids), tuple(logprobs), reason, ("0",) * len(ids))

class Endless(Bigrams):
    stops = False

class Narrow(Bigrams):
    narrow = True

class Forgetful(Bigrams):
    async def sample(self, request):
        return await super().sample(dataclasses.replace(request, prompt_ids=(7,)))

class Mine(EngineSuite):
    @pytest_asyncio.fixture
    async def subject(self):
        async with self.kind() as engine:
            logits = lambda ids: TABLE[list(ids)]
            yield EngineSubject(engine, logits=logits, pauses=(), aborts=False, eos=3)

class TestBigrams(Mine):
    kind = Bigrams

class TestEndless(Mine):
    kind = Endless

class TestNarrow(Mine):
    kind = Narrow

class TestForgetful(Mine):
    kind = Forgetful
'''

SANDBOX = '''
import dataclasses
import pytest
import pytest_asyncio
from toolgym.testing import SandboxSuite
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox, ProcessSandbox

class NoFiles(ProcessSandbox):
    async def execute(self, request):
        return dataclasses.replace(await super().execute(request), files={})

class Late(ProcessSandbox):
    async def execute(self, request):
        result = await super().execute(request)
        return dataclasses.replace(result, status=ExecutionStatus.ERROR) if result.return_code is None else result

class Unisolated(LocalSandbox):
    """All share one session."""

    one = None

    def __init__(self):
        super().__init__(preload=())

    async def open_session(self, request):
        self.one = self.one or await super().open_session(request)
        return self.one

class Mine(SandboxSuite):
    sessions = False

    @pytest_asyncio.fixture
    async def sandbox(self):
        async with self.kind() as made:
            yield made

class TestPlain(Mine):
    kind = ProcessSandbox

class TestNoFiles(Mine):
    kind = NoFiles

class TestLate(Mine):
    kind = Late

class TestUnisolated(Mine):
    kind = Unisolated
    sessions = True
'''

TOOL = """
import pytest
from toolgym.testing import ToolSuite
from toolgym.tools import StatefulTool, ToolSchema, ToolSession

class Counter(ToolSession):
    count = 0

    async def execute(self, parameters, **execute_kwargs):
        self.count += 1
        return str(self.count)

class Counts(StatefulTool):
    default_schema = ToolSchema("count")

    async def open(self):
        return Counter()

class Shared(Counts):
    counter = Counter()

    async def open(self):
        return self.counter

class TestCounts(ToolSuite):
    @pytest.fixture
    def tool(self):
        return Counts()

class TestShared(ToolSuite):
    @pytest.fixture
    def tool(self):
        return Shared()
"""

ENV = """
import pytest
from toolgym.envs import Task, ToolEnv
from toolgym.testing import EnvSuite

class Good(ToolEnv):
    def __init__(self):
        super().__init__([], [Task(({"role": "user", "content": str(n)},)) for n in range(20)])

class Unseeded(Good):
    async def reset(self, *, seed=None, options=None):
        return await super().reset(options=options)

class TestGood(EnvSuite):
    forks = True

    @pytest.fixture
    def env(self):
        return Good()

class TestUnseeded(EnvSuite):
    forks = True

    @pytest.fixture
    def env(self):
        return Unseeded()
"""


def run(folder, source, *arguments):
    """Run the file by pytest's own defaults, away from this checkout's settings.

    Returns the tests that failed, as "Class::test", and the output.
    """
    (folder / "test_mine.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--rootdir", ".", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert " passed" in done.stdout
    return set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+::\w+)", done.stdout, re.MULTILINE)), done.stdout


@pytest.mark.long
def test_engines(tmp_path):
    only = "Bigrams or stop_token or logprobs_are"
    failed, said = run(tmp_path, ENGINE, "-k", only)
    assert failed == {
        "TestEndless::test_a_stop_token_ends_a_generation_and_is_part_of_it",
        "TestNarrow::test_logprobs_are_those_before_truncation",
        "TestForgetful::test_logprobs_are_those_before_truncation",
        "TestForgetful::test_logprobs_are_those_of_a_plain_forward_pass",
    }, said
    assert "this engine has no abort" in said
    assert "the weights of this engine keep their version" in said


@pytest.mark.long
@pytest.mark.skipif(not probe()["levels"], reason="no isolation here")
def test_sandboxes(tmp_path):
    failed, said = run(tmp_path, SANDBOX, "-k", "files_go or deadline or exit_codes or echoed or see_each_other")
    assert failed == {
        "TestNoFiles::test_files_go_in_and_come_back",
        "TestLate::test_the_deadline_keeps_what_was_printed",
        "TestUnisolated::test_sessions_do_not_see_each_other",
    }, said
    assert "TestPlain.sessions is False" in said


def test_tools(tmp_path):
    failed, said = run(tmp_path, TOOL)
    assert failed == {"TestShared::test_release", "TestShared::test_instances_do_not_mix"}, said


def test_envs(tmp_path):
    failed, said = run(tmp_path, ENV)
    assert "TestUnseeded::test_seeds" in failed, said
    assert all(name.startswith("TestUnseeded") for name in failed), said


@pytest.mark.parametrize("hidden", ["pytest", "pytest_asyncio"])
def test_a_suite_without_pytest_names_the_extra(hidden):
    code = (
        "import sys\n"
        f"sys.modules[{hidden!r}] = None\n"
        "import toolgym.testing\n"
        "print(toolgym.testing.check_env.__name__, toolgym.testing.check_tool.__name__)\n"
        "toolgym.testing.SandboxSuite\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "check_env check_tool\n")
    assert "A conformance suite needs" in done.stderr
    assert "[testing]'" in done.stderr


def test_the_checks_load_no_pytest():
    code = (
        "import sys, toolgym, toolgym.testing\n"
        "toolgym.testing.check_env, toolgym.testing.check_tool, toolgym.testing.ConformanceError\n"
        "print(sorted({'pytest', 'pytest_asyncio', 'torch'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
