"""Trajectories as a trace of `agentic_mooncake`, which NVIDIA's simulators of engines play: a line a model call.

The fields are those of `AgenticMooncakeRow` in NVIDIA Dynamo's `data-gen`. A simulator knows no tokens, only one id for
each block of a prompt: prompts with the same leading ids share that prefix. It takes each token of a block to be the
block's id, so answers are coded likewise, else no later turn would find them in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.envs.tasks.writing import json_line
from toolgym.exports.writing import Options, Tally
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.viewer.turns import PlayedTurn, played_turns


class Blocks:
    """Ids of blocks: one for each sequence of tokens from the beginning to a block's end, so that equal ids mean equal
    prefixes. `scale` repeats each token, which makes short contexts long ones that share as much."""

    def __init__(self, scale: int, size: int) -> None:
        self.scale, self.size = scale, size
        self._ids: dict[tuple[int, bytes], int] = {}

    def of(self, sequence: TokenSequence) -> list[int]:
        """Return an id for each block of a whole context, a last one that is not full included."""
        ids: NDArray[np.int64] = np.concatenate([sequence.prompt_ids, sequence.response_ids]).astype(np.int64)
        for image in sequence.images:  # all images have the same token, so it stands for its image
            ids[image.start : image.start + image.tokens] = -1 - int(image.sha256[:15], 16)
        ids = np.repeat(ids, self.scale)
        blocks, parent = [], -1
        for start in range(0, len(ids), self.size):
            key = parent, ids[start : start + self.size].tobytes()
            parent = self._ids.setdefault(key, len(self._ids))
            blocks.append(parent)
        return blocks


def request_row(
    trajectory_id: str, turn: int, blocks: Sequence[int], start: int, count: int, size: int
) -> dict[str, Any]:
    """Return a model call without what it waits for: `start` tokens of a context of these blocks are its prompt, and
    the `count` tokens behind them its answer."""
    return {
        "request_id": f"{trajectory_id}:{turn}", "session_id": trajectory_id,
        "input_length": start, "output_length": count, "hash_ids": blocks[: -(-start // size)],
        "output_token_ids": [blocks[place // size] for place in range(start, start + count)],
    }  # fmt: skip


def write(trajectories: Iterable[Trajectory], path: Path, options: Options, tally: Tally) -> None:
    """Write a line for each turn that sampled tokens; a branch's own turns wait for the turn that it branched from."""
    trace = _Trace(options, tally)
    with path.open("wb") as file:
        for trajectory in trajectories:
            file.writelines(map(json_line, trace.rows(trajectory)))
        file.writelines(map(json_line, trace.orphans()))


class _Trace:
    """Makes rows of trajectories, a branch's behind those of its parent."""

    def __init__(self, options: Options, tally: Tally) -> None:
        self._blocks, self._began_at, self._tally = Blocks(options.scale, options.block), options.began_at, tally
        self._requests: dict[str, list[str | None]] = {}  # by trajectory: the request of each turn that has one
        self._waiting: dict[str, list[Trajectory]] = {}  # branches, by the parent that has not come yet

    def rows(self, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
        if trajectory.parent is not None and trajectory.parent not in self._requests:
            self._waiting.setdefault(trajectory.parent, []).append(trajectory)
            return
        yield from self._own(trajectory)
        for branch in self._waiting.pop(trajectory.id, ()):
            yield from self.rows(branch)

    def orphans(self) -> Iterator[dict[str, Any]]:
        """The rows of branches whose parents are not in the trace, the turns that they have from them included."""
        waiting = {branch.id for branches in self._waiting.values() for branch in branches}
        for parent in [parent for parent in self._waiting if parent not in waiting]:
            self._requests[parent] = []
            for branch in self._waiting.pop(parent):
                yield from self.rows(branch)

    def _own(self, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
        if trajectory.id in self._requests:
            self._tally.left_out["another one has the same id"] += 1
            return
        self._requests[trajectory.id] = names = []
        _, steps = played_turns(trajectory)
        reason = _refusal(steps)
        if reason is not None:
            self._tally.left_out[reason] += 1
            return
        self._tally.lose("work of encoding images", any(sequence.images for sequence in trajectory.sequences))
        earlier = self._requests.get(trajectory.parent or "", [])[: trajectory.branch_turn]
        contexts = [self._blocks.of(sequence) for sequence in trajectory.sequences]
        size, scale = self._blocks.size, self._blocks.scale
        previous, wait = None, 0.0
        for step in steps:
            name = earlier[step.number] if step.number < len(earlier) else None
            if name is None and step.prompt_ids is not None and step.tokens is not None:
                start, count = len(step.prompt_ids) * scale, len(step.tokens) * scale
                row = request_row(trajectory.id, step.number, contexts[step.turn.sequence], start, count, size)
                name = row["request_id"]
                if previous is None:
                    yield row | {"timestamp": round(1e3 * (step.began_at - self._began_at), 3)}
                else:
                    yield row | {"wait_for": [previous], "delay": 0.0, "tool_wait_ms": round(1e3 * wait, 3)}
                self._tally.written += 1
            if name is not None:
                previous, wait = name, 0.0
            wait += step.turn.env_seconds
            names.append(name)


def _refusal(steps: Sequence[PlayedTurn]) -> str | None:
    """The reason why an episode cannot be played by its tokens; None if it can."""
    sampled = [step for step in steps if step.turn.generated_tokens]
    if not sampled:
        return "nothing was sampled"
    if any(step.prompt_ids is None for step in sampled):
        return "turns count other tokens than their sequences have"
    return (
        "a prompt without tokens"
        if any(step.prompt_ids is not None and not len(step.prompt_ids) for step in sampled)
        else None
    )
