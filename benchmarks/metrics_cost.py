"""What it costs to watch a run: CPU per event and per turn of `RunMetrics`, of spans, and of a look at the progress.

    python benchmarks/metrics_cost.py

The events are those of episodes of 4 turns of 200 tokens with one call each, behind a prompt of 300 tokens, given to
the observer as an episode gives them: 22 an episode. The target is below 10 microseconds an event.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from types import SimpleNamespace

from rich.console import Console

from toolgym.envs import Task
from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout.engines.base import FinishReason, Generation, SamplingParams
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.rollout.runner.metrics.progress import Progress
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
from toolgym.rollout.runner.metrics.spans import RunSpans
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn

EPISODES, TURNS, TOKENS, OBSERVATION, PROMPT = 1000, 4, 200, 30, 300
EVENTS = 3 + 4 * TURNS + (TURNS - 1)
TARGET = 10.0

TASK = Task(({"role": "user", "content": "x"},))
PARAMS = SamplingParams(max_new_tokens=TOKENS)
IDS = tuple(range(1000, 1000 + TOKENS))
GENERATION = Generation(IDS, (0.0,) * TOKENS, FinishReason.STOP, ("1",) * TOKENS, 100)
RECORD = ToolCallRecord("call_0", "code_interpreter", {}, "ok", "text " * 20, seconds=0.01)
TURN = Turn("", "stop", PROMPT, TOKENS, 100, OBSERVATION, (RECORD,), 0.0, 0.1, 0.01)


def episode(number: int) -> tuple[Job, list[TokenIds], Trajectory]:
    """What one episode gives to an observer, made before the clock runs."""
    job = Job(TASK, EpisodeKey(number // 8, number % 8), f"run-{number // 8}")
    contexts = [TokenIds(range(PROMPT))]
    for _ in range(TURNS - 1):
        contexts.append(contexts[-1].followed_by(IDS).followed_by(range(OBSERVATION)))
    trajectory = Trajectory(
        f"{number}", "E-v0", "", "", job.group_id, *job.key, (), (), (), number % 2, StopReason.ANSWERED,
        turns=(TURN,) * TURNS, seconds=1.0,
    )  # fmt: skip
    return job, contexts, trajectory


def play(observer: EpisodeObserver, job: Job, contexts: list[TokenIds], trajectory: Trajectory) -> None:
    """Tell an observer of one episode."""
    conversation = SimpleNamespace(number=0)
    observer.began(job)
    observer.waits(job, Phase.RESET)
    for number, context in enumerate(contexts):
        observer.waits(job, Phase.ENGINE)
        observer.asked(job, context, PARAMS)
        observer.generated(job, GENERATION)
        observer.waits(job, Phase.ENV, "code_interpreter")
        if number < TURNS - 1:
            observer.turned(job, TURN, conversation)
    observer.ended(job, trajectory)


def seconds_of(call: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


def cost(name: str, make: Callable[[], EpisodeObserver], nothing: float) -> float:
    """Print an observer's CPU time; the loop's own is taken off."""
    best = float("inf")
    for _ in range(3):
        episodes, observer = [episode(number) for number in range(EPISODES)], make()
        observer.run_began()
        started = time.process_time()
        for one in episodes:
            play(observer, *one)
        best = min(best, (time.process_time() - started) / EPISODES)
        observer.run_ended()
    own = (best - nothing) * 1e6
    event, turn = own / EVENTS, own / TURNS
    print(f"{name:32} {event:8.2f} µs an event {turn:8.1f} µs a turn   {event / TARGET:6.2f} of the target")
    return best


async def main() -> None:
    nothing = cost("an observer that does nothing", EpisodeObserver, 0.0)
    cost("RunMetrics", RunMetrics, nothing)

    import opentelemetry.trace
    from opentelemetry.sdk.trace import TracerProvider

    opentelemetry.trace.set_tracer_provider(TracerProvider())
    cost("RunSpans, with the SDK", lambda: RunSpans("E-v0", "model"), nothing)

    metrics, waiting = RunMetrics(), [episode(number) for number in range(1024)]
    for job, _, _ in waiting:
        metrics.began(job)
        metrics.waits(job, Phase.ENV, f"tool_{job.key.sample_index}")
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    shown = Progress(metrics, 2048, console=console)
    shown.run_began()
    look = seconds_of(shown._show, 200)
    shown.run_ended()
    print(f"{'a look at the progress':32} {look * 1e3:8.2f} ms, 4 a second: {look * 4:.2%} of a processor")
    print(f"{'metrics.metrics()':32} {seconds_of(metrics.metrics, 200) * 1e3:8.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
