"""What keeps simulated GPUs busy: admission, over-sampling, refills and trees, with tools and without.

    python benchmarks/simulate_gpus.py --simulator AISIM/bin/python [--run RUN] [--rows PATTERN ...] [--loads 64 ...]

RUN is a recorded run; if it is not there, one of the tiny policy whose episodes branch is recorded there. A `Runner`
plays its episodes again, with its own scheduler, admission and brancher, on an event loop whose clock jumps
(`gpu_clock.py`): engines answer as late as a simple model of GPUs says, and tools as late as a heavy-tailed draw. What
came of it is written as a trace of `agentic_mooncake` in which each request waits for the requests that it waited for
there: so admission is in the trace. NVIDIA's `aisimulate` plays the trace with the timing of an H100.

| row | what it is |
| --- | --- |
| static | so many episodes at once |
| adaptive | so many requests at once, and as many episodes as keep them busy (`Adaptive` with `max_generations`) |
| sticky | adaptive; all turns of an episode on one GPU, chosen by `ReplicaPool`; else requests go around |
| spare | adaptive; the run ends with seven eighths of the groups that it may begin |
| refills | adaptive; one attempt in twenty breaks, and is played again |
| trees | adaptive; branches go on from their parent's turn, where other rows play them from the beginning |

Printed are, with tools: the share of time in which GPUs had no request, the share of prompts found in caches, tokens of
episodes that the consumer got and these episodes, a second; likewise tokens without tools, and their ratio; and all
tokens a second while there were episodes to begin, with tools and without, and their ratio.

`aisimulate` needs a virtual environment of its own (695 MB), named by --simulator or TOOLGYM_AISIMULATE. Without such a
name this program only says how to make it.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import fnmatch
import json
import logging
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpu_clock import BLOCK, Gpu, InlineEnvs, JumpingLoop, Play, Request, playing, recorded

from toolgym.envs import ArithmeticTasks
from toolgym.exports.mooncake import request_row
from toolgym.rollout import RunConfig, Runner, open_engine
from toolgym.rollout.runner.branching import Branching, at_turns
from toolgym.rollout.runner.envs import env_pool
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.rollout.trajectory.trajectory import Trajectory

VERSION = "0.13.0.dev202610270000000085"
SHA256 = "17dcb3be6687ebc0b6cb76c59fcd3df46212fe9c7247f1169537245002dc76b1"
INSTALL = f"""no aisimulate {{where}}. Install it (Linux on x86-64, 695 MB), and name its Python with --simulator:
    python3.11 -m venv AISIM
    AISIM/bin/pip install --no-deps --pre aisimulate=={VERSION}    # sha256 of the wheel {SHA256}
    AISIM/bin/pip install numpy pandas pyarrow scipy pyyaml pydantic packaging psutil jinja2 ijson"""


def rows_of(requests: list[Request]) -> Iterator[dict[str, Any]]:
    """The rows of a trace: each request waits for its episode's last one and its tools, or, where it was admitted
    later than that, for the request that had ended last."""
    known = {request.row["request_id"]: request for request in requests}
    ends = sorted(requests, key=lambda request: request.ended)
    before = 0
    for request in sorted(requests, key=lambda request: request.began):
        while before < len(ends) and ends[before].ended <= request.began + 1e-9:
            before += 1
        last = known.get(request.previous or "")
        if last is not None and request.began - last.ended - request.waited <= 1e-6:
            waits = {"wait_for": [request.previous], "delay": 0.0, "tool_wait_ms": 1e3 * request.waited}
        elif not before:
            waits = {"timestamp": 1e3 * request.began}
        else:
            latest = ends[before - 1]
            others = {latest.row["request_id"], *([request.previous] if last is not None else [])}
            waits = {"wait_for": sorted(others), "delay": 1e3 * max(0.0, request.began - latest.ended)}
        yield {**request.row, **waits}


def simulate(python: str, rows: list[dict[str, Any]], replicas: int, model: str) -> tuple[float, list[dict[str, Any]]]:
    """Let `aisimulate` play a trace; return its seconds, and what became of each request."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "trace.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = {"type": "trace", "paths": [str(trace)], "format": "agentic_mooncake", "block_size": BLOCK}
        engine = {"model": model, "hardware": "h100_sxm", "backend": "sglang"}
        workers = {"aggregated": {"parallelism": {"replicas": replicas}}}
        config = {"traffic": {"source": source, "load": {"type": "trace_timestamps"}}}
        (folder / "config.yaml").write_text(json.dumps({**config, "engine": {**engine, "workers": workers}}))
        words = [python, "-m", "aisimulate", "predict", "-c", "config.yaml", "--output-dir", "out"]
        done = subprocess.run(
            [*words, "--capture-per-request"], cwd=folder, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise SystemExit(f"aisimulate failed:\n{done.stderr[-2000:]}")
        report = json.loads((folder / "out/prediction.json").read_text())
        return report["duration_ms"] / 1e3, [json.loads(line) for line in (folder / "out/requests.jsonl").open()]


def busy(requests: list[dict[str, Any]]) -> float:
    """Seconds in which replicas had a request between its admission and its last token, summed over them."""
    spans = collections.defaultdict(list)
    for request in requests:
        spans[request["decode_worker_idx"]].append((request["first_admit_ms"], request["last_token_ms"]))
    total = 0.0
    for worker in spans.values():
        end = 0.0
        for start, stop in sorted(worker):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
    return total / 1e3


def timing_of(python: str, model: str) -> dict[str, float]:
    """The model of a GPU, from two runs of the simulator: a request alone, and 64 with the same prompt at once."""

    def timed(count: int) -> list[float]:
        contexts = [[*range(40), *range(1000 * at, 1000 * at + 4)] for at in range(1, count + 1)]
        rows = [request_row(str(at), 0, blocks, 2560, 256, BLOCK) for at, blocks in enumerate(contexts)]
        _, played = simulate(python, [{**row, "timestamp": 0.0} for row in rows], 1, model)
        return [statistics.median(request[name] for request in played) / 1e3 for name in ("first_token_ms", "itl_ms")]

    (first, alone), (_, together) = timed(1), timed(64)
    row = (together - alone) / 63
    return {"prefill": (first - alone) / 2560, "step": alone - row, "row": row}


class Figures(NamedTuple):
    """A half line of the table: seconds of simulator and clock, two shares, and what came a second."""

    seconds: float
    clock: float
    idle: float
    reuse: float
    tokens: float
    episodes: float
    steady: float


def measure(played: list[Trajectory], options: argparse.Namespace, row: str, load: int, *, tools: bool) -> Figures:
    """Play a row, and let the simulator play its trace."""
    play = Play(played, options, row, tools=tools)
    gpus = [Gpu(f"http://gpu-{at}", options.timing) for at in range(options.replicas)]
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        kept = [each for each in runner.run(playing(play, load, gpus)) if not each.failed]
    parts = [play.requests]
    if row == "sticky":  # each GPU by itself, since the simulator lets requests go around
        parts = [[request for request in play.requests if request.replica == at] for at in range(options.replicas)]
    each = options.replicas // len(parts)
    results = [simulate(options.simulator, list(rows_of(part)), each, options.model) for part in parts if part]
    seconds = max(seconds for seconds, _ in results)
    requests = [request for _, part in results for request in part]
    reused, sent = (sum(request[name] for request in requests) for name in ("reused_input_tokens", "input_length"))
    tokens = sum(
        turn.generated_tokens for trajectory in kept for turn in trajectory.turns[trajectory.branch_turn or 0 :]
    )
    begins = {request.row["request_id"] for request in play.requests if request.previous is None}
    last = max(request["arrival_time_ms"] for request in requests if request["request_id"] in begins)
    return Figures(
        seconds=seconds,
        clock=max(request.ended for request in play.requests),
        idle=1 - sum(busy(part) for _, part in results) / (seconds * options.replicas),
        reuse=reused / sent,
        tokens=tokens * options.scale / seconds,
        episodes=len(kept) / seconds,
        steady=1e3 * sum(tokens_until(last, request) for request in requests) / last,
    )


def tokens_until(end: float, request: dict[str, Any]) -> float:
    """Tokens that a request had by then, if they came evenly."""
    began, ended = request["arrival_time_ms"], request["last_token_ms"]
    share = (end - began) / (ended - began) if ended > began else 1.0
    return float(request["output_length"]) * max(0.0, min(1.0, share))


async def record(path: Path, tasks: int) -> None:
    """Play a run with the tiny policy in which each episode branches before its second turn."""
    config = RunConfig(group_size=4, branching=Branching(at_turns(1)), seed=0)
    path.mkdir(parents=True)
    async with open_engine("tiny") as engine:
        with TrajectoryWriter(path / "0.jsonl") as writer:
            runner = Runner("CodeInterpreter-v0", engine, config=config, sinks=[writer])
            played = await runner.run(ArithmeticTasks().take(tasks))
    branches = sum(trajectory.parent is not None for trajectory in played)
    print(f"{path}: {len(played)} episodes, {branches} of them branches")


def checked_simulator(python: str) -> str:
    """The Python of an environment that has the pinned simulator, else the program ends and says what to install."""
    code = "import importlib.metadata as m; print(m.version('aisimulate'))"
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    except OSError:
        raise SystemExit(INSTALL.format(where=f"in {python}")) from None
    if asked.returncode:
        raise SystemExit(INSTALL.format(where=f"in {python}"))
    if asked.stdout.strip() != VERSION:
        print(f"warning: the figures of docs/simulation.md are of aisimulate {VERSION}, this is {asked.stdout.strip()}")
    return str(Path(python).absolute()) if os.sep in python else python


TARGET = 0.95
"""Least tokens a second with tools, as a share of those without."""

ROWS = ["static", "adaptive", "spare", "refills", "trees", "sticky"]


def main() -> None:
    """Print a line for each row and load, and whether tools cost at most a twentieth of the tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a recorded run, or where to record one; default: for this time alone")
    parser.add_argument("--simulator", default=os.environ.get("TOOLGYM_AISIMULATE"), help="Python that has aisimulate")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of the rows' names")
    parser.add_argument("--loads", nargs="*", type=int, default=[64, 128, 256], help="episodes or requests at once")
    parser.add_argument("--model", default="Qwen/Qwen3-8B")
    for name, default, text in (
        ("tasks", 32, "of a run that is recorded"), ("replicas", 8, "GPUs"),
        ("copies", 6, "how often each episode is played"),
        ("scale", 16, "how often each token is repeated"), ("median", 1.0, "seconds of a tool call"),
        ("sigma", 1.0, "of their logarithm"), ("interval", 1.0, "seconds between two looks of `Adaptive`"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    options = parser.parse_args()
    if not options.simulator:
        print(INSTALL.format(where="is named"))
        return
    options.simulator = checked_simulator(options.simulator)
    logging.getLogger("toolgym.rollout").setLevel(logging.ERROR)  # refills break episodes on purpose
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if not run.exists():
            asyncio.run(record(run, options.tasks))
        played = recorded(run, options.copies)
    options.timing = timing_of(options.simulator, options.model)
    env_pool.EnvPool = InlineEnvs  # type: ignore[misc]
    print("model of a GPU:", ", ".join(f"{name} {1e3 * value:.4f} ms" for name, value in options.timing.items()))
    print("              with tools                          without        while episodes begin")
    print("row      load   idle  reuse   tok/s  ep/s    tok/s  ratio    tok/s without  ratio")
    errors, held = [], []
    for row in (row for row in ROWS if any(fnmatch.fnmatch(row, pattern) for pattern in options.rows)):
        for load in options.loads:
            ours, bare = (measure(played, options, row, load, tools=tools) for tools in (True, False))
            held += [ours.steady / bare.steady] if row != "static" else []
            errors += [figures.clock / figures.seconds - 1 for figures in (ours, bare)]
            print(
                f"{row:8s}{load:5d} {ours.idle:6.1%} {ours.reuse:6.3f} {ours.tokens:7.0f} {ours.episodes:5.1f}  "
                f"{bare.tokens:7.0f} {ours.tokens / bare.tokens:6.1%}  {ours.steady:7.0f} {bare.steady:7.0f} "
                f"{ours.steady / bare.steady:6.1%}",
                flush=True,
            )
    print(f"the clock's seconds differ from the simulator's by {min(errors):+.1%} to {max(errors):+.1%}")
    if held:
        verdict = "holds" if min(held) >= TARGET else "does not hold"
        print(f"target at least {TARGET:.0%} while episodes begin, but for static: at least {min(held):.1%}, {verdict}")


if __name__ == "__main__":
    main()
