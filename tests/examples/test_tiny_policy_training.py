"""The command that made the shipped tiny policy runs, and makes the shipped tokenizer again."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import tiny_policy_path

FOLDER = Path(__file__).parents[2] / "examples" / "tiny_policy"


def test_transcripts_are_the_ones_that_the_shipped_tokenizer_learnt_from(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from transcripts import HABITS, SCHEMA, conversation

    rng, tasks = random.Random(0), ArithmeticTasks("train")
    talks = [conversation(tasks.problem(rng), rng, habit) for habit in HABITS for _ in range(20)]
    text = json.dumps([SCHEMA.to_openai(), talks])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b43d09adc2919efd"


@pytest.mark.long
def test_training_makes_the_shipped_tokenizer_and_a_policy_that_plays(tmp_path):
    steps = ["--clean-steps", "2", "--steps", "1", "--batch-size", "2", "--episodes", "2"]
    command = [sys.executable, str(FOLDER / "train.py"), "--out", str(tmp_path), *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / name).read_bytes() == (Path(tiny_policy_path()) / name).read_bytes(), name
    assert (tmp_path / "model.safetensors").stat().st_size == (
        Path(tiny_policy_path()) / "model.safetensors"
    ).stat().st_size
    assert "held-out, greedy" in done.stdout
