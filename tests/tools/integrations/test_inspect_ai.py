"""The provider for Inspect AI passes Inspect's own checks of providers."""

from __future__ import annotations

import pytest
import pytest_asyncio

pytest.importorskip("inspect_ai", reason="needs inspect_ai, which is not a dependency")

from inspect_ai._util.entrypoints import ensure_entry_points
from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from toolgym.tools.errors import ConfigError
from toolgym.tools.integrations.inspect_ai import InspectConfig
from toolgym.tools.sandbox.local import probe

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")

CANNOT = {"test_exec_as_user": "a session has one user"}


@pytest_asyncio.fixture
async def sandbox_env(request):
    if request.node.originalname in CANNOT:
        request.node.add_marker(pytest.mark.xfail(reason=CANNOT[request.node.originalname], strict=True))
    ensure_entry_points()
    provider = registry_find_sandboxenv("toolgym")
    config = InspectConfig(disk_mb=256)
    await provider.task_init("check", config)
    made = await provider.sample_init("check", config, {})
    yield made["default"]
    await provider.sample_cleanup("check", config, made, False)


async def test_what_is_printed_beyond_the_limit_is_told(sandbox_env):
    with pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["head", "-c", "11000000", "/dev/zero"])


async def test_a_session_that_is_gone_is_no_fault_of_the_command(sandbox_env):
    await sandbox_env.session.close()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])


def test_settings_come_from_a_file(tmp_path):
    file = tmp_path / "toolgym.yaml"
    file.write_text("network: loopback\ndisk_mb: 512\n")
    assert InspectConfig.of(str(file)) == InspectConfig(network="loopback", disk_mb=512)
    file.write_text("netwerk: loopback\n")
    with pytest.raises(ConfigError, match="netwerk"):
        InspectConfig.of(str(file))
    with pytest.raises(ConfigError, match="none"):
        InspectConfig.of(str(tmp_path / "none.yaml"))
