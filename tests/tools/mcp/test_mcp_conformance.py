"""The client side of MCP's conformance suite, as far as it applies. `make test-mcp` installs it with npm.

Not applied: authorization, which users set up outside of episodes (`headers`), and elicitation, which asks a person.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[3] / ".trainers" / "mcp-conformance" / "node_modules" / ".bin" / "conformance"
CLIENT = Path(__file__).with_name("conformance_client.py")


@pytest.mark.long
@pytest.mark.skipif(not SUITE.exists(), reason="the suite is not installed: make test-mcp")
@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry"])
def test_a_scenario_passes(scenario, tmp_path):
    command = f"{sys.executable} {CLIENT}"
    done = subprocess.run(
        [SUITE, "client", "--command", command, "--scenario", scenario, "--timeout", "240000"],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "OVERALL: PASSED" in done.stdout + done.stderr, done.stdout[-2000:] + done.stderr[-2000:]
