"""What keeps simulated GPUs busy: admission, over-sampling, refills and trees, with tools and without.

    python benchmarks/simulate_gpus.py --run RUN [--rows PATTERN ...] [--loads 64 128 256] [--replicas 8]

RUN is a recorded run (`toolgym rollout --out RUN`, or `--record RUN`, which plays one with the tiny policy and branches).
Its episodes are played again by a `Runner` with its own scheduler, admission and brancher, on an event loop whose clock
jumps: an engine answers as late as a simple model of GPUs says, and a tool as late as a heavy-tailed draw. What came of
it is written as a trace of `agentic_mooncake`: each request waits for the requests that it waited for in that run, so
that admission is in the trace. NVIDIA's `aisimulate` then plays the trace with its timing of an H100.

| row | what it is |
| --- | --- |
| static | so many episodes at once |
| adaptive | so many requests at once, and as many episodes as keep them busy (`Adaptive` with `max_generations`) |
| sticky | adaptive; all turns of an episode on one GPU, chosen as `ReplicaPool` does; else they go around |
| spare | adaptive; the run ends with seven eighths of the groups that it may begin |
| refills | adaptive; one attempt in twenty breaks, and is played again |
| trees | adaptive; branches go on from their parent's turn, where other rows play them from the beginning |

`aisimulate` needs a virtual environment of its own (695 MB), named by --simulator or TOOLGYM_AISIMULATE.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import fnmatch
import json
import os
import random
import selectors
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolgym.envs import Task
from toolgym.envs.base import BaseEnv
from toolgym.envs.types import StopReason
from toolgym.exports.mooncake import Blocks, request_row
from toolgym.rollout import GroupPlan, RunConfig, Runner, open_engine
from toolgym.rollout.engines.base import Engine, EngineLoad, Generation, GenerationRequest
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner import local
from toolgym.rollout.runner.adaptive import Adaptive
from toolgym.rollout.runner.branching import Branching, at_turns
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory
from toolgym.tools.concurrency.run_limits import GENERATIONS
from toolgym.tools.http.replicas import Replica, ReplicaPool, ReplicaState
from toolgym.tools.message import user
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.turns import played_turns

VERSION = "0.13.0.dev202610270000000085"
SHA256 = "17dcb3be6687ebc0b6cb76c59fcd3df46212fe9c7247f1169537245002dc76b1"
INSTALL = f"""no aisimulate in {{python}}. Install it (Linux on x86-64, 695 MB), and name its Python with --simulator:
    python3.11 -m venv AISIM
    AISIM/bin/pip install --no-deps --pre aisimulate=={VERSION}    # sha256 of the wheel {SHA256}
    AISIM/bin/pip install numpy pandas pyarrow scipy pyyaml pydantic packaging psutil jinja2 ijson"""
BLOCK, GROUP, LOST, CACHE = 64, 8, 0.05, 370_000
"""Tokens of a block; members of a group; share of attempts that break; tokens in the KV cache of an 80 GB H100."""


class Request(NamedTuple):
    """A model call as it was played; `waited` are the tool's seconds before it, times are those of the clock."""

    row: dict[str, Any]
    replica: int
    previous: str | None
    waited: float
    began: float
    ended: float


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes to the next timer whenever there is nothing to do."""

    def __init__(self) -> None:
        loop, self.now = self, 0.0

        class Jump(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                events = super().select(None if timeout is None else 0)
                loop.now += 0.0 if events or not timeout else timeout
                return events

        super().__init__(Jump())

    def time(self) -> float:
        return self.now


class InlineEnvs(EnvPool):
    """Makes envs without a thread, whose work would take no time of the clock."""

    async def take(self) -> BaseEnv:
        env = self._idle.pop() if self._idle else self._make()
        self._open[id(env)] = env
        return env


class Nothing(BaseEnv):
    """An env that is only held: `Played` has the episode."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise NotImplementedError

    async def step(self, action: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Gpu(Replica):
    """A replica that decodes all of its requests a token a step, and prefills what its cache does not have."""

    def __init__(self, url: str, timing: dict[str, float]) -> None:
        super().__init__(url)
        self.timing = timing
        self.cache: set[int] = set()
        self.active: dict[asyncio.Future[None], list[int]] = {}  # tokens left and done
        self.fresh = 0
        self.stepping: asyncio.Task[None] | None = None

    async def serve(self, blocks: list[int], prompt: int, count: int, done: list[int]) -> None:
        """Generate `count` tokens, counted in `done` as they come."""
        self.fresh += BLOCK * sum(block not in self.cache for block in blocks[: -(-prompt // BLOCK)])
        self.cache.update(blocks[: (prompt + count) // BLOCK])
        answer = asyncio.get_running_loop().create_future()
        self.active[answer] = [count, *done]
        entry = self.active[answer]
        if self.stepping is None or self.stepping.done():
            self.stepping = asyncio.create_task(self._steps())
        try:
            with self.working(prompt + count):
                await answer
        finally:
            self.active.pop(answer, None)
            done.append(count - entry[0])

    async def _steps(self) -> None:
        timing = self.timing
        while self.active:
            fresh, self.fresh = self.fresh, 0
            batch = list(self.active.items())
            await asyncio.sleep(timing["step"] + timing["row"] * len(batch) + timing["prefill"] * fresh)
            for answer, entry in batch:
                entry[0] -= 1
                if entry[0] == 0 and not answer.done():
                    answer.set_result(None)
                    self.active.pop(answer, None)


class Gpus(Engine):
    """The engine that admission asks for its load. `pool` chooses for an affinity; None: requests go around."""

    def __init__(self, tokenizer: Any, gpus: list[Gpu], sticky: bool) -> None:
        self.tokenizer, self.gpus, self._asked = tokenizer, gpus, 0

        async def probe(gpu: Gpu) -> ReplicaState:
            return ReplicaState.HEALTHY

        self.pool = ReplicaPool(gpus, probe) if sticky else None

    vocab_size = context_length = 1 << 20

    async def _generate(self, request: GenerationRequest) -> Generation:
        raise NotImplementedError

    async def load(self) -> EngineLoad:
        return EngineLoad(max(gpu.weight for gpu in self.gpus) / CACHE, sum(gpu.in_flight for gpu in self.gpus), 0)

    def choose(self, affinity: str) -> Gpu:
        """The replica of the next request."""
        self._asked += 1
        chosen = self.pool.choose(affinity=affinity) if self.pool else None
        return chosen or self.gpus[(self._asked - 1) % len(self.gpus)]


class Play:
    """What the episodes of one run share: recorded trajectories, times of tools, and the requests as they were."""

    def __init__(self, played: list[Trajectory], options: argparse.Namespace, row: str, *, tools: bool) -> None:
        self.options, self.tools, self.row = options, tools, row
        self.blocks = Blocks(options.scale, BLOCK)
        self.requests: list[Request] = []
        self.branches = collections.defaultdict(list)
        for one in played:
            if row == "trees" and one.parent is not None:
                self.branches[one.parent, one.branch_turn].append(one)
        first = [one for one in played if row != "trees" or one.parent is None]
        self.groups = [first[at : at + GROUP] for at in range(0, len(first) - GROUP + 1, GROUP)]
        if not self.groups:
            raise SystemExit(f"the run has fewer than {GROUP} episodes in which something was sampled")

    def recorded(self, job: Any) -> Trajectory:
        """The trajectory that a job plays."""
        group = self.groups[job.key.task_index]
        return group[job.key.sample_index % len(group)]

    def seconds(self, trajectory: Trajectory, turn: int) -> float:
        """How long the tools of a turn take: a log-normal draw, at most as long as a tool may take."""
        if not self.tools or not trajectory.turns[turn].tool_calls:
            return 0.0
        draw = random.Random(f"{trajectory.id} {turn}").lognormvariate(0.0, self.options.sigma)
        return min(60.0, self.options.median * draw)


class Played:
    """An episode of a `Runner` that plays a recorded trajectory: calls of the engine, and waits for tools."""

    def __init__(self, play: Play, job: Any, env: BaseEnv, engine: Gpus, whole: Trajectory, begun: int = 0) -> None:
        self.play, self.job, self.env, self._engine, self._whole = play, job, env, engine, whole
        self.id = f"{job.group_id}-{job.key.sample_index}-{job.attempt}"
        self._begun, self.done, self.branches_left, self.reward = begun, begun, None, 0.0
        self.last: tuple[str | None, float] = (None, 0.0)  # the last request, and the tool's seconds behind it
        self._running: asyncio.Task[Any] | None = None

    @property
    def turns(self) -> tuple[Any, ...]:
        return self._whole.turns[: self.done]

    @property
    def conversation(self) -> Any:
        """The episode itself: `continuations` looks for its branches."""
        return self

    @property
    def branches(self) -> list[Trajectory]:
        """The recorded branches that begin here."""
        return self.play.branches[self._whole.id, self.done]

    async def fork(self, job: Callable[[], Any]) -> Played:
        whole = self.branches[len(self.branches) - self._forks]
        self._forks -= 1
        place = dataclasses.replace(job(), parent=self.id, branch_turn=self.done)
        twin = Played(self.play, place, Nothing(), self._engine, whole, self.done)
        twin.last = self.last
        return twin

    def cut(self) -> None:
        if self._running is not None:
            self._running.cancel()

    suspend = cut

    async def run(self, *, between_turns: Any = None) -> Trajectory:
        self._running = asyncio.current_task()
        _, steps = played_turns(self._whole)
        contexts = [self.play.blocks.of(sequence) for sequence in self._whole.sequences]
        draw = random.Random(f"{self._whole.id} {self.job.attempt}")
        breaks = draw.randrange(len(steps)) if self.play.row == "refills" and draw.random() < LOST else None
        for step in steps[self._begun :]:
            if between_turns is not None and step.number > self._begun:
                self._forks = len(self.branches)
                await between_turns(self)
            if step.tokens is not None and step.prompt_ids is not None:
                scale = self.play.options.scale
                lengths = len(step.prompt_ids) * scale, len(step.tokens) * scale
                await self._call(step.number, contexts[step.turn.sequence], *lengths)
            if step.number == breaks:
                error = Failure("broken", step.number)
                return self._trajectory(stop_reason=StopReason.TOOL_FAILED, error=error)
            self.last = self.last[0], self.play.seconds(self._whole, step.number)
            await asyncio.sleep(self.last[1])
            self.done = step.number + 1
        return self._trajectory()

    async def _call(self, turn: int, blocks: list[int], prompt: int, count: int) -> None:
        limiter, clock = GENERATIONS.limiter, asyncio.get_running_loop()
        lease = limiter.try_acquire() or await limiter.acquire()
        began, gpu, done = clock.time(), self._engine.choose(self.id), []
        previous, waited = self.last
        try:
            await gpu.serve(blocks, prompt, count, done)
        finally:
            lease.release()
            if done and done[0]:
                row = request_row(self.id, turn, blocks, prompt, done[0], BLOCK)
                where = self._engine.gpus.index(gpu)
                self.play.requests.append(Request(row, where, previous, waited, began, clock.time()))
                self.last = row["request_id"], 0.0

    def _trajectory(self, **changes: Any) -> Trajectory:
        turns = tuple(dataclasses.replace(turn, seed=None) for turn in self._whole.turns)
        key, job = self.job.key, self.job
        return dataclasses.replace(
            self._whole, id=self.id, group_id=job.group_id, task_index=key.task_index, sample_index=key.sample_index,
            parent=job.parent, branch_turn=job.branch_turn, turns=turns, peers=(), **changes,
        )  # fmt: skip


def recorded(path: Path, copies: int) -> list[Trajectory]:
    """The recorded trajectories. `copies` play each again with other ids behind what all prompts begin with: as another
    task's."""
    index = RunIndex(path).read_all()
    played = [index.trajectory(one) for one in index.rows if one.readable and one.tokens]
    played.sort(key=lambda one: (one.task_index, one.sample_index))
    prompts = [sequence.prompt_ids for one in played for sequence in one.sequences]
    shared = len(os.path.commonprefix([prompt.tolist() for prompt in prompts]))
    return [_copied(one, number, shared) for number in range(copies) for one in played]


def _copied(trajectory: Trajectory, number: int, shared: int) -> Trajectory:
    if not number:
        return trajectory
    shift = 200_000 * number
    sequences = tuple(
        dataclasses.replace(
            sequence,
            prompt_ids=np.concatenate([sequence.prompt_ids[:shared], sequence.prompt_ids[shared:] + shift]),
            segments=tuple(
                dataclasses.replace(segment, token_ids=segment.token_ids + shift) for segment in sequence.segments
            ),
        )
        for sequence in trajectory.sequences
    )
    parent = trajectory.parent and f"{trajectory.parent}+{number}"
    return dataclasses.replace(trajectory, id=f"{trajectory.id}+{number}", parent=parent, sequences=sequences)


async def playing(play: Play, load: int, gpus: list[Gpu]) -> list[Trajectory]:
    """Play the groups with the admission of a row; return what the consumer gets."""
    row, groups = play.row, len(play.groups)
    branching = Branching(lambda turn, point: 1 + len(point.conversation.branches)) if row == "trees" else None
    adaptive = Adaptive(start=load, most=16 * load, interval=play.options.interval)
    config = RunConfig(
        group_size=GROUP, refills=3, branching=branching, seed=0,
        max_concurrent=load if row == "static" else adaptive, max_generations=load,
    )  # fmt: skip
    engine = Gpus(load_tokenizer(tiny_policy_path()), gpus, sticky=row == "sticky")

    @contextlib.asynccontextmanager
    async def episodes(*_: Any) -> AsyncIterator[Callable[..., Played]]:
        yield lambda job, config, env, engine, renderer, **_: Played(play, job, env, engine, play.recorded(job))

    plan = GroupPlan(groups=groups - groups // 8, spare_groups=groups // 8) if row == "spare" else None
    tasks = [Task(messages=[user(str(number))]) for number in range(groups)]
    async with engine, Runner(EnvFactory("Recorded", Nothing, None, episodes), engine, config=config) as runner:
        return await runner.run(tasks, plan=plan)


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
    """The model of a GPU, from two runs of the simulator: of a request alone, and of 64 with the same prompt at once."""

    def timed(count: int) -> list[float]:
        contexts = [[*range(40), *range(1000 * at, 1000 * at + 4)] for at in range(1, count + 1)]
        rows = [request_row(str(at), 0, blocks, 2560, 256, BLOCK) for at, blocks in enumerate(contexts)]
        _, played = simulate(python, [{**row, "timestamp": 0.0} for row in rows], 1, model)
        return [statistics.median(one[name] for one in played) / 1e3 for name in ("first_token_ms", "itl_ms")]

    (first, alone), (_, together) = timed(1), timed(64)
    row = (together - alone) / 63
    return {"prefill": (first - alone) / 2560, "step": alone - row, "row": row}


class Figures(NamedTuple):
    """A line of the table: seconds of the simulator and of the clock, shares, and what the consumer got a second."""

    seconds: float
    clock: float
    idle: float
    reuse: float
    tokens: float
    episodes: float


def measure(played: list[Trajectory], options: argparse.Namespace, row: str, load: int, *, tools: bool) -> Figures:
    """Play a row, and let the simulator play its trace."""
    play = Play(played, options, row, tools=tools)
    gpus = [Gpu(f"http://gpu-{at}", options.timing) for at in range(options.replicas)]
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        kept = runner.run(playing(play, load, gpus))
        clock = max(request.ended for request in play.requests)
    parts = [play.requests]
    if row == "sticky":  # each GPU by itself, since the simulator lets requests go around
        parts = [[one for one in play.requests if one.replica == at] for at in range(options.replicas)]
    each = options.replicas // len(parts)
    results = [simulate(options.simulator, list(rows_of(part)), each, options.model) for part in parts if part]
    requests = [request for _, part in results for request in part]
    seconds = max(seconds for seconds, _ in results)
    reused, sent = (sum(one[name] for one in requests) for name in ("reused_input_tokens", "input_length"))
    tokens = sum(turn.generated_tokens for one in kept if not one.failed for turn in one.turns[one.branch_turn or 0 :])
    work = sum(busy(part) for _, part in results)
    return Figures(
        seconds, clock, 1 - work / (seconds * options.replicas), reused / sent, tokens * options.scale / seconds,
        len(kept) / seconds,
    )  # fmt: skip


async def record(path: Path, tasks: int) -> None:
    """Play a run with the tiny policy in which each episode branches before its second turn."""
    from toolgym.envs import ArithmeticTasks

    config = RunConfig(group_size=4, branching=Branching(at_turns(1)), seed=0)
    path.mkdir(parents=True)
    async with open_engine("tiny") as engine:
        with TrajectoryWriter(path / "0.jsonl") as writer:
            runner = Runner("CodeInterpreter-v0", engine, config=config, sinks=[writer])
            played = await runner.run(ArithmeticTasks().take(tasks))
    print(f"{path}: {len(played)} episodes, {sum(one.parent is not None for one in played)} of them branches")


def checked_simulator(python: str | None) -> str:
    """The Python of an environment that has the pinned simulator, else the program ends and says what to install."""
    code = "import importlib.metadata as m; print(m.version('aisimulate'))"
    python = python or "python3.11"
    try:
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        raise SystemExit(INSTALL.format(python=python)) from None
    if asked.returncode:
        raise SystemExit(INSTALL.format(python=python))
    if asked.stdout.strip() != VERSION:
        print(f"warning: the figures of docs/simulation.md are of aisimulate {VERSION}, this is {asked.stdout.strip()}")
    return str(Path(python).absolute()) if os.sep in python else python


ROWS = ["static", "adaptive", "sticky", "spare", "refills", "trees"]


def main() -> None:
    """Print a line for each row and load, and whether tools cost at most a twentieth of the tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a recorded run")
    parser.add_argument("--record", type=Path, help="record a run there, and do no more")
    parser.add_argument("--simulator", default=os.environ.get("TOOLGYM_AISIMULATE"), help="Python that has aisimulate")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of the rows' names")
    parser.add_argument("--loads", nargs="*", type=int, default=[64, 128, 256], help="episodes or requests at once")
    parser.add_argument("--model", default="Qwen/Qwen3-8B")
    for name, default, text in (
        ("tasks", 32, "of --record"), ("replicas", 8, "GPUs"), ("copies", 8, "how often each episode is played"),
        ("scale", 16, "how often each token is repeated"), ("median", 1.0, "seconds of a tool call"),
        ("sigma", 1.0, "of their logarithm"), ("interval", 1.0, "seconds between two looks of `Adaptive`"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    options = parser.parse_args()
    if options.record:
        asyncio.run(record(options.record, options.tasks))
        return
    if options.run is None:
        parser.error("--run RUN: the run to play; --record RUN records one")
    options.simulator = checked_simulator(options.simulator)
    options.timing = timing_of(options.simulator, options.model)
    local.EnvPool = InlineEnvs  # type: ignore[misc]
    played = recorded(options.run, options.copies)
    print("model of a GPU:", ", ".join(f"{name} {1e3 * value:.4f} ms" for name, value in options.timing.items()))
    print(f"{'row':9s}{'load':>5s} {'idle':>6s} {'reuse':>6s} {'tok/s':>7s} {'ep/s':>6s}   without tools {'ratio':>7s}")
    errors = []
    for row in (row for row in ROWS if any(fnmatch.fnmatch(row, pattern) for pattern in options.rows)):
        for load in options.loads:
            ours, bare = (measure(played, options, row, load, tools=tools) for tools in (True, False))
            errors += [one.clock / one.seconds - 1 for one in (ours, bare)]
            print(
                f"{row:9s}{load:5d} {ours.idle:6.1%} {ours.reuse:6.3f} {ours.tokens:7.0f} {ours.episodes:6.1f}   "
                f"{bare.idle:6.1%} {bare.tokens:7.0f} {ours.tokens / bare.tokens:7.1%}", flush=True,
            )  # fmt: skip
    print(f"the clock's seconds differ from the simulator's by {min(errors):+.1%} to {max(errors):+.1%}")


if __name__ == "__main__":
    main()
