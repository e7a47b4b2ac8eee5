"""Models by their names on the hub. The hub's cache on this machine stands in for the hub."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest

from toolgym.rollout import load_tokenizer, open_engine, tiny_policy_path
from toolgym.rollout.engines.embedded.loading import load_model
from toolgym.tools.errors import ConfigError


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


async def test_a_hub_that_is_switched_off_is_told(offline):
    with pytest.raises(ConfigError) as error:
        await open_engine("some-org/some-model")
    assert "there is no such folder here; its files are not in the hub's cache" in str(error.value)
    assert "HF_HUB_OFFLINE is set" in str(error.value)


@pytest.fixture
def hub(monkeypatch):
    """A hub that has no model, and the paths that it is asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield asked
        server.shutdown()
        thread.join()


async def test_a_mistyped_name_is_asked_for_once(hub, caplog):
    for load in (load_tokenizer, lambda name: load_model(name, None, None)):
        with pytest.raises(ConfigError, match="^there is no model 'some-org/some-modl': "):
            load("some-org/some-modl")
        assert hub == ["/api/models/some-org/some-modl"]
        hub.clear()
    assert not caplog.records


async def test_a_hub_that_cannot_be_reached_is_told_at_once(hub, monkeypatch, caplog):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"the model hub http://127.0.0.1:9 cannot be reached from here"):
        await open_engine("some-org/some-model")
    assert not caplog.records


async def test_a_mistyped_folder_names_the_nearest(offline, tmp_path, monkeypatch):
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no such folder here, did you mean 'qwen'"):
        await open_engine("models/qwn")
    with pytest.raises(ConfigError, match="no such folder here, did you mean 'qwen'"):
        load_tokenizer("models/qwn")


async def test_a_folder_comes_before_the_hub(offline, tmp_path, monkeypatch):
    shutil.copytree(tiny_policy_path(), tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    async with open_engine("models/tiny") as engine:
        assert engine.context_length > 0


@pytest.mark.long
def test_a_name_goes_to_the_hubs_loader(tmp_path: Path):
    model = tmp_path / "models--some-org--some-model"
    shutil.copytree(tiny_policy_path(), model / "snapshots" / "abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    code = (
        "import asyncio\n"
        "from toolgym.rollout import open_engine\n"
        "async def main():\n"
        "    async with open_engine('some-org/some-model') as engine:\n"
        "        print(engine.vocab_size > 0, engine.tokenizer.name_or_path)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, env=env
    )
    assert done.stdout == "True some-org/some-model\n", done.stderr
