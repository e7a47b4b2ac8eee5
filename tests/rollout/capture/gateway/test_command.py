"""`toolgym serve capture` as a user starts it."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest

from tests.serve_command import running
from toolgym.rollout.trajectory.file import read_trajectories


def ask(url, body=None, *, key=None, method="POST"):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as response:
        return json.load(response)


@pytest.mark.long
def test_a_session_over_the_tiny_policy_is_written_and_what_is_open_too(tmp_path):
    out = tmp_path / "run"
    with running("capture", "--out", str(out), "--max-new-tokens", "64", TOOLGYM_CAPTURE_TOKEN="t") as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{server.url}/sessions", {})
        sessions = [ask(f"{server.url}/sessions", {"task": name}, key="t") for name in ("a", "b")]
        for session in sessions:
            request = {"model": "m", "messages": [{"role": "user", "content": "6*7?"}]}
            answered = ask(f"{session['openai_url']}/chat/completions", request, key=session["key"])
            assert answered["usage"]["completion_tokens"] > 0
        url = f"{server.url}/sessions/{sessions[0]['id']}"
        figures = ask(url, key="t", method="GET")
        assert (figures["calls"], figures["sequences"]) == (1, 1)
        assert ask(f"{url}/finish", {"reward": 1.0}, key="t")["policy_tokens"] > 0
        status, log = server.stop(signal.SIGTERM)
    assert status == 0, log
    finished, left = read_trajectories(out / "0.jsonl")
    assert (finished.task_id, finished.reward, finished.trainable) == ("a", 1.0, True)
    assert (left.task_id, left.reward, str(left.stop_reason)) == ("b", 0.0, "aborted")


@pytest.mark.long
def test_an_engine_that_is_not_there_is_told(tmp_path):
    told, server = "an engine is named by 'tiny'", running("capture", "--engine", "tyny", "--out", str(tmp_path))
    with pytest.raises(AssertionError, match=told), server:
        pass
