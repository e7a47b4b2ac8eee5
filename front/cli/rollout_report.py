"""The end of `toolgym rollout`: the batch, and a summary in the terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from toolgym.cli.tables import conversation, pick_conversation, summary_table
from toolgym.tools.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.rollout.batch.batch import Batch
    from toolgym.rollout.recording.run_folder import RunFile
    from toolgym.rollout.trajectory.trajectory import Trajectory

STOPPED_BY = 128
"""Exit status after a signal is this plus its number, as shells have it: 130 after Ctrl-C."""


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return next(pad for pad in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if pad is not None)


def _make_batch(trajectories: list[Trajectory], run: RunFile, out: Path) -> tuple[Batch | None, str]:
    from toolgym.rollout.batch.io import save_batch
    from toolgym.rollout.batch.make import make_batch
    from toolgym.rollout.recording.run_folder import BATCH

    trajectories = sorted(trajectories, key=lambda trajectory: (trajectory.task_index, trajectory.sample_index))
    try:
        batch = make_batch(trajectories, pad_token_id=run.pad_token_id)
    except (BatchError, ConfigError) as error:  # such as roles that were sampled at different temperatures
        return None, str(error)
    save_batch(batch, out / BATCH)
    return batch, ""


def report(
    trajectories: list[Trajectory],
    run: RunFile,
    out: Path,
    played: list[Trajectory],
    seconds: float,
    stopped_by: signal.Signals | None,
    as_json: bool,
) -> int:
    """Write the batch, show what happened in the run and in this call (`played`, in `seconds`), return the status."""
    from toolgym.rollout.recording.run_folder import BATCH, TRAJECTORIES
    from toolgym.rollout.runner.resumed import whole_jobs
    from toolgym.rollout.trajectory.failures import FailureLog, require_one_that_played
    from toolgym.rollout.trajectory.summary import summarize

    batch, problem = _make_batch(trajectories, run, out)  # before anything is shown: its reader may have gone away
    console, finished = Console(highlight=False), len(whole_jobs(trajectories))
    failures = FailureLog()
    for trajectory in trajectories:
        failures.add(trajectory)
    if as_json:
        files = {"trajectories": str(out / TRAJECTORIES), "batch": None if problem else str(out / BATCH)}
        counts = {"run_id": run.run_id, "episodes": run.episodes, "finished": finished, "seconds": seconds}
        ends = {"no_batch": problem or None, "failures": list(failures.lines())}
        figures = summarize(trajectories) if trajectories else {}
        print(json.dumps({**counts, **files, **ends, "summary": figures}, indent=2))
        console = Console(highlight=False, stderr=True)
    elif not played and finished == run.episodes:
        console.print(f"the run in {out} is complete: nothing is left to play", markup=False, soft_wrap=True)
    elif trajectories:
        console.print(summary_table(trajectories, seconds, played))
        chosen = pick_conversation(trajectories)
        if chosen is not None:
            console.print(conversation(chosen))
    for line in failures.lines():
        console.print(line, style="red", markup=False, soft_wrap=True)
    _print_files(console, finished, run, batch, problem, out)
    if stopped_by is not None:
        left = run.episodes - finished
        text = f"interrupted: {left} episodes were not finished; go on with: toolgym rollout --resume {out}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
        return STOPPED_BY + stopped_by
    require_one_that_played(trajectories)
    return 0 if batch is not None else 1


def _print_files(console: Console, finished: int, run: RunFile, batch: Batch | None, problem: str, out: Path) -> None:
    from toolgym.rollout.recording.run_folder import BATCH, TRAJECTORIES

    done = f"{out / TRAJECTORIES}  ({finished} of {run.episodes})"
    console.print(f"trajectories  {done}", markup=False, soft_wrap=True)
    if batch is None:
        console.print(f"no batch: {problem}", style="red", markup=False, soft_wrap=True)
        return
    prompt, response = batch.prompts.shape[1], batch.responses.shape[1]
    sources = int(batch.trajectory_ids[-1]) + 1
    origin = f" from {sources} trajectories" if sources < len(batch) else ""
    console.print(
        f"batch         {out / BATCH}  ({len(batch)} rows{origin} of {prompt} + {response} tokens, "
        f"{int(batch.response_mask.sum())} of them the policy's; checked: every invariant holds)",
        markup=False,
        soft_wrap=True,
    )
