"""The launch script for verl: its configuration by verl's own schema, its agent loop, and its rows by verl's own data
set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

from hydra import compose, initialize_config_module
from hydra.utils import get_class
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

import toolgym
from toolgym.rollout import load_tokenizer, tiny_policy_path
from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.adapters.verl import ToolgymAgentLoop
from toolgym.rollout.adapters.verl.options import LoopOptions

FOLDER = Path(__file__).parents[2] / "examples" / "verl"
SCRIPT = FOLDER / "run_gsm8k_fsdp_sglang_code_interpreter.sh"
PROBLEMS = [{"question": "What is 40+2?", "answer": "It is <<40+2=42>>42.\n#### 42"}] * 2 + [
    {"question": "A million and a half?", "answer": "#### 1,500,000"}
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What the data script writes of a file of problems."""
    folder = tmp_path_factory.mktemp("gsm8k")
    problems = folder / "problems.jsonl"
    problems.write_text("\n".join(map(json.dumps, PROBLEMS)))
    options = ["--out", folder / "out", "--train", problems, "--test", problems]
    command = [sys.executable, FOLDER / "gsm8k.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "train.parquet: 3 rows" in done.stdout
    return folder / "out"


@pytest.fixture(scope="module")
def overrides(tmp_path_factory, rows):
    """The arguments that the script starts verl with."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    python.chmod(0o755)
    env = {**os.environ, "PYTHON": str(python), "DATA": str(rows), "MODEL": str(tiny_policy_path())}
    done = subprocess.run([SCRIPT, "trainer.total_epochs=1"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    dash, module, *arguments = json.loads(done.stdout)
    assert (dash, module) == ("-m", "verl.trainer.main_ppo")
    return arguments


@pytest.fixture(scope="module")
def config(overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        made = compose("ppo_trainer", overrides)
    OmegaConf.resolve(made)
    return made


def test_verl_s_own_schema_and_checks_accept_it(config):
    validate_config(config, need_reference_policy(config), need_critic(config))
    for part in ("actor", "rollout", "model"):
        omega_conf_to_dataclass(config.actor_rollout_ref[part])
    assert config.trainer.use_v1
    assert config.trainer.total_epochs == 1  # what is given to the script wins


def test_its_advantage_and_its_agent_loop_exist(config):
    assert get_adv_estimator_fn(config.algorithm.adv_estimator)
    [entry] = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert entry.name == config.actor_rollout_ref.rollout.agent.default_agent_loop
    assert get_class(entry._target_) is ToolgymAgentLoop
    plain = OmegaConf.to_container(entry)
    options = LoopOptions(**{name: value for name, value in plain.items() if name not in ("name", "_target_")})
    assert toolgym.make(options.env, **options.env_kwargs).max_turns == 6
    assert options.max_new_tokens < config.actor_rollout_ref.rollout.response_length


def test_its_rows_are_tasks_after_verl_s_own_data_set_has_read_them(config):
    data = RLHFDataset(config.data.train_files, load_tokenizer(tiny_policy_path()), config.data)
    read = [data[number] for number in range(len(data))]
    assert {one["agent_name"] for one in read} == {"gsm8k_code"}
    tasks = [task_of_row(one) for one in read]
    assert [task.ground_truth for task in tasks] == ["42", "42", "1500000"]
    assert [task.id for task in tasks] == ["0", "1", "2"]
    assert tasks[0].messages[1]["content"] == "What is 40+2?"
    assert tasks[0].tools_kwargs == {}
