"""A missing extra is one line that names it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run(hidden, code):
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden) + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hidden", ["typer", "rich"])
def test_the_command_names_the_extra_that_it_needs(hidden):
    done = run([hidden], "sys.argv = ['toolgym', '--version']\nfrom toolgym.__main__ import main\nmain()")
    assert done.returncode == 1
    assert done.stderr.startswith("error: The toolgym command needs")
    assert f"{sys.executable} -m pip install " in done.stderr
    assert "[cli]'" in done.stderr


@pytest.mark.parametrize("name", ["make_batch", "engines.TransformersEngine", "tokens.ChatRenderer"])
def test_what_needs_torch_names_the_extra(name):
    imports = "import toolgym.rollout.engines, toolgym.rollout.tokens"
    done = run(["torch", "transformers", "safetensors"], f"{imports}\ntoolgym.rollout.{name}")
    assert done.returncode == 1
    assert f"{sys.executable} -m pip install " in done.stderr
    assert "[rollout]'" in done.stderr


def test_what_needs_ray_names_the_extra():
    names = ("RayRunner", "runner.ray.RayEngine", "runner.ray.RayRateLimiter")
    tries = "\n".join(f"try: toolgym.rollout.{name}\nexcept ImportError as error: print(error)" for name in names)
    done = run(["ray"], f"import toolgym.rollout.runner.ray\n{tries}")
    assert done.stdout.count("needs 'ray', which is not installed") == done.stdout.count("[ray]'") == len(names)


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, "'.[rollout]' in a checkout of toolgym"),
        ({"url": "https://a/toolgym.whl", "archive_info": {}}, "'.[rollout]' in a checkout of toolgym"),
        ({"url": "file:///no/such/folder", "dir_info": {}}, "'.[rollout]' in a checkout of toolgym"),
        ({"url": "file://{folder}", "dir_info": {}}, "'{folder}[rollout]'"),
        ({"url": "file://{folder}", "dir_info": {"editable": True}}, "-e '{folder}[rollout]'"),
    ],
)
def test_the_command_installs_from_where_the_library_came_from(tmp_path, monkeypatch, noted, command):
    import importlib.metadata

    from toolgym.tools.lazy import missing_extra

    text = None if noted is None else json.dumps(noted).replace("{folder}", str(tmp_path))
    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", lambda self, name: text)
    error = missing_extra("rollout", "X", ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert str(error) == (
        "X needs 'torch', which is not installed. Install it with: "
        f"{sys.executable} -m pip install {command.format(folder=tmp_path)}"
    )


def test_the_core_works_without_any_extra():
    code = (
        "import gymnasium as gym, toolgym\n"
        "env = gym.make('CodeInterpreter-v0')\n"
        "env.reset(seed=0)\n"
        "print(env.step('#### 1')[2])\n"
        "env.close()\n"
    )
    done = run(["torch", "transformers", "safetensors", "typer", "rich", "ray", "sglang", "textual"], code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
