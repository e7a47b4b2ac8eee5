"""The options of `run` and `session`: what is written about them, and what limits and refuses."""

from __future__ import annotations

import dataclasses

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import ISOLATED, MAKERS, SHARED
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError
from toolgym.tools.sandbox import ProcessSandbox, RunOptions, RunRequest, SessionOptions, SessionRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_is_documented_is_what_is_checked():
    for options, request in ((RunOptions, RunRequest), (SessionOptions, SessionRequest)):
        names = [item.name for item in dataclasses.fields(request) if item.name != "code"]
        assert sorted(names) == sorted(options.__annotations__)
        assert all(f"        {name}:" in options.__doc__ for name in names)


@pytest.mark.parametrize("maker", [*ISOLATED, *SHARED])
async def test_sessions_take_files_variables_and_memory(maker):
    async with {**MAKERS, **SHARED}[maker]() as made:
        options = {"files": {"a/b": b"hello"}, "env": {"WORD": "x"}, "memory_mb": 64, "hint": "1"}
        async with await made.session(**options) as session:
            shown = await session.run_cell("import os\nopen('a/b').read(), os.environ['WORD']")
            assert shown.result == "('hello', 'x')"
            assert (await session.run_cell("kept = b'x' * (120 << 20)")).status == "memory_limit"
        assert await made.has_sessions()


@pytest.mark.skipif("landlock" not in MAKERS, reason="needs the level landlock")
async def test_folders_need_a_file_system_of_its_own():
    async with MAKERS["landlock"]() as made:
        with pytest.raises(SandboxUnsupportedError, match="'/app', need the level 'namespaces'"):
            await made.session(folders=["/app"])


async def test_a_sandbox_without_sessions_says_so():
    async with ProcessSandbox() as made:
        assert made.sessions_known is False
        assert not await made.has_sessions()
        with pytest.raises(SandboxUnsupportedError, match="has no sessions"):
            await made.session(files={"a": b""})
        with pytest.raises(ConfigError, match="cannot limit memory"):
            await made.run("1", memory_mb=64)
