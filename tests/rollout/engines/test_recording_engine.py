"""A recorded engine is still an engine: the conformance suite runs on one, and its recording replays each test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from toolgym.rollout.engines import (
    Engine,
    FinishReason,
    Generation,
    GenerationRequest,
    SamplingParams,
    TransformersEngine,
)
from toolgym.rollout.recording import CassetteEngine, RecordingEngine
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.lines import generate_key
from toolgym.testing import EngineSubject, EngineSuite
from toolgym.tools.errors import ConfigError, EngineError


class Heard(RecordingEngine):
    """Keeps what it was asked and what it answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heard: list[tuple[list[int], Any, Generation]] = []

    async def _generate(self, request: GenerationRequest) -> Generation:
        generation = await super()._generate(request)
        self.heard.append((list(request.prompt_ids), request.params, generation))
        return generation


@pytest.fixture
async def subject(tiny_model_path: Path, tmp_path: Path) -> AsyncIterator[Any]:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path).eval()

    def logits(ids: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([[*ids]])).logits[0].float().numpy()

    inside = TransformersEngine(model)
    path = tmp_path / "engine.jsonl"
    async with Heard(inside, path) as engine:
        yield EngineSubject(
            engine,
            make=lambda: RecordingEngine(TransformersEngine(model), tmp_path / "another.jsonl"),
            logits=logits,
            new_version=inside.notify_weights_changed,
            eos=256,
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


@pytest.mark.matrix  # what recordings hold is tested in tests/rollout/recording
class TestRecordingEngine(EngineSuite):
    """The suite, recorded; `subject` replays each test."""


class Routed(Engine):
    """Answers every request with payloads beside its tokens."""

    vocab_size, context_length = 8, 8
    routed = np.arange(8, dtype=np.int32).reshape(2, 2, 2)

    async def _generate(self, request: GenerationRequest) -> Generation:
        mask = np.array([[1, -1], [2, 3]], np.int16)
        aligned = {"routed_experts": self.routed, "sampling_mask": mask}
        return Generation((1, 2), (-0.5, -0.25), FinishReason.LENGTH, ("0", "0"), aligned=aligned)


async def test_payloads_beside_the_tokens_are_recorded_whole(tmp_path: Path) -> None:
    two = SamplingParams(max_new_tokens=2)
    async with RecordingEngine(Routed(), tmp_path / "engine.jsonl") as engine:
        before = await engine.generate([1], two, request_id="a")
    after = await CassetteEngine(tmp_path / "engine.jsonl").generate([1], two, request_id="a")
    assert after == before
    assert list(after.aligned) == ["routed_experts", "sampling_mask"]
    for name, array in before.aligned.items():
        assert after.aligned[name].dtype == array.dtype
        assert np.array_equal(after.aligned[name], array)
