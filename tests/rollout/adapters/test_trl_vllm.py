"""`Spec.rollout_func` with TRL's own vLLM: its server's protocol, and the engine in the trainer's process."""

from __future__ import annotations

import pytest
import torch

from tests.rollout.adapters.test_trl import arguments, make_env, quiet, spec, trainer_of  # noqa: F401
from tests.rollout.adapters.vllm_stand_in import vllm_in_process, vllm_server
from toolgym.rollout import tiny_policy_path
from toolgym.tools.errors import ConfigError


def require_exact(trainer, steps):
    """The loss saw the served tokens with their log-probabilities: those of the weights that the trainer then had."""
    assert len(trainer.seen) == steps
    for inputs, logps, loss in trainer.seen:
        assert torch.isfinite(loss)
        policy = inputs["completion_mask"].bool() & inputs["tool_mask"].bool()
        assert policy.any()
        assert torch.allclose(logps.detach()[policy], inputs["sampling_per_token_logps"][policy], atol=1e-4)
    first = trainer.seen[0][0]
    assert (first["completion_mask"].bool() & ~first["tool_mask"].bool()).any()  # a tool answered


def test_the_server_samples_and_has_the_weights_of_each_step(spec, tmp_path, monkeypatch):  # noqa: F811
    with vllm_server(tiny_policy_path(), monkeypatch) as server:
        trainer = trainer_of(
            spec, tmp_path, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url, learning_rate=1e-2
        )
        trainer.train()
        spec.close()
        require_exact(trainer, 2)
        assert server.calls.count("/update_weights") == 2
        assert max(len(body["prompt"]) for body in server.seen) > min(len(body["prompt"]) for body in server.seen)


@pytest.mark.long
def test_vllm_in_the_trainers_process_samples_many_at_once(spec, tmp_path, monkeypatch):  # noqa: F811
    with vllm_in_process(monkeypatch) as made:
        trainer = trainer_of(spec, tmp_path, use_vllm=True, vllm_mode="colocate", learning_rate=1e-2)
        trainer.train()
        require_exact(trainer, 2)
        [llm] = made
        assert llm.most_at_once > 4
        assert not llm.requests


def test_a_vllm_that_breaks_ends_the_step(spec, tmp_path, monkeypatch):  # noqa: F811
    with vllm_in_process(monkeypatch) as made:
        trainer = trainer_of(spec, tmp_path, use_vllm=True, vllm_mode="colocate")
        made[0].fails = True
        with pytest.raises(RuntimeError, match="device-side assert"):
            trainer.train()
        assert not made[0].requests


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vllm_enable_sleep_mode": True}, "vllm_enable_sleep_mode=False"),
        ({"vllm_structured_outputs_regex": "a+"}, "vllm_structured_outputs_regex"),
        ({"vllm_tensor_parallel_size": 2}, "vllm_tensor_parallel_size=1"),
    ],
)
def test_a_vllm_that_cannot_play_episodes_is_refused(spec, monkeypatch, tmp_path, options, said):  # noqa: F811
    from types import SimpleNamespace

    from toolgym.rollout.adapters.trl.vllm import require_usable_vllm

    args = arguments(tmp_path, use_vllm=True, vllm_mode="colocate", **options)
    generation = SimpleNamespace(
        mode=args.vllm_mode,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        structured_outputs_regex=args.vllm_structured_outputs_regex,
    )
    with pytest.raises(ConfigError, match=said):
        require_usable_vllm(SimpleNamespace(vllm_generation=generation))
