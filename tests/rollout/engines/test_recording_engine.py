"""A recorded engine is still an engine: the conformance suite runs on one, and its recording replays each test."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from toolgym.rollout.cassette import Cassette, generate_key
from toolgym.rollout.engines import CassetteEngine, Generation, RecordingEngine, TransformersEngine
from toolgym.tools.errors import ConfigError, EngineError


def _suite() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(
        "recording_conformance", Path(__file__).with_name("test_conformance.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


globals().update(_suite())


class Heard(RecordingEngine):
    """Keeps what it was asked and what it answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heard: list[tuple[list[int], Any, Generation]] = []

    async def generate(self, prompt_ids: Any, params: Any, **kwargs: Any) -> Generation:
        generation = await super().generate(prompt_ids, params, **kwargs)
        self.heard.append((list(prompt_ids), params, generation))
        return generation


@pytest.fixture
async def subject(tiny_model_path: Path, tmp_path: Path) -> AsyncIterator[Any]:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path).eval()
    inside = TransformersEngine(model)
    path = tmp_path / "engine.jsonl"
    async with Heard(inside, path) as engine:
        yield SimpleNamespace(
            engine=engine,
            make=lambda: RecordingEngine(TransformersEngine(model), tmp_path / "another.jsonl"),
            model=model,
            new_version=inside.notify_weights_changed,
            tolerance=1e-4,
            honours_seeds=True,
            eos=256,
            server=None,
        )
    cassette = Cassette.load(path)
    assert cassette.ended
    replayed = CassetteEngine(cassette)
    asked: dict[Any, list[Generation]] = {}
    for prompt_ids, params, generation in engine.heard:
        asked.setdefault((tuple(prompt_ids), params), []).append(generation)
    for (prompt_ids, params), generations in asked.items():
        again = []
        for _ in range(cassette.times(generate_key(None, prompt_ids, params))):
            with contextlib.suppress(EngineError, ConfigError):  # the suite fails and cancels requests on purpose
                again.append(await replayed.generate(prompt_ids, params, request_id="a"))
        assert sorted(map(repr, again)) == sorted(map(repr, generations))
