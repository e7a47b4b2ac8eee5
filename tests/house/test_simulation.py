"""benchmarks/simulate_gpus.py up to the simulator: episodes on a clock that jumps, and what their requests wait for."""

from __future__ import annotations

import argparse
import asyncio
import sys

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.front.exports.conftest import DEMO
from tests.house.test_layout import ROOT
from toolgym.rollout.runner.envs import env_pool

LOAD = 8


@pytest.fixture
def played(monkeypatch):
    """Plays the demo's episodes with the admission of a row; returns the play, and what the consumer got."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_clock

    monkeypatch.setattr(env_pool, "EnvPool", gpu_clock.InlineEnvs)
    options = argparse.Namespace(scale=4, median=1.0, sigma=1.0, interval=0.1)
    episodes = gpu_clock.recorded(DEMO, 3)

    def play(row, *, tools=True):
        it = gpu_clock.Play(episodes, options, row, tools=tools)
        timing = {"prefill": 2e-5, "step": 8e-3, "row": 1e-4}
        gpus = [gpu_clock.Gpu(str(number), timing) for number in range(2)]
        with asyncio.Runner(loop_factory=gpu_clock.JumpingLoop) as runner:
            return it, runner.run(gpu_clock.playing(it, LOAD, gpus))

    return play


def at_once(spans):
    events = sorted((time, step) for began, ended in spans for time, step in ((began, 1), (ended, -1)))
    running = most = 0
    for _, step in events:
        running += step
        most = max(most, running)
    return most


def steady(play):
    """Tokens a second while there were episodes to begin."""
    last = max(request.began for request in play.requests if request.previous is None)
    return sum(one.row["output_length"] for one in play.requests if one.ended <= last) / last


def test_adaptive_admission_makes_up_for_tools_and_lanes_do_not(played):
    ratios = {}
    for row in ("static", "adaptive"):
        (ours, got), (bare, _) = played(row), played(row, tools=False)
        assert at_once([(one.began, one.ended) for one in ours.requests]) <= LOAD
        assert len(got) == len({one.id for one in got}) == sum(map(len, ours.groups))
        ratios[row] = steady(ours) / steady(bare)
    assert ratios["static"] < 0.9 < 0.95 <= ratios["adaptive"]


@pytest.mark.parametrize("row", ["static", "adaptive", "sticky", "spare", "refills", "trees"])
def test_each_request_waits_for_earlier_ones_until_it_began(played, row):
    from simulate_gpus import rows_of

    play, _ = played(row)
    known = {one.row["request_id"]: one for one in play.requests}
    rows = list(rows_of(play.requests))
    assert len(rows) == len(known) == len(play.requests)
    for row in rows:
        request = known[row["request_id"]]
        ends = [known[name].ended for name in row.get("wait_for", ())]
        begins = max(ends) + (row["delay"] + row.get("tool_wait_ms", 0.0)) / 1e3 if ends else row["timestamp"] / 1e3
        assert begins == pytest.approx(request.began, abs=1e-5)
    if row == "trees":
        waits = [name for row in rows for name in row.get("wait_for", ())[:1]]
        assert len(waits) > len(set(waits))


def test_without_the_simulator_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from simulate_gpus import checked_simulator

    for python in (str(tmp_path / "python"), sys.executable):
        with pytest.raises(SystemExit) as left:
            checked_simulator(python)
        assert f"no aisimulate in {python}" in str(left.value)
        assert "pip install --no-deps --pre aisimulate==0.13.0.dev" in str(left.value)
        assert "sha256" in str(left.value)


def test_the_decoder_that_is_timed_on_a_gpu_is_qwen3(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from real_gpu import TINY, Decoder

    decoder = Decoder(TINY, "cpu", torch.float32)
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    weights = {"model.embed_tokens": decoder.embedding, "model.norm": decoder.norm, "lm_head": decoder.head}
    for number, layer in enumerate(decoder.layers):
        parts = {
            **dict(zip(("q_proj", "k_proj", "v_proj"), layer["qkv"].split([64, 32, 32]), strict=True)),
            "o_proj": layer["out"], "q_norm": layer["q_norm"], "k_norm": layer["k_norm"],
        }  # fmt: skip
        weights |= {f"model.layers.{number}.self_attn.{name}": value for name, value in parts.items()}
        gate, up = layer["gate_up"].chunk(2)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": layer["down"]}
        weights |= {f"model.layers.{number}.mlp.{name}": value for name, value in parts.items()}
        parts = {"input_layernorm": layer["norm"], "post_attention_layernorm": layer["mlp_norm"]}
        weights |= {f"model.layers.{number}.{name}": value for name, value in parts.items()}
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict({f"{name}.weight": value for name, value in weights.items()})

    ids = torch.randint(512, (3, 20), generator=torch.Generator().manual_seed(0))
    caches = decoder.caches(3, 19)
    prefilled = decoder.logits(ids[:, :19], caches, decoder.turns(0, 19))
    longer = [torch.nn.functional.pad(cache, (0, 0, 0, 1)) for cache in caches]
    decoded = decoder.logits(ids[:, 19:], longer, decoder.turns(19, 20))
    with torch.no_grad():
        expected = model(ids).logits[:, 18:]
    assert torch.allclose(torch.stack([prefilled, decoded], dim=1), expected, atol=1e-5)
