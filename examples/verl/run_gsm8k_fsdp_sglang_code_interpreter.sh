#!/usr/bin/env bash
# GRPO on GSM8K with a code interpreter: verl trains with FSDP, SGLang generates, toolgym plays the episodes.
#
#   python examples/verl/gsm8k.py --out data/gsm8k
#   examples/verl/run_gsm8k_fsdp_sglang_code_interpreter.sh trainer.total_epochs=1
#
# Further arguments go to verl and win over those below. Needs 8 GPUs as it stands: see GPUS and MODEL.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
DATA=${DATA:-data/gsm8k}
MODEL=${MODEL:-Qwen/Qwen2.5-3B-Instruct}
GPUS=${GPUS:-8}

data=(
  data.train_files="$DATA/train.parquet"
  data.val_files="$DATA/test.parquet"
  data.train_batch_size=256
  data.max_prompt_length=1024
  data.max_response_length=3072
  data.filter_overlong_prompts=True
)
# The agent loop of loops.yaml; or drop the file, and write agent_name: toolgym_agent into the rows.
rollout=(
  actor_rollout_ref.rollout.name=sglang
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.calculate_log_probs=True
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
  actor_rollout_ref.rollout.agent.num_workers=8
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/loops.yaml"
  actor_rollout_ref.rollout.agent.default_agent_loop=gsm8k_code
)
actor=(
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size=128
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
)
# Verl's GRPO, from whose groups failed episodes stay out.
algorithm=(
  algorithm.adv_estimator=toolgym_grpo
  algorithm.use_kl_in_reward=False
  critic.enable=False
)
trainer=(
  trainer.project_name=toolgym
  trainer.experiment_name=gsm8k-code-interpreter
  "trainer.logger=[console]"
  trainer.n_gpus_per_node="$GPUS"
  trainer.nnodes=1
  trainer.val_before_train=True
  trainer.test_freq=10
  trainer.save_freq=50
  trainer.total_epochs=3
)

exec "$PYTHON" -m verl.trainer.main_ppo \
  "${data[@]}" "${rollout[@]}" "${actor[@]}" "${algorithm[@]}" "${trainer[@]}" "$@"
