"""What docs/sessions.md shows works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.serve_command import running
from toolgym.envs.families.swe.task import load_repository_tasks
from toolgym.envs.served.sessions.config import BACKENDS, make_backend

PAGE = (Path(__file__).parents[4] / "docs" / "sessions.md").read_text()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_curl_calls(tmp_path):
    [script] = [block for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S) if "curl" in block]
    task = load_repository_tasks()[0]
    with running("sessions", "--database", str(tmp_path / "sessions.db")) as command:
        script = script.replace("http://127.0.0.1:5000", command.url).replace("TASK", task.instance_id)
        done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=240, check=True)
        acted, ended, reward = map(json.loads, done.stdout.splitlines())
        assert acted["content"].split() == sorted({name.partition("/")[0] for name in task.files})
        assert ended == {}
        assert reward["reward"] == reward["f2p_count"] == 0
        assert command.stop()[0] == 0


def test_the_backends_are_named():
    assert re.findall(r"^\| `(\w+)` \| (?:a task|`ENV|`DATASET)", PAGE, re.M) == [*BACKENDS]
    for name, kwargs in (("env", {"envs": ["SWEDev-v0"]}), ("sandbox_fusion", {"url": "http://10.0.0.7:8080"})):
        make_backend(name, kwargs)


def test_the_settings_of_verl():
    [block] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    wanted = yaml.safe_load(block)["reward"]["custom_reward_function"]
    module = __import__(wanted["path"].removeprefix("pkg://"), fromlist=[wanted["name"]])
    assert callable(getattr(module, wanted["name"]))
