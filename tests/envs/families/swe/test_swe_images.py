"""Repository tasks whose rows name an image run in it."""

from __future__ import annotations

import pytest

from tests.tools.sandbox.image_maker import docker_save, shell_layer
from toolgym.envs.families.swe.env import SWEDevEnv
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import assistant, tool_call
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.images import cache

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")

ROW = {
    "instance_id": "marker-1",
    "problem_statement": "The file `answer` must hold what /etc/marker of the image does.",
    "files": {"answer": "nothing\n"},
    "test_files": {"check.sh": '[ "$(cat answer)" = "$(cat /etc/marker)" ]\n'},
    "test_command": "bash check.sh {test}",
    "fail_to_pass": ["right"],
    "image_name": "swe/marker:1",
}


async def test_tools_and_tests_run_in_the_image_of_the_row(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    docker_save(tmp_path / "swe_marker_1.tar", [shell_layer()])
    task = RepositoryTask.from_row(ROW)
    assert RepositoryTask.from_row(task.to_row()).image == "swe/marker:1"
    async with SWEDevEnv([task], images=tmp_path) as env:
        await env.reset()
        turn = await env.step(assistant("", [tool_call("bash", {"command": "cat /etc/marker > answer; cat answer"})]))
        assert "from the image" in str(turn)
        result = await env.step("done")
    assert result.reward == 1.0


async def test_an_image_that_is_not_there_is_named(tmp_path):
    task = RepositoryTask.from_row(ROW)
    async with SWEDevEnv([task]) as env:
        with pytest.raises(ConfigError, match="names the image 'swe/marker:1': say images=FOLDER"):
            await env.reset()
    async with SWEDevEnv([task], images=tmp_path) as env:
        with pytest.raises(ConfigError, match=r"docker save swe/marker:1 -o .*/swe_marker_1\.tar"):
            await env.reset()
