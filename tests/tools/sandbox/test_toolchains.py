"""Toolchains: a language that does not work in a sandbox is refused by name, and no program is blamed for it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from toolgym.tools.errors import ConfigError, SandboxUnavailableError
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, LocalSandbox
from toolgym.tools.sandbox.local.host import languages
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.local.host.toolchains import SAMPLES, Toolchains, importable
from toolgym.tools.sandbox.options import RunRequest

PROGRAM = "def test_right():\n    assert 1 + 1 == 2\n"
FAILED = ExecutionResult(ExecutionStatus.ERROR, stderr="no linker", return_code=1)


def test_every_language_has_a_sample():
    assert set(SAMPLES) == set(LANGUAGES)


def test_modules_are_looked_for_in_the_interpreter_of_the_sandbox(monkeypatch):
    monkeypatch.syspath_prepend("/nowhere")
    monkeypatch.setitem(sys.modules, "only_in_this_process", sys)
    assert importable(sys.executable, ("json", "only_in_this_process", "no_such_module")) == {"json"}
    with pytest.raises(SandboxUnavailableError, match="cannot be run"):
        importable("/nowhere/python", ("json",))


@pytest.fixture
def without_pytest(monkeypatch):
    """A table in which the language pytest needs a module that is not installed."""
    language = replace(LANGUAGES["pytest"], modules=("no_such_module",))
    monkeypatch.setitem(languages.LANGUAGES, "pytest", language)
    return language


async def test_a_language_whose_module_is_missing_is_not_offered(without_pytest):
    assert not without_pytest.available
    assert LANGUAGES["bash"].available
    async with LocalSandbox(preload=[]) as sandbox:
        with pytest.raises(ConfigError, match="language 'pytest' needs the module no_such_module of .*: not installed"):
            await sandbox.run(PROGRAM, language="pytest")


async def test_a_broken_toolchain_is_refused_by_name(monkeypatch):
    broken = replace(LANGUAGES["perl"], run=("sh", "-c", "echo no such header >&2; exit 1"), needs=())
    monkeypatch.setitem(languages.LANGUAGES, "perl", broken)
    async with LocalSandbox(preload=[]) as sandbox:
        with pytest.raises(SandboxUnavailableError, match=r"'perl' does not work .* ended with error: no such header"):
            await sandbox.run("print 1", language="perl")
        failed = await sandbox.run("exit 3", language="bash")
        assert (failed.status, failed.return_code) == (ExecutionStatus.ERROR, 3)


async def test_the_sample_runs_once_and_only_after_a_failure():
    asked, answers = [], [FAILED, ExecutionResult(ExecutionStatus.TIMEOUT), ExecutionResult(ExecutionStatus.OK)]

    async def run(request):
        asked.append(request.code)
        return answers[len(asked) - 1]

    toolchains, c, rust = Toolchains(run), RunRequest("", language="c"), RunRequest("", language="rust")
    await toolchains.blame(c, ExecutionResult(ExecutionStatus.OK))
    await toolchains.blame(c, FAILED)
    await toolchains.blame(rust, ExecutionResult(ExecutionStatus.TIMEOUT))
    assert asked == []
    with pytest.raises(SandboxUnavailableError, match="'rust' does not work"):
        await toolchains.blame(rust, FAILED)
    await toolchains.blame(rust, FAILED)  # a sample that takes too long proves nothing
    await toolchains.blame(rust, FAILED)
    await toolchains.blame(rust, FAILED)
    assert asked == [SAMPLES["rust"]] * 3
