"""verl's own configuration and its own worker, in this process."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.rollout.adapters.verl.fakes import ROW, FakeServers
from toolgym.rollout.models.tiny import tiny_policy_path

PROMPT_LENGTH, RESPONSE_LENGTH = 256, 160


@functools.cache
def composed(*overrides):
    """verl's configuration for the tiny policy, by its own schema."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={tiny_policy_path()}",
                "actor_rollout_ref.rollout.name=sglang",
                f"data.max_prompt_length={PROMPT_LENGTH}",
                f"data.max_response_length={RESPONSE_LENGTH}",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                *overrides,
            ],
        )


@pytest.fixture(scope="session")
def verl_config():
    return composed


def objects(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.fixture(scope="session")
def as_batch():
    """Rows as the batch that verl's V0 trainer hands to its workers."""

    def batch(rows, **columns):
        import torch
        from verl import DataProto

        rows = [{"agent_name": "toolgym_agent", **ROW, **row} for row in rows]
        return DataProto.from_dict(
            tensors={"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)},
            non_tensors={name: objects([row[name] for row in rows]) for name in rows[0]},
            meta_info={"global_steps": 1},
        )

    return batch


@pytest.fixture
def worker(tokenizer):
    """Makes verl's worker: `worker(script, *overrides)`."""

    def make(script=None, *overrides):
        from verl.experimental.agent_loop import AgentLoopWorker

        return AgentLoopWorker(composed(*overrides), FakeServers(tokenizer, script))

    return make
