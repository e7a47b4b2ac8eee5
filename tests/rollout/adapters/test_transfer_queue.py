"""Rows and groups in a real TransferQueue, in processes of Ray's."""

from __future__ import annotations

import functools

import pytest

from tests.rollout.adapters.golden import BROKEN, env, policy, trajectory
from toolgym.tools.errors import BatchError, ConfigError

pytest.importorskip("transfer_queue")

import ray
import torch
import transfer_queue

from toolgym.rollout.adapters.transfer_queue import QueueRow, TransferQueueWriter, to_tensordict
from toolgym.rollout.adapters.verl.trainer_queue import queue_rows

pytestmark = pytest.mark.long

ROWS = functools.partial(queue_rows, response_length=16, pad_token_id=0, global_steps=7)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    from omegaconf import OmegaConf

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    storage = {"num_data_storage_units": 1, "total_storage_size": 100}
    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
    yield
    transfer_queue.close()
    ray.shutdown()


async def stream(trajectories):
    for one in trajectories:
        yield one


def played(number, group, *segments, **kwargs):
    return trajectory(*segments, number=number, group_id=group, sample_index=number % 2, **kwargs)


async def test_rows_come_back_as_they_were_put_and_a_group_ends_with_its_last():
    writer = TransferQueueWriter("whole", tag={"global_steps": 7})
    given = [
        played(0, "a", policy(10, 11, 12), env(30), policy(13)),
        played(2, "b", policy(20), prompt=(8,), reward=0.25),
        played(1, "a", policy(14, 15)),
    ]
    keys = await writer.put_groups(stream(given), ROWS, group_size=2)
    assert keys == ["a_0_0", "b_0_0", "a_1_0"]
    tags = transfer_queue.kv_list("whole")["whole"]
    assert tags["a"] == {"is_prompt": True, "status": "finished", "global_steps": 7}
    assert tags["b"]["status"] == "failure"  # its second trajectory never came
    assert tags["a_0_0"] == {
        "status": "success", "prompt_len": 3, "response_len": 5, "seq_len": 8,
        "global_steps": 7, "min_global_steps": 3, "max_global_steps": 3,
    }  # fmt: skip
    data = transfer_queue.kv_batch_get(keys=keys, partition_id="whole")
    for number, one in enumerate(given):
        assert data["responses"][number].tolist() == one.sequences[0].response_ids.tolist()
        assert data["rm_scores"][number].tolist() == [0.0] * (len(data["responses"][number]) - 1) + [one.reward]
        assert torch.equal(data["rollout_log_probs"][number], torch.tensor(one.sequences[0].logprobs).float())
    assert list(data["uid"]) == ["a", "b", "a"]
    assert list(data["extra_fields"])[1]["turn_scores"] == [0.125]


async def test_a_group_of_which_nothing_was_put_is_a_failure():
    writer = TransferQueueWriter("dropped")
    await writer.put_groups(stream([played(0, "c", **BROKEN)]), lambda one: [], group_size=1)

    async def broken_off():
        async with writer.group("d") as group:
            await group.put(ROWS(played(0, "d", policy(1))))
            assert transfer_queue.kv_list("dropped")["dropped"]["d"]["status"] == "running"
            raise RuntimeError("the caller's")

    with pytest.raises(RuntimeError, match="the caller's"):
        await broken_off()
    tags = transfer_queue.kv_list("dropped")["dropped"]
    assert (tags["c"]["status"], tags["d"]["status"]) == ("failure", "failure")


async def test_what_does_not_fit_is_refused_by_the_key_of_its_row():
    writer = TransferQueueWriter("refused")
    with pytest.raises(ConfigError, match="without '_'; got 'a_b'"):
        async with writer.group("a_b"):
            pass
    with pytest.raises(ConfigError, match="group 'e' has more than group_size=1"):
        await writer.put_groups(stream([played(n, "e", policy(1)) for n in (0, 1)]), ROWS, group_size=1)
    async with writer.group("f") as group:
        with pytest.raises(BatchError, match="the row 'g_0_0' is not of group 'f'"):
            await group.put(ROWS(played(0, "g", policy(1))))
        with pytest.raises(BatchError, match="'f_0' and 'f_1' has y"):
            await group.put([QueueRow("f_0", {"x": 1}, {}), QueueRow("f_1", {"x": 1, "y": 2}, {})])


def test_tensors_are_stacked_or_jagged_and_all_else_stays():
    made = to_tensordict(
        [{"a": torch.ones(2), "b": torch.ones(2), "c": {}}, {"a": torch.ones(2), "b": torch.ones(3), "c": None}]
    )
    assert made["a"].shape == (2, 2)
    assert [len(one) for one in made["b"].unbind()] == [2, 3]
    assert list(made["c"]) == [{}, None]
