"""Each env of the library passes our own checks."""

from __future__ import annotations

import pytest

from toolgym.envs.ids import OWN_ENVS
from toolgym.testing import check_env

pytestmark = pytest.mark.long

SEARCHED = {"CodeJudge-v0", "SWEDev-v0"}
"""Ids with a tool that runs programs, and hidden tests."""


@pytest.mark.parametrize("id", sorted(id for id in OWN_ENVS if "/" not in id))
async def test_it_passes_every_check(id):
    results = await check_env(id)
    unchecked = {one.name: one.detail for one in results if one.passed is None}
    assert "scores" not in unchecked
    if id in SEARCHED:
        assert not {"attacks", "secrets"} & set(unchecked), unchecked
