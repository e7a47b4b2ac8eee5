"""`check_env` on envs that look right: forks that share a state, and verdicts that a background program forges."""

from __future__ import annotations

import pytest

from tests.envs.forgeable_envs import (
    CleanTerminalEnv,
    CopyingDeskEnv,
    DeskEnv,
    ExitCodeEnv,
    GroupDeskEnv,
    LinkedTestEnv,
    TerminalEnv,
    UnsolvedDeskEnv,
)
from toolgym.testing.env_attacks import program_call, programs
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.env_report import CHECKS, run_checks
from toolgym.testing.env_verdict import check_attacks
from toolgym.testing.errors import ConformanceError
from toolgym.tools.sandbox.local import probe

PROGRAMS = pytest.mark.skipif(not {"namespaces", "uid"} & {*probe()["levels"]}, reason="needs programs in sessions")


async def check(name, kind, actions=("I do not know.",)):
    async with kind() as env:
        return await CHECKS[name](EnvSubject(env, actions))


@pytest.mark.parametrize("kind", [DeskEnv, CopyingDeskEnv])
async def test_a_fork_that_shares_a_database_with_its_origin_is_found(kind):
    with pytest.raises(
        ConformanceError, match=r"what the origin does after 0 turns does not show in its fork: the reward"
    ):
        await check("fork", kind)
    results = {result.name: result.passed async for result in run_checks(kind)}
    assert [name for name, passed in results.items() if passed is False] == ["fork"]


async def test_without_a_known_solution_tools_that_refer_to_the_origin_are_found():
    with pytest.raises(ConformanceError, match=r"the tool 'find' of a fork does not refer to the env.*ToolGroup"):
        await check("fork", UnsolvedDeskEnv)
    actions = DeskEnv().gold_actions()
    with pytest.raises(ConformanceError, match="does not show in its fork"):
        await check("fork", UnsolvedDeskEnv, actions)


async def test_tools_of_a_group_have_forks_that_share_nothing():
    assert await check("fork", GroupDeskEnv) is None
    assert await check("scores", GroupDeskEnv) is None


@PROGRAMS
async def test_a_background_program_forges_a_verdict_file():
    [program] = [program for name, program in programs("shell") if "with a verdict" in name]

    async def earned():
        async with TerminalEnv() as env:
            await env.reset(seed=0)
            await env.step(program_call(env.tool_schemas[0], "command", program))
            return (await env.step("Done.")).reward

    assert 1.0 in [await earned() for _ in range(3)]


@PROGRAMS
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "text"),
    [(TerminalEnv, "rewrites files with a verdict"), (ExitCodeEnv, "replaces tests that a scorer writes")],
)
async def test_a_verdict_that_a_background_program_forges_is_found(kind, text):
    async with kind() as env:
        with pytest.raises(ConformanceError, match=f"{text}, in the background does not earn the full reward"):
            await check_attacks(EnvSubject(env))


@PROGRAMS
@pytest.mark.long
async def test_a_verdict_in_a_clean_copy_cannot_be_forged():
    async with CleanTerminalEnv() as env:
        subject = EnvSubject(env)
        assert await CHECKS["scores"](subject) is None
        assert await check_attacks(subject) is None


@PROGRAMS
async def test_a_clean_copy_has_the_files_and_the_options_of_the_session():
    async with LinkedTestEnv() as env:
        await env.reset(seed=0)
        await env.step(env.gold_actions()[0])
        result = await env.step("Done.")
    assert result.reward == 1.0
