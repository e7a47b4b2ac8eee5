"""verl's real trainer, `python -m verl.trainer.main_ppo`, on a CPU: its actor trains on what its server gave."""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolgym.envs import ArithmeticTasks, write_tasks
from toolgym.rollout.models.tiny import tiny_policy_path

pytest.importorskip("verl")

import torch

pytestmark = pytest.mark.long

LIMIT = 420.0
"""Seconds for two steps. Most of them go into the imports of some ten processes."""
STEPS, PROMPTS, SAMPLES, TESTS = 2, 8, 4, 8

SETTINGS = {
    "data": {
        "train_batch_size": PROMPTS,
        "val_batch_size": TESTS,
        "max_prompt_length": 256,
        "max_response_length": 192,
        "filter_overlong_prompts": False,
        "dataloader_num_workers": 0,
    },
    "actor_rollout_ref.model": {
        "path": tiny_policy_path(),
        "use_remove_padding": False,
        "enable_gradient_checkpointing": False,
        "+override_config.attn_implementation": "sdpa",
    },
    "actor_rollout_ref.rollout": {
        "name": "vllm",
        "n": SAMPLES,
        "tensor_model_parallel_size": 1,
        "calculate_log_probs": True,
        "log_prob_micro_batch_size_per_gpu": 16,
        "free_cache_engine": False,
        "agent.num_workers": 1,
        "agent.default_agent_loop": "toolgym_agent",
        "+custom.toolgym.env": "CodeInterpreter-v0",
        "+custom.toolgym.max_new_tokens": 64,
    },
    "actor_rollout_ref.actor": {
        "strategy": "fsdp2",
        "optim.lr": 3e-4,
        "ppo_mini_batch_size": PROMPTS,
        "ppo_micro_batch_size_per_gpu": 16,
        "use_kl_loss": False,
        "use_torch_compile": False,
        "fsdp_config.dtype": "float32",
        "fsdp_config.use_torch_compile": False,
    },
    "algorithm": {"adv_estimator": "toolgym_grpo", "use_kl_in_reward": False},
    "critic": {"enable": False},
    "reward": {"num_workers": 1},
    "transfer_queue": {"backend.SimpleStorage.num_data_storage_units": 1},
    "trainer": {
        "device": "cpu",
        "n_gpus_per_node": 1,
        "nnodes": 1,
        "logger": "[console]",
        "val_before_train": False,
        "test_freq": STEPS,
        "save_freq": -1,
        "total_training_steps": STEPS,
        "total_epochs": 1,
    },
    "ray_kwargs.ray_init": {
        "+address": "local",  # not a cluster that another program left on this machine
        "+num_gpus": 1,
        "num_cpus": 32,  # verl asks for more than a small machine has, and uses little of them
        "+include_dashboard": False,
        "+object_store_memory": 200 * 2**20,
    },
}
"""verl's, for a small policy on one processor."""

WITH_V1 = ["+actor_rollout_ref.rollout.custom.toolgym.context=on_cpu.forgetful:Forgetful"]


def overrides(folder):
    named = {f"{place}.{name}": value for place, names in SETTINGS.items() for name, value in names.items()}
    named |= {f"data.{split}_files": folder / f"{split}.parquet" for split in ("train", "val")}
    further = {name: "+" if "+" in name else "" for name in named}
    return [f"{further[name]}{name.replace('+', '')}={value}" for name, value in named.items()]


def train(folder, fails, *further):
    """Run the trainer, and return what it printed."""
    write_tasks(folder / "train.parquet", ArithmeticTasks("train").take(STEPS * PROMPTS, seed=0))
    write_tasks(folder / "val.parquet", ArithmeticTasks("test").take(TESTS, seed=0))
    settings = {
        "PYTHONPATH": str(Path(__file__).parent),  # of `on_cpu`
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "on_cpu.plug_points",
        "VERL_ON_CPU": str(folder),
        "VERL_ON_CPU_FAILS": str(fails),
        "HYDRA_FULL_ERROR": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # memory that other programs take is no reason to end
        "TOKENIZERS_PARALLELISM": "false",
    }
    with (folder / "printed.txt").open("w+") as printed:
        done = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(folder), *further],
            env=os.environ | settings,
            cwd=folder,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = done.wait(LIMIT)
        finally:
            if done.poll() is None:
                os.killpg(done.pid, signal.SIGKILL)
        printed.seek(0)
        text = printed.read()
    assert code == 0, text[-6000:]
    return text


def rows(folder):
    """The rows of the actor's micro batches, padding taken away: tensors by their names."""
    for path in sorted(folder.glob("batch-*.pt")):
        batch = torch.load(path, weights_only=False)
        for number in range(len(batch["responses"])):
            yield {name: value[number] for name, value in batch.items()}


def runs(mask):
    """Where the mask is 1: the beginning and the end of each run."""
    edges = torch.diff(mask.bool().int(), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero()[:, 0].tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def check_groups(counted, tokenizer):
    """The first row of each episode has the advantage that its reward has among the episodes of its prompt.

    Args:
        counted: rows with a trained token, and their prompts.
        tokenizer: of the policy.
    """
    groups = collections.defaultdict(list)
    for prompt, row in counted:
        if "<tool_response>" not in tokenizer.decode(prompt):  # then it is a later row
            [advantage] = row["advantages"][row["response_mask"].bool()].unique().tolist()
            groups[prompt].append((float(row["rm_scores"].sum()), advantage))
    firsts = [group for group in groups.values() if len(group) > 1]
    assert len(firsts) > STEPS * PROMPTS / 2
    for group in firsts:
        rewards = torch.tensor([reward for reward, _ in group])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        assert [advantage for _, advantage in group] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("fails", "further"), [(11, WITH_V1), (0, ["trainer.use_v1=False"])], ids=["v1, with failures", "v0"]
)
def test_what_the_actor_trains_on_is_what_the_server_gave(tmp_path, tokenizer, fails, further):
    printed = train(tmp_path, fails, *further)
    served = collections.defaultdict(list)
    for line in (tmp_path / "requests.jsonl").read_text().splitlines():
        one = json.loads(line)
        served[tuple(one["prompt"]), tuple(one["ids"])].append(torch.tensor(one["logprobs"]))
    counted, masked = [], 0
    for row in rows(tmp_path):
        mask, response, prompt = row["response_mask"], row["responses"].tolist(), row["prompts"]
        if "attention_mask" in row:
            prompt = prompt[row["attention_mask"][: len(prompt)].bool()]
        prompt = tuple(prompt.tolist())
        assert not row["advantages"][~mask.bool()].any()
        for begin, end in runs(mask):
            answers = served[(*prompt, *response[:begin]), tuple(response[begin:end])]
            assert any(torch.equal(row["rollout_log_probs"][begin:end], one) for one in answers)
        masked += not mask.any()
        counted += [(prompt, row)] if mask.any() else []
    assert len(counted) > 0.9 * STEPS * PROMPTS * SAMPLES
    assert bool(masked) == bool(fails) == ("failed with engine_failed" in printed)
    check_groups(counted, tokenizer)
    correlations = re.findall(r"rollout_actor_probs_pearson_corr:\S*?([\d.]+)", printed)
    assert len(correlations) == STEPS
    assert min(map(float, correlations)) > 0.999
    assert re.search(r"val-core/\S+/acc/mean@1", printed)
