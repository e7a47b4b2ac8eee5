"""A policy learns to use the code interpreter: TRL's GRPOTrainer, real tool executions, a CPU, some minutes a seed.

    python examples/learn_code_interpreter.py --seeds 0 1 2 --plot learning.svg

It prints the share of held-out tasks that the policy solves, before and after: sampled at temperature 1, and greedy.

The policy that it starts with is the tiny one that ships with the library: a Qwen3 of about a million parameters,
trained from scratch on written transcripts of tasks of this kind, and then on bad habits: guesses without the tool,
broken calls, wrong programs (`examples/tiny_policy`). So it knows how to call the tool, and what is learned here is to
do it, and to do it right.

The held-out tasks are drawn from a tenth of all expressions (`ArithmeticTasks("test")`), of which neither this training
nor that of the starting policy shows any; they and the seeds of their episodes are the same before and after, and for
each seed of the training. What stands behind ± is the standard error over the tasks. docs/learning.md has the figures.

It needs TRL, and the plot needs matplotlib: `pip install '.[trl]' matplotlib` in a checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not keep the tools from a processor

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, SamplingParams, load_tokenizer, rollout, tiny_policy_path
from toolgym.rollout.adapters.trl import Spec
from toolgym.rollout.engines import TransformersEngine

ENV = "CodeInterpreter-v0"


@dataclass(frozen=True)
class Success:
    """Shares of the episodes on held-out tasks that end with the right answer.

    Attributes:
        sampled: at temperature 1.
        error: of `sampled`: its standard error over the tasks.
        greedy: at temperature 0.
    """

    sampled: float
    error: float
    greedy: float

    def __str__(self) -> str:
        return f"sampled {self.sampled:.3f} ± {self.error:.3f}, greedy {self.greedy:.3f}"


@dataclass(frozen=True)
class Training:
    """What one seed gave: the mean reward of each step's episodes, and success at the end."""

    seed: int
    rewards: list[float]
    after: Success


async def play(model: torch.nn.Module | str, tasks: int, samples: int, temperature: float) -> list[float]:
    """Each held-out task's mean reward over its episodes."""
    sampling = SamplingParams(max_new_tokens=64, temperature=temperature)
    config = RunConfig(seed=1, validate=True, group_size=samples, sampling=sampling)
    async with TransformersEngine(model) as engine:
        held_out = ArithmeticTasks("test").take(tasks, seed=1)
        played = await rollout(ENV, engine, held_out, tokenizer=load_tokenizer(tiny_policy_path()), config=config)
    return [fmean(one.reward for one in played[start : start + samples]) for start in range(0, len(played), samples)]


def evaluate(model: torch.nn.Module | str, given: argparse.Namespace) -> Success:
    """Success of a policy on the held-out tasks."""
    sampled = asyncio.run(play(model, given.tasks, given.samples, temperature=1.0))
    greedy = asyncio.run(play(model, given.tasks, 1, temperature=0.0))
    return Success(fmean(sampled), stdev(sampled) / len(sampled) ** 0.5, fmean(greedy))


class PrintReward(TrainerCallback):
    """One short line for each step, in place of all of TRL's figures."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "reward" in logs:
            print(f"step {state.global_step}: mean reward {logs['reward']:.3f}", flush=True)


def train(seed: int, given: argparse.Namespace) -> Training:
    """Train the starting policy with TRL."""
    spec = Spec(
        ENV,
        num_tasks=given.steps * given.groups,
        policy="tiny",
        seed=seed,
        config=RunConfig(sampling=SamplingParams(max_new_tokens=64)),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=spec.policy,
            args=GRPOConfig(
                output_dir=folder,
                seed=seed,
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
        started, computed = time.monotonic(), time.process_time()
        trainer.train()
        wall, cpu = time.monotonic() - started, time.process_time() - computed
    spec.close()
    episodes = given.groups * given.group_size
    print(f"seed {seed}: {given.steps} steps of {episodes} episodes in {wall:.0f} s, {cpu:.0f} s of this process")
    rewards = [one["reward"] for one in trainer.state.log_history if "reward" in one]
    return Training(seed, rewards, evaluate(trainer.accelerator.unwrap_model(trainer.model), given))


def plot(before: Success, trainings: list[Training], file: Path) -> None:
    """Draw the reward of each step's episodes, and success on held-out tasks before and after."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "toolgym"  # the same figures give the same file
    blue, orange, green, pink = "#0072b2", "#d55e00", "#009e73", "#cc79a7"  # told apart by colour-blind people too
    looks = [(blue, "-", "o"), (orange, "--", "s"), (green, ":", "^"), (pink, "-.", "D")]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.errorbar(
        0, before.sampled, before.error, color="black", marker="*", markersize=11, linestyle="none",
        label="held-out, before",
    )  # fmt: skip
    for place, one in enumerate(trainings):
        color, line, marker = looks[place % len(looks)]
        steps = len(one.rewards)
        axes.plot(range(1, steps + 1), one.rewards, line, color=color, label=f"seed {one.seed}: episodes of a step")
        axes.errorbar(
            steps + 1 + 0.4 * place, one.after.sampled, one.after.error, color=color, marker=marker, capsize=3,
            linestyle="none", label=f"seed {one.seed}: held-out, after",
        )  # fmt: skip
    axes.set(xlabel="step of the optimizer", ylabel="share of episodes solved (temperature 1)", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    """Train once for each seed, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the trainings, one after the other")
    parser.add_argument("--steps", type=int, default=20, help="of the optimizer")
    parser.add_argument("--groups", type=int, default=8, help="tasks of a step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes of a task")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks to evaluate on")
    parser.add_argument("--samples", type=int, default=4, help="sampled episodes of each of them")
    parser.add_argument("--plot", type=Path, help="a picture of it, .svg or .png; needs matplotlib")
    given = parser.parse_args()
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")

    before = evaluate(str(tiny_policy_path()), given)
    print(f"before: {before}", flush=True)
    trainings = []
    for seed in given.seeds:
        trainings.append(train(seed, given))
        print(f"seed {seed}, after: {trainings[-1].after}", flush=True)
    after = [one.after.sampled for one in trainings]
    print(f"after, {len(after)} seeds: sampled {fmean(after):.3f} on average, {min(after):.3f} to {max(after):.3f}")
    if given.plot:
        plot(before, trainings, given.plot)


if __name__ == "__main__":
    main()
