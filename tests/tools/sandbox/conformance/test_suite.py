"""The suite of all sandboxes, on ours. Their own strength, that is, limits and isolation, is tested beside it."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.tools.sandbox.conformance.sandbox_makers import BRANCHING, CAP, FORKING, ISOLATED, MAKERS, SHARED
from toolgym.testing import ForkSuite, ProgramSuite, RunSuite, SessionSuite
from toolgym.testing.sandbox_runs import SandboxTests


class TestRuns(RunSuite):
    loop_scope = "module"
    output_bytes = CAP

    @pytest.fixture
    def sandbox(self, each, request):
        self.sessions = request.node.callspec.params["each"] != "process"
        return each

    @pytest.fixture(params=MAKERS)
    def make_sandbox(self, request):
        return MAKERS[request.param]


class TestSessions(SessionSuite):
    loop_scope = "module"
    output_bytes = CAP

    @pytest.fixture
    def sandbox(self, isolated, request):
        name = request.node.callspec.params["isolated"]
        self.forks, self.programs = name in BRANCHING, name in FORKING
        return isolated

    @pytest.fixture(params=[*ISOLATED, *SHARED])
    def make_sandbox(self, request):
        return {**MAKERS, **SHARED}[request.param]


class TestPrograms(ProgramSuite):
    loop_scope = "module"
    output_bytes = CAP

    @pytest.fixture
    def sandbox(self, isolated, request):
        name = request.node.callspec.params["isolated"]
        self.programs = name in FORKING
        self.terminals = self.folders = name in BRANCHING
        return isolated


class TestForks(ForkSuite):
    loop_scope = "module"

    @pytest.fixture
    def sandbox(self, keeping):
        return keeping


class TestShared(SandboxTests):
    """What `SharedSandbox` passes on."""

    loop_scope = "module"
    test_output_code_and_time = RunSuite.test_output_code_and_time
    test_a_bad_option_of_a_run = RunSuite.test_a_bad_option_of_a_run
    test_an_unknown_option_names_the_nearest = RunSuite.test_an_unknown_option_names_the_nearest
    test_none_stands_for_the_default = RunSuite.test_none_stands_for_the_default
    test_sessions_take_files = SessionSuite.test_sessions_take_files
    test_sessions_take_variables = SessionSuite.test_sessions_take_variables
    test_exec_takes_a_folder_variables_and_bytes = ProgramSuite.test_exec_takes_a_folder_variables_and_bytes
    test_a_program_in_the_background = ProgramSuite.test_a_program_in_the_background
    test_files_and_folders = ProgramSuite.test_files_and_folders
    test_a_folder_goes_there_and_back = ProgramSuite.test_a_folder_goes_there_and_back
    test_folders_of_one_session = ProgramSuite.test_folders_of_one_session

    @pytest_asyncio.fixture(loop_scope="module", scope="module", params=SHARED)
    @classmethod
    async def sandbox(cls, request):
        async with SHARED[request.param]() as made:
            yield made
