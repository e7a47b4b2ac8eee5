"""Recorded episodes, played again by a `Runner` on a clock that jumps, beside a simple model of GPUs.

Scheduler, admission, brancher and pool of replicas are the library's own.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import itertools
import random
import selectors
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolgym.envs import Task
from toolgym.envs.base import BaseEnv
from toolgym.envs.types import StopReason
from toolgym.exports.mooncake import Blocks, request_row
from toolgym.rollout import GroupPlan, RunConfig, Runner
from toolgym.rollout.engines.base import Engine, EngineLoad, Generation, GenerationRequest
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.adaptive import Adaptive
from toolgym.rollout.runner.branching import Branching
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory
from toolgym.tools.concurrency.run_limits import GENERATIONS
from toolgym.tools.http.replicas import Replica, ReplicaPool, ReplicaState
from toolgym.tools.message import user
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.turns import played_turns

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
        raise AssertionError("`Played` has the episode: the env is only held")

    async def step(self, action: Any) -> Any:
        raise AssertionError("`Played` has the episode: the env is only held")

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
        raise AssertionError("requests go to a GPU by `choose`: the runner asks this engine for its load alone")

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
        for trajectory in played:
            if row == "trees" and trajectory.parent is not None:
                self.branches[trajectory.parent, trajectory.branch_turn].append(trajectory)
        first = [each for each in played if row != "trees" or each.parent is None]
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
                return self._trajectory(StopReason.TOOL_FAILED, Failure("broken", step.number))
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

    def _trajectory(self, reason: StopReason = StopReason.ANSWERED, error: Failure | None = None) -> Trajectory:
        turns = tuple(dataclasses.replace(turn, seed=None) for turn in self._whole.turns)
        key, job = self.job.key, self.job
        return dataclasses.replace(
            self._whole, id=self.id, group_id=job.group_id, task_index=key.task_index, sample_index=key.sample_index,
            parent=job.parent, branch_turn=job.branch_turn, turns=turns, peers=(),
            stop_reason=reason, error=error,
        )  # fmt: skip


def recorded(path: Path, copies: int) -> list[Trajectory]:
    """The recorded trajectories. `copies` play each again with other ids behind what all prompts begin with: as another
    task's."""
    index = RunIndex(path).read_all()
    played = [index.trajectory(row) for row in index.rows if row.readable and row.tokens]
    played.sort(key=lambda trajectory: (trajectory.task_index, trajectory.sample_index))
    prompts = [sequence.prompt_ids for trajectory in played for sequence in trajectory.sequences]
    shared = sum(1 for _ in itertools.takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False)))
    return [_copied(trajectory, number, shared) for number in range(copies) for trajectory in played]


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
