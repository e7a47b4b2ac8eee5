"""A policy learns to use the code interpreter: TRL's GRPOTrainer, real tool executions, a CPU, some minutes.

    python examples/learn_code_interpreter.py --seed 0

It prints the share of held-out tasks that the policy solves before and after, sampled (temperature 1) and greedy, and
with `--plot FILE` the curve of the training reward. `--seed 0 --steps 20 --tasks 128` printed: sampled 0.43 before and
0.81 after, greedy 0.82 before and 0.93 after, in 170 s of processor time beside the sandbox's.

The policy that it starts with is the tiny one that ships with the library: a Qwen3 of about a million parameters,
trained from scratch on written transcripts of these very tasks, and then on bad habits: guesses without the tool,
broken calls, wrong programs (`examples/tiny_policy`). So it knows how to call the tool, and what is learned here is to
do it. The held-out tasks are a tenth of all expressions, which no training shows.

It needs TRL: `pip install 'toolgym[trl]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not keep the tools from a processor

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, SamplingParams, TransformersEngine, rollout
from toolgym.rollout.adapters.trl import Spec

ENV = "CodeInterpreter-v0"


async def success(model: torch.nn.Module, spec: Spec, temperature: float, tasks: int) -> float:
    """The share of held-out tasks that the policy solves."""
    async with TransformersEngine(model) as engine:
        config = RunConfig(
            seed=1, validate=True, sampling=SamplingParams(max_new_tokens=64, temperature=temperature)
        )  # fmt: skip
        held_out = ArithmeticTasks("test").take(tasks, seed=1)
        played = await rollout(ENV, engine, held_out, tokenizer=spec.tokenizer, config=config)
    return sum(one.reward for one in played) / len(played)


def evaluate(trainer: GRPOTrainer, spec: Spec, tasks: int) -> tuple[float, float]:
    """Sampled and greedy success."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    sampled, greedy = (asyncio.run(success(model, spec, temperature, tasks)) for temperature in (1.0, 0.0))
    return sampled, greedy


class PrintReward(TrainerCallback):
    """One short line for each step, in place of all of TRL's figures."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "reward" in logs:
            print(f"step {state.global_step}: mean reward {logs['reward']:.3f}", flush=True)


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="of the optimizer")
    parser.add_argument("--groups", type=int, default=8, help="tasks of a step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes of a task")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks to evaluate on")
    parser.add_argument("--plot", type=Path, help="a picture of the training reward, which needs matplotlib")
    given = parser.parse_args()

    spec = Spec(
        ENV,
        num_tasks=given.steps * given.groups,
        policy="tiny",
        seed=given.seed,
        config=RunConfig(sampling=SamplingParams(max_new_tokens=64)),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=spec.policy,
            args=GRPOConfig(
                output_dir=folder,
                seed=given.seed,
                use_cpu=True,
                bf16=False,
                max_steps=given.steps,
                learning_rate=given.learning_rate,
                lr_scheduler_type="linear",
                per_device_train_batch_size=given.groups * given.group_size,
                num_generations=given.group_size,
                max_completion_length=160,
                beta=0.0,
                top_k=0,
                activation_checkpointing=False,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                log_level="error",
            ),
            train_dataset=spec.train_dataset,
            processing_class=spec.tokenizer,
            reward_funcs=spec.reward_funcs,
            rollout_func=spec.rollout_func,
            callbacks=[PrintReward()],
        )
        trainer.remove_callback(PrinterCallback)
        before = evaluate(trainer, spec, given.tasks)
        print(f"before: sampled {before[0]:.3f}, greedy {before[1]:.3f}", flush=True)
        started, computed = time.monotonic(), time.process_time()
        trainer.train()
        wall, cpu = time.monotonic() - started, time.process_time() - computed
        after = evaluate(trainer, spec, given.tasks)
    spec.close()
    rewards = [one["reward"] for one in trainer.state.log_history if "reward" in one]
    print(f"after:  sampled {after[0]:.3f}, greedy {after[1]:.3f}")
    print(
        f"{given.steps} steps of {given.groups * given.group_size} episodes, {wall:.0f} s, {cpu:.0f} s of this process"
    )
    print("reward:", " ".join(f"{sum(part) / len(part):.2f}" for part in _windows(rewards, 10)))
    if given.plot:
        _plot(rewards, given.plot)


def _windows(values: list[float], count: int) -> list[list[float]]:
    size = max(1, len(values) // count)
    return [values[start : start + size] for start in range(0, len(values), size)]


def _plot(rewards: list[float], file: Path) -> None:
    from matplotlib import pyplot

    pyplot.plot(range(1, len(rewards) + 1), rewards)
    pyplot.xlabel("step")
    pyplot.ylabel("mean reward of the step's episodes")
    pyplot.ylim(0, 1)
    pyplot.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
