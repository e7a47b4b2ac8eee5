"""Trajectories as verifiers' traces, for what reads those: prime-rl, and verifiers' own viewers and files.

The format is that of verifiers 0.4.0 (`verifiers/v1/graph.py`, `trace.py`): a graph of messages, each with the tokens
that it adds. Its branches, from a root to a leaf, are the samples that prime-rl trains on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.verifiers.harness import ToolgymHarnessConfig
from toolgym.rollout.adapters.verifiers.taskset import REWARD, ToolgymData, ToolgymTask, typed_message
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence, joined_payload
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn, require_trajectories
from toolgym.tools.errors import BatchError

with needs("verifiers", "Traces for verifiers"):
    import verifiers.v1 as vf

SAMPLING_MASK = "sampling_mask"
"""The payload with the ids that a sampler kept for each token, filled up with -1."""

_STOPS = {StopReason.MAX_TURNS: "max_turns", StopReason.BUDGET: "max_total_tokens"}
"""verifiers' names of what it calls truncated."""


def to_trace(trajectory: Trajectory) -> vf.Trace:
    """Return the trace of one trajectory, with a branch for each token sequence in which the policy sampled.

    A turn's node has the tokens since the turn before, with the mask False, and then the turn's own, with the mask
    True and a log-probability each. The messages between turns are nodes without tokens, as verifiers has them for
    templates that it cannot take apart; sequences that a context policy began start with a turn. The payload
    `sampling_mask` is kept; weight versions, rewards of turns and other payloads have no place in a trace. `ok` is
    False
    for a trajectory that is not usable, so that prime-rl leaves it out. Raises BatchError if the turns tell of other
    tokens
    than the sequences hold.
    """
    [trajectory] = require_trajectories([trajectory])
    ok = trajectory.usable
    trace = vf.Trace(
        id=trajectory.id,
        task=_task(trajectory),
        agent=vf.AgentInfo(
            config=vf.AgentConfig(
                harness=ToolgymHarnessConfig(),
                runtime=vf.SubprocessConfig(),
                sampling=vf.SamplingConfig(
                    **{name: value for name, value in trajectory.sampling.items() if value is not None}
                ),
            )
        ),
        tools=[vf.Tool(**tool["function"]) for tool in trajectory.tools],
        metrics={name: float(value) for name, value in trajectory.metrics.items() if _is_number(value)},
        is_completed=True,
        ok=ok,
        stop_condition=_STOPS.get(trajectory.stop_reason, trajectory.stop_reason.value),
    )
    if ok:
        trace.record_reward("reward", trajectory.reward)
        trace.info[REWARD] = trajectory.reward
    if trajectory.error is not None:
        kind, _, _ = trajectory.error.message.partition(":")
        trace.errors.append(vf.Error(type=kind, message=trajectory.error.message))
    start, end = trajectory.started_at, trajectory.started_at + trajectory.seconds
    trace.timing = vf.Timing(start=start, agent=vf.AgentSpan(start=start, end=end))
    _add_branches(trace, trajectory)
    return trace


def _task(trajectory: Trajectory) -> vf.TraceTask:
    places = trajectory.turn_places
    messages = trajectory.messages[: places[0]] if places else trajectory.messages
    task = Task(messages, trajectory.ground_truth, source=trajectory.source, id=trajectory.task_id)
    typed = ToolgymTask(ToolgymData.of(task, trajectory.env_id))
    return vf.TraceTask(type=ToolgymTask.__name__, data=typed.data, key=typed.key, hash=typed.hash)


# ------------------------------------------------------------------ the graph


def _add_branches(trace: vf.Trace, trajectory: Trajectory) -> None:
    messages, places = trajectory.messages, trajectory.turn_places
    seen = 0
    for number, sequence in enumerate(trajectory.sequences):
        *runs, (rest, _) = _runs(sequence)
        turns = [
            (place, turn)
            for place, turn in enumerate(trajectory.turns)
            if turn.sequence == number and turn.generated_tokens
        ]
        counted, held = [turn.generated_tokens for _, turn in turns], [len(sampled) for _, sampled in runs]
        if counted != held:
            raise BatchError(
                f"trajectory {trajectory.id}: its turns count {counted} sampled tokens in sequence {number}, not "
                f"the {held} that it holds"
            )
        if not turns:
            continue
        branch = _Branch(trace)
        if sequence.start_reason in ("start", "template"):
            seen = 0  # its prompt is the conversation from its beginning
        for (before, sampled), (place, turn) in zip(runs, turns, strict=True):
            message: Any = {"role": "assistant", "content": turn.text}
            if places:
                branch.add_messages(messages[seen : places[place]])
                message, seen = messages[places[place]], places[place] + 1
            branch.add_turn(message, before, sampled, turn)
        if places and turns[-1][0] == len(trajectory.turns) - 1:
            branch.add_messages(messages[seen:])
        branch.add_tokens(rest)


def _runs(sequence: TokenSequence) -> Iterator[tuple[list[int], Segment]]:
    """Yield the policy's segments, adjacent ones joined, each with the ids before it; last what is behind them."""
    before = sequence.prompt_ids.tolist()
    for is_policy, segments in itertools.groupby(sequence.segments, lambda segment: segment.is_policy):
        joined = Segment.merge(list(segments))
        if is_policy:
            yield before, joined
            before = []
        else:
            before += joined.token_ids.tolist()
    yield before, Segment.env(())


class _Branch:
    def __init__(self, trace: vf.Trace) -> None:
        self._trace = trace
        self._last: int | None = None
        self._tokens = 0

    def add_messages(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._add(message=typed_message(message))

    def add_turn(self, message: Any, before: list[int], sampled: Segment, turn: Turn) -> None:
        context, count = self._tokens + len(before), len(sampled)
        self._add(
            message=typed_message(message),
            sampled=True,
            token_ids=before + sampled.token_ids.tolist(),
            mask=[False] * len(before) + [True] * count,
            logprobs=sampled.logprobs.tolist(),
            sampling_mask=_sampling_mask(sampled),
        )
        self._tokens = context + count
        self._trace.calls.append(
            vf.ModelCall(
                node=self._last,
                finish_reason=turn.finish_reason if turn.finish_reason in ("stop", "length") else None,
                usage=vf.Usage(prompt_tokens=context, completion_tokens=count),
            )
        )

    def add_tokens(self, ids: list[int]) -> None:
        """Put ids behind the last turn: its closing tokens, and what the env said to it."""
        node = self._trace.nodes[-1]
        node.token_ids += ids
        node.mask += [False] * len(ids)

    def _add(self, **fields: Any) -> None:
        tools = self._trace.tools if self._last is None else []
        self._trace.nodes.append(vf.MessageNode(parent=self._last, tools=tools, **fields))
        self._last = len(self._trace.nodes) - 1


def _sampling_mask(sampled: Segment) -> vf.SamplingMask | None:
    if SAMPLING_MASK not in sampled.aligned:
        return None
    rows = joined_payload(SAMPLING_MASK, [sampled])
    return vf.SamplingMask(ids=rows[rows >= 0].astype(np.int32), counts=(rows >= 0).sum(axis=1, dtype=np.int32))


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
