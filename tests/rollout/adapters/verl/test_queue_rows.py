"""Our rows for verl's TransferQueue are those that verl's own worker puts there."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.golden import golden, policy, trajectory
from tests.rollout.adapters.verl.conftest import RESPONSE_LENGTH
from tests.rollout.adapters.verl.fakes import ROW
from toolgym.tools.errors import UnknownArgumentError

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

import numpy as np
import torch
from verl.trainer.ppo.v1 import agent_loop_tq

from toolgym.rollout.adapters.verl.agent_loop import to_output
from toolgym.rollout.adapters.verl.manager import manager_options
from toolgym.rollout.adapters.verl.rows import metrics, rows_of
from toolgym.rollout.adapters.verl.trainer_queue import queue_rows

KIND = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


async def put_by_verl(worker, monkeypatch, one, columns, experts):
    """What verl's worker puts for a trajectory: keys, fields, tags."""
    calls = []

    async def put(**call):
        calls.append(call)

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", put)
    rows = rows_of(one, response_length=RESPONSE_LENGTH, pad_token_id=0, global_steps=(7, 7))
    given = agent_loop_tq.AgentLoopOutput.model_fields["metrics"].annotation(**metrics(one))
    outputs = [to_output(row, given, experts=experts if len(rows) == 1 else None) for row in rows]
    await KIND._agent_loop_postprocess(worker, outputs, False, **columns)
    [call] = calls
    return call


def several():
    """A trajectory of two sequences, and one with routed experts."""
    first, second = (trajectory(policy(*ids)).sequences[0] for ids in ((10, 11), (12, 13, 14)))
    return trajectory(policy(10, 11), policy(12, 13, 14), sequences=(first, second), number=8)


@pytest.mark.parametrize("number", range(len(golden()) + 1))
@pytest.mark.parametrize("experts", [None, np.arange(4 * 2 * 3).reshape(4, 2, 3)])
async def test_keys_fields_and_tags_are_equal(worker, monkeypatch, number, experts):
    one = [*golden(), several()][number]
    columns = {**ROW, "uid": one.group_id, "session_id": one.sample_index, "global_steps": 7}
    expected = await put_by_verl(worker(), monkeypatch, one, columns, experts)
    made = queue_rows(
        one, response_length=RESPONSE_LENGTH, pad_token_id=0, global_steps=7, columns=columns, versions=(7, 7),
        routed_experts=experts,
    )  # fmt: skip
    assert [row.key for row in made] == expected["keys"]
    assert [row.tag for row in made] == expected["tags"]
    for position, row in enumerate(made):
        theirs = {name: expected["fields"][name] for name in list(expected["fields"].keys())}
        assert row.fields.keys() == theirs.keys()
        for name, value in row.fields.items():
            other = theirs[name][position] if isinstance(theirs[name], torch.Tensor) else list(theirs[name])[position]
            if isinstance(value, torch.Tensor):
                assert value.dtype == other.dtype, name
                assert torch.equal(value, other), name
            else:
                assert value == other, name


def test_the_manager_s_options_are_checked(verl_config):
    assert manager_options(verl_config()).max_concurrent == 256
    with pytest.raises(UnknownArgumentError, match="did you mean 'max_concurrent'"):
        manager_options(verl_config("+actor_rollout_ref.rollout.custom.toolgym_manager.max_concurent=3"))
