"""The fixtures of the conformance suite: every test runs once per sandbox that can do what it asks for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tools.sandbox.conformance.sandbox_makers import BRANCHING, FORKING, ISOLATED, LEVELS, LIMITS, MAKERS, SHARED

SAME_CHILDREN = {
    "test_limits.py": {"test_memory_of_one_call"},
    "test_forks.py": set(),
    "test_notebooks.py": {"test_rich_display"},
    "test_checkpoints.py": {"test_checkpoints_are_freed_with_their_session_or_earlier"},
}
"""Files on what confined children do. Behind a server and behind handles they are the same ones, and what those pass on
is in test_suite.py; these tests show the rest of it."""

WAITING = {
    "test_one_that_hangs_does_not_hold_up_the_others",
    "test_the_deadline_keeps_what_was_printed",
    "test_files_come_back_after_a_timeout",
    "test_limits_of_one_session",
    "test_a_launcher_that_does_not_kill_in_time_costs_its_session",
}
"""Tests that wait for a deadline. `make test` runs them once, on the strongest sandbox of this machine."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent and item.originalname in WAITING:
            given = item.callspec.params.values() if hasattr(item, "callspec") else ()
            if {"remote", "process"} & {value for value in given if isinstance(value, str)}:
                item.add_marker(pytest.mark.matrix)
        passes_on = SAME_CHILDREN.get(item.path.name) if item.path.parent == Path(__file__).parent else None
        if passes_on is not None and item.originalname not in passes_on:
            given = item.callspec.params.values() if hasattr(item, "callspec") else ()
            if {"remote", "shared"} & {value for value in given if isinstance(value, str)}:
                item.add_marker(pytest.mark.matrix)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=MAKERS)
async def each(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=ISOLATED)
async def isolated(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=FORKING)
async def forking(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=LEVELS)
async def confined(request):
    """Of this machine alone."""
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=BRANCHING)
async def branching(request):
    """A sandbox whose sessions can be forked: that takes namespaces."""
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[*BRANCHING, *(SHARED if BRANCHING else ())])
async def keeping(request):
    """A sandbox whose sessions have checkpoints, with room for more than 32 forks."""
    limits = dataclasses.replace(LIMITS, processes=64, memory_mb=400)
    async with {**MAKERS, **SHARED}[request.param](limits=limits) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def session(isolated):
    async with await isolated.session() as made:
        yield made
