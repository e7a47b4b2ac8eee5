"""verl's own managers and workers in processes that Ray starts: the V0 trainer's, and the V1 trainer's with its
TransferQueue. Only the LLM servers are fakes: they need a GPU."""

from __future__ import annotations

import json
import time

import pytest

from tests.rollout.adapters.verl import fakes
from tests.rollout.adapters.verl.fakes import BREAK, ROW, FakeServers, solve_at_the_second_attempt, solve_or_break
from toolgym.tools.errors import ConfigError

pytest.importorskip("verl")
ray = pytest.importorskip("ray")

pytestmark = pytest.mark.long

DEADLINE = 240.0
"""Seconds until a worker must have played its rows; it imports verl first, which takes long on a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.cloudpickle.register_pickle_by_value(fakes)  # no package that a worker could import
    ray.init(
        "local",  # not a cluster that another program left on this machine
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


def submitted(uids, rows, names, **once):
    """Prompts as verl's V1 trainer submits them."""
    import torch
    from verl.utils import tensordict_utils

    columns = {name: [row[name] for row in rows] for name in ROW} | {"uid": uids, "agent_name": names}
    return tensordict_utils.get_tensordict({"dummy": torch.zeros(len(rows), 1), **columns}, {"global_steps": 7, **once})


@pytest.fixture
def started(verl_config, tokenizer, tmp_path):
    """A manager with its TransferQueue: `started(its class, script, *overrides)`."""
    import transfer_queue as queue

    def start(kind, script, *overrides):
        config = verl_config(
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.n=2",
            loops(tmp_path, name="dropping", failed="drop"),
            "transfer_queue.enable=True",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            "transfer_queue.backend.SimpleStorage.total_storage_size=100",
            *overrides,
        )
        queue.init(config.transfer_queue)
        return kind.create(
            config=config,
            llm_client=FakeServers(tokenizer, script),
            teacher_client=None,
            reward_loop_worker_handles=None,
        )

    yield start
    queue.close()


def check_rows(queue, keys, tags, tokenizer):
    """The rows of these keys are those of solved and of masked episodes."""
    import torch

    data = queue.kv_batch_get(keys=keys, partition_id="train")
    for number, key in enumerate(keys):
        good = not key.startswith("masked")
        assert data["rm_scores"][number].sum() == float(good)
        assert data["response_mask"][number].any() == good
        assert torch.equal(data["loss_mask"][number], data["response_mask"][number])
        tokens = [data[name][number] for name in ("prompts", "responses")]
        assert torch.equal(data["input_ids"][number], torch.cat(tokens))
        assert tags[key]["seq_len"] == sum(map(len, tokens))
        assert type(tags[key]["min_global_steps"]) is int
    assert "What is 2*3?" in tokenizer.decode(data["prompts"][0])


def test_the_v1_manager_puts_rows_and_the_ends_of_groups_into_the_transfer_queue(started, tokenizer):
    import transfer_queue as queue
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    manager = started(AgentLoopManagerTQ, solve_or_break)
    uids = ["good", "masked", "dropped"]
    names = ["toolgym_agent", "toolgym_agent", "dropping"]
    batch = submitted(uids, [{**ROW}, {**ROW, **BREAK}, {**ROW, **BREAK}], names)
    pending = {"is_prompt": True, "status": "pending", "global_steps": 7}
    queue.kv_batch_put(keys=uids, partition_id="train", tags=[pending] * 3)
    manager.generate_sequences(batch)
    tags = ended(queue, uids)
    assert {tags[uid]["status"] for uid in uids} == {"finished"}
    keys = sorted(name for name, tag in tags.items() if not tag.get("is_prompt"))
    assert keys == ["good_0_0", "good_1_0", "masked_0_0", "masked_1_0"]
    check_rows(queue, keys, tags, tokenizer)


def test_our_manager_plays_groups_in_one_process_and_failed_episodes_again(started, tokenizer):
    import transfer_queue as queue
    from verl.utils.import_utils import load_class_from_fqn

    named = load_class_from_fqn("toolgym.rollout.adapters.verl.ToolgymManager", "AgentLoopManager")
    manager = started(
        named, solve_at_the_second_attempt, "+actor_rollout_ref.rollout.custom.toolgym_manager.max_concurrent=1"
    )
    uids = ["again", "good", "masked", "dropped", "other"]
    again = {**ROW, "raw_prompt": [{"role": "user", "content": "What is 2*3? Not at first."}]}
    rows = [again, {**ROW}, {**ROW, **BREAK}, {**ROW, **BREAK}, {**ROW}]
    names = ["toolgym_agent", "toolgym_agent", "toolgym_agent", "dropping", "single_turn_agent"]
    pending = {"is_prompt": True, "status": "pending", "global_steps": 7}
    queue.kv_batch_put(keys=uids, partition_id="train", tags=[pending] * 5)
    manager.generate_sequences(submitted(uids, rows, names))
    tags = ended(queue, uids)
    assert [tags[uid]["status"] for uid in uids] == ["finished", "finished", "finished", "failure", "failure"]
    assert {tags[uid]["global_steps"] for uid in uids} == {7}
    keys = sorted(name for name, tag in tags.items() if not tag.get("is_prompt"))
    assert keys == [f"{uid}_{number}_0" for uid in ("again", "good", "masked") for number in (0, 1)]
    check_rows(queue, keys, tags, tokenizer)
    with pytest.raises(ConfigError, match="'single_turn_agent' is SingleTurnAgentLoop, and ToolgymManager plays"):
        manager.generate_sequences(submitted(["late"], [{**ROW}], ["toolgym_agent"]))
    manager.generate_sequences(submitted(["val"], [{**ROW}], ["toolgym_agent"], validate=True))
    tags = ended(queue, ["val"], "val")
    assert sorted(tags) == ["val", "val_0_0"]  # val_kwargs.n is 1


def ended(queue, uids, partition="train"):
    """The tags of all keys, once each group has ended."""
    deadline = time.monotonic() + DEADLINE
    while True:
        tags = queue.kv_list().get(partition, {})
        if all(uid in tags and tags[uid]["status"] in ("finished", "failure") for uid in uids):
            return tags
        assert time.monotonic() < deadline, tags
        time.sleep(0.1)
