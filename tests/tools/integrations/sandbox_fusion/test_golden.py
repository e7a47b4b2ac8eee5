"""The evaluation endpoints answer as SandboxFusion's did, see `tests/tools/sandbox/server/test_golden.py`."""

from __future__ import annotations

import aiohttp
import pytest

from tests.tools.integrations.sandbox_fusion.conftest import evaluating
from tests.tools.sandbox.server.golden.api_cases import EVALUATION
from tests.tools.sandbox.server.test_golden import compare, pytestmark  # noqa: F401  its mark is for this module too


@pytest.fixture(scope="session")
def bare_url():
    """A server without data sets."""
    with evaluating() as url:
        yield url


@pytest.mark.long
@pytest.mark.parametrize("case", EVALUATION, ids=lambda case: case.name)
async def test_answers_as_sandboxfusion_does(bare_url, case):
    async with aiohttp.ClientSession() as http:
        await compare(http, bare_url, case)
