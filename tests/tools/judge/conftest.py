from __future__ import annotations

import pytest

from toolgym.tools.judge import Judge
from toolgym.tools.sandbox import SharedSandbox


@pytest.fixture
async def judge():
    """A judge over the sandbox that the tests of this folder share; keywords are those of `Judge`."""
    async with SharedSandbox(preload=()) as sandbox:
        yield lambda **options: Judge(sandbox, **{"timeout": 60.0, **options})
