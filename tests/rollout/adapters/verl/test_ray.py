"""verl's own managers and workers in processes that Ray starts: the V0 trainer's, and the V1 trainer's with its
TransferQueue. Only the LLM servers are fakes: they need a GPU."""

from __future__ import annotations

import json
import time

import pytest

from tests.rollout.adapters.verl import fakes
from tests.rollout.adapters.verl.fakes import BREAK, ROW, FakeServers, solve_or_break

pytest.importorskip("verl")
ray = pytest.importorskip("ray")

pytestmark = pytest.mark.long

DEADLINE = 240.0
"""Seconds until a worker must have played its rows; it imports verl first, which takes long on a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.cloudpickle.register_pickle_by_value(fakes)  # no package that a worker could import
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(fakes)


def loops(folder, **entry):
    """verl's file of agent loops, with one entry."""
    path = folder / "loops.yaml"
    path.write_text(json.dumps([{"_target_": "toolgym.rollout.adapters.verl.ToolgymAgentLoop", **entry}]))
    return f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}"


def test_the_v0_manager_plays_loops_found_by_entry_point_and_by_file(verl_config, as_batch, tokenizer, tmp_path):
    from verl.experimental.agent_loop import AgentLoopManager

    config = verl_config(
        "actor_rollout_ref.rollout.agent.num_workers=1",
        loops(tmp_path, name="short", env="CodeInterpreter-v0", env_kwargs={"max_turns": 1}),
    )
    manager = AgentLoopManager.create(config=config, llm_client=FakeServers(tokenizer, solve_or_break))
    batch = manager.generate_sequences(as_batch([{}, {"agent_name": "short"}, BREAK]))
    assert batch.non_tensor_batch["stop_reason"].tolist() == ["answered", "max_turns", "engine_failed"]
    assert batch.batch["rm_scores"].sum(dim=-1).tolist() == [1.0, 0.0, 0.0]
    assert batch.batch["response_mask"].any(dim=-1).tolist() == [True, True, False]
    prompt, _ = batch.batch["input_ids"][0].split([256, 160])
    assert "What is 2*3?" in tokenizer.decode(prompt)
    assert "agent_loop/tool_calls/max" in batch.meta_info["timing"]


def test_the_v1_manager_puts_rows_and_the_ends_of_groups_into_the_transfer_queue(verl_config, tokenizer, tmp_path):
    import torch
    import transfer_queue as queue
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils import tensordict_utils

    config = verl_config(
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "actor_rollout_ref.rollout.n=2",
        loops(tmp_path, name="dropping", failed="drop"),
        "transfer_queue.enable=True",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "transfer_queue.backend.SimpleStorage.total_storage_size=100",
    )
    queue.init(config.transfer_queue)
    try:
        manager = AgentLoopManagerTQ.create(config=config, llm_client=FakeServers(tokenizer, solve_or_break))
        uids = ["good", "masked", "dropped"]
        rows = [{**ROW}, {**ROW, **BREAK}, {**ROW, **BREAK}]
        columns = {name: [row[name] for row in rows] for name in ROW}
        columns |= {"uid": uids, "agent_name": ["toolgym_agent", "toolgym_agent", "dropping"]}
        batch = tensordict_utils.get_tensordict({"dummy": torch.zeros(3, 1), **columns}, {"global_steps": 7})
        pending = {"is_prompt": True, "status": "pending", "global_steps": 7}
        queue.kv_batch_put(keys=uids, partition_id="train", tags=[pending] * 3)
        manager.generate_sequences(batch)
        tags = ended(queue, uids)
        assert {tags[uid]["status"] for uid in uids} == {"finished"}
        keys = sorted(name for name, tag in tags.items() if not tag.get("is_prompt"))
        assert keys == ["good_0_0", "good_1_0", "masked_0_0", "masked_1_0"]
        assert all(type(tags[key]["min_global_steps"]) is int for key in keys)
        data = queue.kv_batch_get(keys=keys, partition_id="train")
        for number, key in enumerate(keys):
            good = key.startswith("good")
            assert data["rm_scores"][number].sum() == float(good)
            assert data["response_mask"][number].any() == good
            assert torch.equal(data["loss_mask"][number], data["response_mask"][number])
            tokens = [data[name][number] for name in ("prompts", "responses")]
            assert torch.equal(data["input_ids"][number], torch.cat(tokens))
        assert "What is 2*3?" in tokenizer.decode(data["prompts"][0])
    finally:
        queue.close()


def ended(queue, uids):
    """The tags of all keys, once each group has ended."""
    deadline = time.monotonic() + DEADLINE
    while True:
        tags = queue.kv_list()["train"]
        if all(tags[uid]["status"] in ("finished", "failure") for uid in uids):
            return tags
        assert time.monotonic() < deadline, tags
        time.sleep(0.1)
